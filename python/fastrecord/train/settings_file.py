"""Settings as TOML: read for `--config` and `--recipe`, written into a run's folder. Checks keys and types only."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrecord.options import NONE, fits, hint, words
from fastrecord.train.files import replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance as Settings

_RECIPES = Path(__file__).parent / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the trainer, sorted."""
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """Return the settings file of a recipe.

    Raises:
        ValueError: there is no such recipe; the message names those that exist.
    """
    if name not in recipe_names():
        raise ValueError(f"there is no recipe {name!r}: the recipes are {', '.join(recipe_names())}")
    return _RECIPES / f"{name}.toml"


def read_settings(path: str | os.PathLike[str], kind: type[Settings]) -> dict[str, Any]:
    """Read fields of a dataclass from a TOML file; the keys are their names, with `-` for `_`.

    Args:
        path: The file.
        kind: The dataclass. Its annotations tell the types.

    Returns:
        The fields that the file has, by name.

    Raises:
        ValueError: it is not TOML, or a key is unknown, or a value has the wrong type; the message
            names the file and the key.
        OSError: it cannot be read.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    names = {field.name.replace("_", "-"): field.name for field in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in names:
            near = difflib.get_close_matches(key.replace("_", "-").lower(), names, n=1)
            guess = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"{path}: unknown key {key!r}{guess} (the keys are {', '.join(names)})")
        annotated, default = hint(kind, names[key])
        # TOML has no null: "none" stands for None where that is not the default, which a file leaves out.
        unlimited = default is not None and fits(None, annotated)
        if unlimited and value == NONE:
            value = None
        elif not fits(value, annotated):
            allowed = words(annotated) + (f" or {json.dumps(NONE)}" if unlimited else "")
            raise ValueError(f"{path}: {key} is {value!r:.100}: it must be {allowed}")
        values[names[key]] = value
    return values


def write_settings(path: Path, settings: Settings, *, leave_out: Collection[str], comment: str) -> None:
    """Replace a file by one that `read_settings` reads back as these settings.

    Args:
        path: The file.
        settings: An instance of the dataclass.
        leave_out: Fields that are not written.
        comment: Lines for the head of the file.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [f"# {line}\n" for line in comment.splitlines()]
    for key, value in changed(settings, leave_out=leave_out, defaults=True).items():
        lines.append(f"{key} = {value}\n")
    # A path that is not UTF-8 cannot stand in TOML; it gets question marks.
    replace_file(path, "".join(lines).encode(errors="replace"))


def changed(settings: Settings, *, leave_out: Collection[str] = (), defaults: bool = False) -> dict[str, str]:
    """Return the settings that differ from the defaults, or all, as texts of TOML by key.

    What is None by default and in the settings has no text, and is left out.
    """
    texts = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in leave_out or (value == field.default and (value is None or not defaults)):
            continue
        texts[field.name.replace("_", "-")] = _text(value)
    return texts


def _text(value: object) -> str:
    if value is None:
        return json.dumps(NONE)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str | Path):
        # TOML escapes as JSON does, and DEL too.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_text, value))}]"
    raise TypeError(f"{value!r} has no text in TOML")
