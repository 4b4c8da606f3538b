"""The subcommand verify."""

from __future__ import annotations

import json
from typing import Any

import click

from fastrecord._core import FastRecordError, Reader
from fastrecord.cli import describe
from fastrecord.cli.options import quiet_option
from fastrecord.cli.text import bytes_text, printable, progress_of_total
from fastrecord.errors import codes_of


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option(
    "--deep",
    is_flag=True,
    help="Look into the values, too: decode every image, all of its pixels, decompress what is compressed, check "
    "texts, JSON and lists. Takes as long as an epoch of decoding without crops.",
)
@quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object a file and line: file, ok, records, bytes, errors, damaged, codes (of the errors), "
    "decoded, undecoded, tail_bytes.",
)
@click.pass_context
def verify(ctx: click.Context, files: tuple[str, ...], deep: bool, quiet: bool, as_json: bool) -> None:
    """Read each FILE from end to end and check every checksum, record by record. Changes nothing.

    Exit status: 0 all are good; 1 one is damaged or can not be read; 2 wrong usage. Each damage is named by record and
    field, and by key where there is one, the first 1,000 of a file. Bytes behind the last commit (a killed writer
    leaves some) are reported and are no damage.
    """
    good = True
    for file in files:
        result = _verify(file, deep=deep, quiet=quiet)
        result["codes"] = codes_of(result["errors"])
        good = good and result["ok"]
        if as_json:
            click.echo(json.dumps(result))
            continue
        keys = {value["error"]: value["key"] for value in result["damaged"]}
        for error in result["errors"]:
            key = keys.get(error)
            click.echo(f"error: {printable(error)}{'' if key is None else f' (key {printable(key)})'}", err=True)
        images = f", {result['decoded']:,} images decoded" if deep else ""
        if result["undecoded"]:
            images += f", {result['undecoded']:,} of kinds that are not decoded here: only their checksums were checked"
        if result["ok"]:
            size = bytes_text(result["bytes"])
            click.echo(f"{file}: good: {result['records']:,} records, {size}{images}{_tail(result)}")
        else:
            count = len(result["errors"])
            click.echo(f"{file}: damaged: {count:,} error{'s' if count > 1 else ''}{_tail(result)}")
    if not good:
        ctx.exit(1)


def _verify(file: str, *, deep: bool, quiet: bool) -> dict[str, Any]:
    try:
        with Reader(file) as reader, progress_of_total(quiet=quiet, unit="B", unit_scale=True, desc=file) as show:
            return {"file": file} | reader.verify(progress=show, deep=deep)
    except (FastRecordError, OSError) as err:
        nothing = {"records": 0, "bytes": 0, "damaged": [], "decoded": 0, "undecoded": 0, "tail_bytes": 0}
        return {"file": file, "ok": False, "errors": [describe(err)]} | nothing


def _tail(result: dict[str, Any]) -> str:
    return f"; {result['tail_bytes']:,} bytes behind the last commit" if result["tail_bytes"] else ""
