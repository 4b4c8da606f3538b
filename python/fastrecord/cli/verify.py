"""The subcommand verify: prints verification reports. Verifies nothing itself."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.cli import describe
from fastrecord.cli.options import path_type, quiet_option
from fastrecord.cli.text import bytes_text, progress_of_total, say
from fastrecord.errors import codes_of, with_more


@click.command()
@click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")
@click.option(
    "--deep",
    is_flag=True,
    help="Also check the values: decode all pixels of every image, decompress compressed values, check texts, JSON and "
    "lists. Takes as long as an epoch of decoding without crops.",
)
@quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per file and line: file, ok, records, bytes, errors, damaged, codes (of the errors), "
    "decoded, undecoded, tail_bytes.",
)
@click.pass_context
def verify(ctx: click.Context, files: tuple[str, ...], deep: bool, quiet: bool, as_json: bool) -> None:
    """Read each FILE from end to end and check every checksum, record by record. Changes nothing.

    Damage is reported by record and field, and by key if there is one, up to 1,000 values per file. Bytes after the
    last commit, which a killed writer leaves, are reported but are not damage.

    Exit status: 0 all files are good; 1 a file is damaged or cannot be read; 2 wrong usage.
    """
    good = True
    for file in files:
        result, opened = _verify(file, deep=deep, quiet=quiet)
        result["codes"] = codes_of(result["errors"])
        good = good and result["ok"]
        if as_json:
            say(json.dumps(result))
            continue
        keys = {value["error"]: value["key"] for value in result["damaged"]}
        for error in result["errors"]:
            key = keys.get(error)
            line = error if key is None else with_more(error, f" (key {key})")
            say(f"error: {line}", err=True)
        images = f", {result['decoded']:,} images decoded" if deep else ""
        if result["undecoded"]:
            images += (
                f", {result['undecoded']:,} of kinds that fastrecord does not decode: only their checksums were checked"
            )
        if result["ok"]:
            size = bytes_text(result["bytes"])
            say(f"{file}: good: {result['records']:,} records, {size}{images}{_tail(result)}")
        elif not opened:
            say(f"{file}: cannot be read")
        else:
            count = len(result["errors"])
            say(f"{file}: damaged: {count:,} error{'s' if count > 1 else ''}{_tail(result)}")
    if not good:
        ctx.exit(1)


def _verify(file: str, *, deep: bool, quiet: bool) -> tuple[dict[str, Any], bool]:
    """Return the report, and whether the file could be read, even if it is damaged."""
    try:
        with Reader(file) as reader, progress_of_total(quiet=quiet, unit="B", unit_scale=True, desc=file) as show:
            return {"file": file} | reader.verify(progress=show, deep=deep), True
    except (FastRecordError, OSError) as err:
        nothing = {"records": 0, "bytes": 0, "damaged": [], "decoded": 0, "undecoded": 0, "tail_bytes": 0}
        damaged = isinstance(err, CorruptFileError) and os.path.isfile(file)
        return {"file": file, "ok": False, "errors": [describe(err)]} | nothing, damaged


def _tail(result: dict[str, Any]) -> str:
    return f"; {result['tail_bytes']:,} bytes after the last commit" if result["tail_bytes"] else ""
