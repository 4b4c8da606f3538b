"""Options that several subcommands share."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from fastrecord.names import as_key, readable
from fastrecord.store.address import Url
from fastrecord.store.option import store_options


class NumberRange(click.FloatRange):
    """A range without nan. click accepts nan, which is neither below nor above the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


_T = TypeVar("_T")


class _PathOrUrl(click.Path):
    """A path, or a URL, whose secrets and store options are hidden in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and return the path."""
        path = super().convert(value, param, ctx)
        if not isinstance(path, str) or "://" not in path:
            return path
        return Url(as_key(path), store_options(ctx))


class _Text(click.types.StringParamType):
    """A text such as a class, a field or a condition, which is UTF-8 in every locale."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert and return the text."""
        return readable(super().convert(value, param, ctx))


text_type = _Text()
# Do not check readability here: the command reports unreadable files one by one and continues with
# the rest.
path_type = _PathOrUrl(readable=False)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar. Without a terminal on stderr there is none anyway."
)
summary_option = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")


def output(metavar: str = "OUT", *, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take its output as the last argument or as -o; the function gets it as `out`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("out", type=path_type, required=False, metavar=metavar if required else f"[{metavar}]")
        @click.option("--out", "-o", "named", type=path_type, metavar=metavar, help=f"Another way to give {metavar}.")
        @wraps(command)
        def run(*args: Any, out: str | None, named: str | None, **options: Any) -> Any:
            if out is not None and named is not None:
                raise click.UsageError(f"{metavar} is given twice")
            if required and out is None and named is None:
                raise click.UsageError(f"Missing argument '{metavar}'.")
            return command(*args, out=named if out is None else out, **options)

        return run

    return add


def parse_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...] | str | None) -> dict[str, str]:
    """Parse NAME=VALUE,NAME=VALUE, given once or several times."""
    given = [values] if isinstance(values, str) else list(values or ())
    return _pairs(ctx, param, [item for text in given for item in _split(text)])


def parse_settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE,NAME=VALUE, where a value may be a list: arrays=x,y."""
    items: list[str] = []
    for item in (item for text in values for item in _split(text)):
        if "=" in item or not items:
            items.append(item)
        else:
            items[-1] += f",{item}"
    return _pairs(ctx, param, items)


settings_option = click.option(
    "--set",
    "settings",
    type=text_type,
    multiple=True,
    callback=parse_settings,
    metavar="NAME=VALUE",
    help="A setting of the format; docs/formats.md lists them. May be repeated.",
)


def _pairs(ctx: click.Context, param: click.Parameter, items: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", ctx, param)
        if name.strip() in pairs:
            raise click.BadParameter(f"{name.strip()!r} is given twice", ctx, param)
        pairs[name.strip()] = value.strip()
    return pairs


def _split(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


def options_of(*kinds: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command an option for each field of dataclasses of options; one that is not given is None.

    Names, types and defaults are the fields'. The help comes from "Attributes" of the class's docstring.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for kind in reversed(kinds):
            hints = get_type_hints(kind)
            text = inspect.getdoc(kind) or ""
            about = dict(
                re.findall(r"^    (\w+): (.+(?:\n        .+)*)", text.partition("Attributes:")[2], re.MULTILINE)
            )
            for field in reversed(fields(kind)):
                command = _option(field, hints[field.name], " ".join(about[field.name].split()))(command)
        return command

    return add


def _option(field: Field[Any], hint: Any, about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    name = field.name.replace("_", "-")
    about = re.sub(r"`([a-z_]+)`", lambda match: f"--{match[1].replace('_', '-')}", about).replace("`", "")
    if field.default is True:
        # The option is given to turn it off.
        return click.option(
            f"--no-{name}", field.name, is_flag=True, callback=lambda _, __, off: False if off else None, help=about
        )
    if field.default not in (None, MISSING) and "Default" not in about:
        about += f" Default: {field.default}."
    kinds = set(get_args(hint)) or {hint}
    if get_origin(hint) is Literal:
        return click.option(f"--{name}", field.name, type=click.Choice(get_args(hint)), help=about)
    kind: Any = next(kind for kind in (str, float, int) if kind in kinds)
    metavar = {str: "TEXT", float: "NUMBER", int: "N"}[kind]
    return click.option(f"--{name}", field.name, type=kind, metavar=metavar, help=about)


def made(kind: type[_T], given: Mapping[str, Any]) -> _T:
    """Return the options of a class that were given to a command."""
    return kind(**{field.name: given[field.name] for field in fields(kind) if given.get(field.name) is not None})  # type: ignore[arg-type]
