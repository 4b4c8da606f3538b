"""`derived`: the options of a command, from the class that holds them.

A field's name, type, default and docstring become an option's. So an option is declared and
documented once, for Python and the command line.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from fastrecord.cli.options import parse_pairs, parse_settings, path_type, text_type
from fastrecord.cli.text import parse_size

_Command = Callable[..., Any]
_Object = TypeVar("_Object")
# Name of a field -> its option, where that has another name. Names of fields -> what a value is.
_FLAGS = {"mapping": "map", "types": "type", "settings": "set"}
_METAVARS = {"mapping": "NAME=FIELD,...", "classes_from": "FILE.frec", "shard_size": "SIZE", "staging": "DIR"}
_METAVARS |= {
    "short_side": "PX",
    "max_side": "PX",
    "quality": "Q",
    "crop_ready": "WHAT",
    "format": "NAME",
    "sixteen_bit": "scale|clip",
}


def derived(kind: type, *names: str, **defaults: Any) -> Callable[[_Command], _Command]:
    """Add an option for each of some fields of a class, or for all. The command gets them by their names."""

    def add(command: _Command) -> _Command:
        options = [each for name in names or texts(kind) for each in _options(kind, name, defaults.get(name))]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def made(kind: type[_Object], options: dict[str, Any], **more: Any) -> _Object:
    """Take the fields of a class out of the options of a command; return the object.

    Raises:
        UsageError: a value is not allowed; the message names options as the command line does.
    """
    given = {name: options.pop(name) for name in list(options) if name in kind.__annotations__}
    if "mode" in given:
        if len(set(given["mode"])) > 1:
            raise click.UsageError(f"give one of {', '.join(f'--{mode}' for mode in given['mode'])}")
        given["mode"] = given["mode"][0] if given["mode"] else "create"
    if "mapping" in given:
        given["mapping"] = given["mapping"] or None
    try:
        return kind(**given, **more)
    except (TypeError, ValueError) as err:
        raise click.UsageError(as_flags(str(err), kind)) from err


def as_flags(text: str, *kinds: type) -> str:
    """Return a message about fields of classes with their names on the command line."""
    names = [name for kind in kinds for name in texts(kind)]
    long = [name for name in names if "_" in name or name in ("raw", "quality", "shards", "staging")]
    return re.sub(rf"\b({'|'.join(long)})\b", lambda found: _flag(found[0]), text) if long else text


@cache
def texts(kind: type) -> dict[str, str]:
    """Return the documentation of each field of a class, from its docstring."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if match := re.fullmatch(r" {4}(\w+): (.*)", line):
            name, found[match[1]] = match[1], match[2]
        else:
            found[name] += f" {line.strip()}"
    return found


def _flag(name: str) -> str:
    return f"--{_FLAGS.get(name, name).replace('_', '-')}"


@cache
def _hints(kind: type) -> dict[str, Any]:
    return dict(get_type_hints(kind))


@cache
def _options(kind: type, name: str, default: Any) -> list[Callable[[_Command], _Command]]:
    """Return the options for a field; both commands of a module may have them."""
    field = next(field for field in fields(kind) if field.name == name)
    text = re.sub(r"`(\w+)`", lambda found: _flag(found[1]) if found[1] in texts(kind) else found[0], texts(kind)[name])
    hint = _hints(kind)[name]
    if name == "mode":
        modes = [(mode, what) for mode, what in re.findall(r'"(\w+)": ([^"]*)', text) if mode != field.default]
        return [
            click.option(f"--{mode}", "mode", flag_value=mode, multiple=True, type=str, help=_sentence(what))
            for mode, what in modes
        ]
    more: dict[str, Any] = {"help": _sentence(text), "metavar": _METAVARS.get(name)}
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if kinds == (bool,):
        more |= {"is_flag": True, "metavar": None}
    elif any((get_origin(each) or each) is Mapping for each in kinds):
        callback = parse_settings if name == "settings" else parse_pairs
        more |= {"multiple": True, "type": text_type, "callback": callback, "metavar": more["metavar"] or "NAME=VALUE"}
    elif literals := [each for each in kinds if get_origin(each) is Literal]:
        more |= {"type": click.Choice(get_args(literals[0])), "metavar": None}
    elif name.endswith("_size"):
        more |= {"callback": parse_size}
    elif int in kinds:
        more |= {"type": int, "metavar": more["metavar"] or "N"}
    elif any(each is os.PathLike or get_origin(each) is os.PathLike for each in kinds):
        more |= {"type": path_type}
    if default is not None or field.default not in (MISSING, None, False):
        more |= {"default": field.default if default is None else default, "show_default": True}
    return [click.option(_flag(name), name, **more)]


def _sentence(text: str) -> str:
    text = text.strip().rstrip(";.")
    return f"{text[:1].upper()}{text[1:]}."


def split_paths(paths: Sequence[str], out: str | None) -> tuple[list[str], str | None]:
    """Return the sources and the output of SRC... [OUT]."""
    given = list(paths)
    if out is None and len(given) > 1:
        out = given.pop()
    if not given:
        raise click.UsageError("Missing argument 'SRC'.")
    return given, out
