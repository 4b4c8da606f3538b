"""`store_option`: the option `--store` of all commands that take URLs. `store_options` returns its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

_KEPT = "fastrecord.store_options"


def _keep(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    pairs = [value.partition("=") for value in values]
    if not all(name and equals for name, equals, _ in pairs):
        raise click.BadParameter("it is NAME=VALUE", ctx, param)  # what was given may be secret
    ctx.meta[_KEPT] = {name: value for name, _, value in pairs}


store_option = click.Option(
    ["--store"],
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_keep,
    metavar="NAME=VALUE",
    help="An option of the object store, such as profile, region or endpoint; docs/stores.md lists them. May be "
    "repeated.",
)


def store_options(ctx: click.Context | None) -> Mapping[str, Any]:
    """Return the options that a command was given; eager, so arguments may ask for them."""
    options: Mapping[str, Any] = {} if ctx is None else ctx.meta.get(_KEPT, {})
    return options
