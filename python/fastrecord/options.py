"""`derived` makes the options of a command from a function or class; `made` makes the object from the options.

The name, type, default and docstring of a parameter become an option's. So an option is declared and
documented once, for Python, the command line and settings in files. The function or class alone
checks values.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from fastrecord.checks import byte_count
from fastrecord.names import as_key, readable
from fastrecord.store.address import Url
from fastrecord.store.option import store_options

Command = Callable[..., Any]
Source = Callable[..., Any]
_Object = TypeVar("_Object")
# Where the command line has another name, a short one, or a value that its type does not describe.
_FLAGS = {"mapping": "map", "types": "type", "settings": "set", "classes": "class", "class_name": "class"}
_SHORT = {"out": "-o", "format": "-f", "batch_size": "-b", "threads": "-j", "print_freq": "-p"}
_METAVARS = {"mapping": "NAME=FIELD,...", "classes_from": "FILE.frec", "where": "CONDITION", "drop": "FIELD"}
_METAVARS |= dict.fromkeys(("field", "classes", "class_name", "format"), "NAME")
_METAVARS |= {"fractions": "SHARE,...", "names": "NAME,...", "records": "LIST", "lost": "LIST"}
# Parameters whose names in a message mean them, although they are plain words.
_WORDS = ("raw", "quality", "shards", "staging", "fractions")
# Given several times: the texts may have commas.
_REPEATED = ("classes", "drop", "val")
# Sizes in pixels, not in bytes.
_PIXELS = ("eval_size",)
# Stands for None where that is not the default.
NONE = "none"


def derived(
    source: Source,
    *names: str,
    negatable: bool = False,
    words: Mapping[str, str] | None = None,
    **changes: Mapping[str, Any],
) -> Callable[[Command], Command]:
    """Add an option for each of some parameters of a function or class, or for all with a documented meaning.

    The command gets them by their names; one that is not given is None, or empty.

    Args:
        source: The function or class.
        names: The parameters.
        negatable: Whether flags can also be turned off, as `--no-flag`. Flags that may be None always can.
        words: What the help calls parameters that are no options, such as "OUT".
        changes: Attributes of single options that differ, by parameter.
    """
    called = {name: flag(name) for name in texts(source)} | dict(words or {})

    def add(command: Command) -> Command:
        for name in reversed(names or list(texts(source))):
            text = re.sub(r"`(\w+)`", lambda found: called.get(found[1], found[0]), texts(source)[name])
            for option in reversed(_options(source, name, text, changes.get(name, {}), negatable)):
                option(command)
        return command

    return add


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given to a command."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in options.items()
        if value not in (None, (), {}) or source(name) is ParameterSource.COMMANDLINE
    }


def made(kind: type[_Object], options: dict[str, Any], **more: Any) -> _Object:
    """Take the fields of a class out of the options of a command; return the object.

    Raises:
        UsageError: a value is not allowed; the message names options as the command line does.
    """
    fields = given({name: options.pop(name) for name in list(options) if name in texts(kind)})  # type: ignore[arg-type]
    if "mode" in fields:
        if len(set(fields["mode"])) > 1:
            raise click.UsageError(f"give one of {', '.join(f'--{mode}' for mode in fields['mode'])}")
        fields["mode"] = fields["mode"][0]
    try:
        return kind(**fields, **more)
    except (TypeError, ValueError) as error:
        raise click.UsageError(as_flags(str(error), kind)) from error


def as_flags(text: str, *sources: Source) -> str:
    """Return a message about parameters with their names on the command line."""
    known = [name for source in sources for name in texts(source)]
    names = "|".join(name for name in known if "_" in name or name in _WORDS or text.startswith(f"{name} "))
    # Not in a path.
    return re.sub(rf"(?<![\w/.-])({names})(?![\w/-]|\.\w)", lambda found: flag(found[0]), text) if names else text


@cache
def parameters(source: Source) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class; of `**options: Unpack[...]` its keys, None or False by default."""
    found = dict(inspect.signature(source).parameters)
    if options := _shared(source):
        del found["options"]
        for name, kind in get_type_hints(options).items():
            default = False if kind is bool else None
            found[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    return found


def _shared(source: Any) -> Any:
    """Return the options that a function shares with others, as their `TypedDict`; None if it has none."""
    annotation = getattr(source, "__annotations__", {}).get("options", "")
    return get_args(_evaluated(annotation, source))[0] if str(annotation).startswith("Unpack[") else None


def _evaluated(annotation: Any, source: Source) -> Any:
    # Alone: other parameters may have types that are imported for type checkers only.
    alone = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(alone, vars(sys.modules[source.__module__]))["it"]


@cache
def texts(source: Hashable) -> dict[str, str]:
    """Return the documentation of each parameter of a function or class, from its docstring."""
    found = _texts(source)
    if options := _shared(source):
        del found["options"]
        found |= _texts(options)
    return found


def _texts(source: Any) -> dict[str, str]:
    section = re.split(r"(?m)^(?:Args|Attributes):\n", inspect.getdoc(source) or "")[-1].partition("\n\n")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if match := re.fullmatch(r" {4}(\w+): (.*)", line):
            name, found[match[1]] = match[1], match[2]
        elif found:
            found[name] += f" {line.strip()}"
    return found


def flag(name: str) -> str:
    """Return a parameter's name on the command line."""
    return f"--{_FLAGS.get(name, name).replace('_', '-')}"


@cache
def hint(source: Source, name: str) -> tuple[Any, Any]:
    """Return the annotated type of a parameter, and its default."""
    parameter = parameters(source)[name]
    return _evaluated(parameter.annotation, source), parameter.default


def fits(value: object, hint: Any) -> bool:
    """Whether a value of a settings file (or None) is of an annotated type."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(fits(value, each) for each in get_args(hint))
    if kind is Literal:
        return value in get_args(hint)
    if kind is Sequence:
        return isinstance(value, list) and all(fits(each, get_args(hint)[0]) for each in value)
    # True is an int to Python, and 1 a good float to people.
    return type(value) is kind or (kind is float and type(value) is int)


def words(hint: Any) -> str:
    """Return what a value of an annotated type is, for an error."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        kinds = [each for each in get_args(hint) if each not in (NoneType, Path)]
        return " or ".join(words(each) for each in kinds if each is not int or float not in kinds)
    if kind is Literal:
        return f"one of {', '.join(map(json.dumps, get_args(hint)))}"
    if kind is Sequence:
        return f"a list, each {words(get_args(hint)[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}[kind]


def _read(text: str, hint: Any) -> Any:
    """Return a text as a value of an annotated type.

    Raises:
        ValueError: it is none.
    """
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        order = (NoneType, int, float)
        for each in sorted(get_args(hint), key=lambda each: order.index(each) if each in order else len(order)):
            try:
                return _read(text, each)
            except ValueError:
                continue
    elif kind in (Sequence, Iterable):
        return [_read(part.strip(), get_args(hint)[0]) for part in text.split(",")]
    elif kind in (int, float, str) or (kind is NoneType and text == NONE):
        return None if kind is NoneType else kind(text)
    raise ValueError(text)


class _Value(click.types.StringParamType):
    """A value of an annotated type; texts are UTF-8 in every locale."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        self._hint = Union[tuple(kinds)]  # noqa: UP007 - of kinds that are known here only
        self.name = "NUMBER" if float in kinds and str not in kinds else "N" if int in kinds else "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return _read(readable(value), self._hint) if isinstance(value, str) else value
        except ValueError:
            none = f" or {NONE}" if NoneType in get_args(self._hint) else ""
            self.fail(f"{value!r} is not {words(self._hint)}{none}", param, ctx)


class _Size(click.types.StringParamType):
    """Bytes: 500MB, 4GiB or a plain number."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        try:
            return byte_count(param.opts[0] if param else "size", value)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


class _PathOrUrl(click.Path):
    """A path, or a URL, whose secrets and store options are hidden in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if not isinstance(path, str) or "://" not in path:
            return path
        return Url(as_key(path), store_options(ctx))


# Do not check readability here: the command reports unreadable files one by one and continues with
# the rest.
path_type = _PathOrUrl(readable=False)


def _options(
    source: Source, name: str, text: str, changes: Mapping[str, Any], negatable: bool
) -> list[Callable[[Command], Command]]:
    """Return the options for a parameter."""
    kind, default = hint(source, name)
    if name == "mode":
        modes = [(mode, what) for mode, what in re.findall(r'"(\w+)": ([^"]*)', text) if mode != default]
        return [
            click.option(f"--{mode}", "mode", flag_value=mode, multiple=True, type=str, help=_sentence(what))
            for mode, what in modes
        ]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    origins = [get_origin(kind) or kind for kind in kinds]
    more: dict[str, Any] = {"default": None, "metavar": _METAVARS.get(name)}
    if default is inspect.Parameter.empty and not isinstance(source, type):
        more = {"required": True, "metavar": more["metavar"]}
    flags = [flag(name), *([_SHORT[name]] if name in _SHORT else [])]
    if bool in kinds:
        negatable = negatable or NoneType in kinds
        more = {"is_flag": True, "default": None}
        if negatable or default is True:
            flags = [f"{flag(name)}/--no-{flag(name)[2:]}" if negatable else f"--no-{flag(name)[2:]}"]
            more |= {} if negatable else {"callback": lambda _, __, off: False if off else None}
    elif Mapping in origins:
        more |= {
            "multiple": True,
            "callback": partial(_pairs, or_names=Sequence in origins),
            "metavar": more["metavar"] or "NAME=VALUE",
        }
    elif Literal in origins:
        more["type"] = click.Choice(get_args(kinds[origins.index(Literal)]))
    elif name in _REPEATED:
        more |= {"multiple": True, "type": _Value([str])}
    elif name.endswith("_size") and name not in _PIXELS and int in kinds and default is None:
        more["type"] = _Size()
        text = f"{_sentence(text)} SIZE is a number of bytes, or with a unit, such as 4GiB"
    elif any(isinstance(origin, type) and issubclass(origin, os.PathLike) for origin in origins):
        more |= {"type": path_type, "metavar": more["metavar"] or "PATH"}
    else:
        more["type"] = _Value([each for each in kinds if each is not NoneType or default is not None])
    if "multiple" in more:
        text = f"{_sentence(text)} May be repeated"
    default = changes.get("default", default)
    if isinstance(default, str | int | float) and not isinstance(default, bool) and "efault" not in text:
        text += f" Default: {default}."
    return [click.option(*flags, name, **{**more, "help": _sentence(text), **changes})]


def _sentence(text: str) -> str:
    text = text.strip().rstrip(";.")
    return f"{text[:1].upper()}{text[1:]}."


def _pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...], *, or_names: bool = False
) -> dict[str, str] | list[str]:
    """Parse NAME=VALUE,NAME=VALUE, given once or several times; a value may have commas: arrays=x,y.

    With `or_names` also NAME,NAME, which becomes a list.
    """
    alone = or_names and bool(values) and not any("=" in text for text in values)
    pairs: dict[str, str] = {}
    for text in map(readable, values):
        for item in re.split("," if alone else r",(?=[^,=]+=)", text):
            name, equals, value = (part.strip() for part in item.partition("="))
            if not (name and (alone or (equals and value))):
                raise click.BadParameter(f"{item!r} is not NAME=VALUE", ctx, param)
            if name in pairs:
                raise click.BadParameter(f"{name!r} is given twice", ctx, param)
            pairs[name] = value
    return list(pairs) if alone else pairs
