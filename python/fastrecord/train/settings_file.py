"""Settings as TOML: read for `--config`, written into a run's folder. Checks keys and types only."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
import types
from collections.abc import Collection, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Union, get_args, get_origin, get_type_hints

# TOML has no null: this text says "no limit" where that is not the default.
_NONE = "none"


class Settings(Protocol):
    """A dataclass of settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


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
    hints = get_type_hints(kind)
    names = {field.name.replace("_", "-"): field for field in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in names:
            near = difflib.get_close_matches(key.replace("_", "-").lower(), names, n=1)
            guess = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"{path}: unknown key {key!r}{guess} (the keys are {', '.join(names)})")
        field = names[key]
        hint = hints[field.name]
        # "none" where None is not the default, which a file leaves out.
        unlimited = field.default is not None and _fits(None, hint)
        if unlimited and value == _NONE:
            value = None
        elif not _fits(value, hint):
            words = _words(hint) + (f" or {json.dumps(_NONE)}" if unlimited else "")
            raise ValueError(f"{path}: {key} is {value!r:.100}: it must be {words}")
        values[field.name] = value
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
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # A path that is not UTF-8 cannot stand in TOML; it gets question marks.
        temporary.write_bytes("".join(lines).encode(errors="replace"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    temporary.replace(path)


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
        return json.dumps(_NONE)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str | Path):
        # TOML escapes as JSON does, and DEL too.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_text, value))}]"
    raise TypeError(f"{value!r} has no text in TOML")


def _fits(value: object, hint: Any) -> bool:
    """Whether a value of TOML (or None) is of an annotated type."""
    kind = get_origin(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if kind is Literal:
        return value in get_args(hint)
    if kind is Sequence:
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    # True is an int to Python, and 1 a good float to people.
    return type(value) is hint or (hint is float and type(value) is int)


def _words(hint: Any) -> str:
    kind = get_origin(hint)
    if kind in (Union, types.UnionType):
        kinds = [each for each in get_args(hint) if each not in (types.NoneType, Path)]
        return " or ".join(_words(each) for each in kinds if each is not int or float not in kinds)
    if kind is Literal:
        return f"one of {', '.join(map(json.dumps, get_args(hint)))}"
    if kind is Sequence:
        return f"a list, each {_words(get_args(hint)[0])}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
    return words[hint]
