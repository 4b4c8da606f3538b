"""The subcommand index: options and report. Indexes nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fastrecord._core import FastRecordError
from fastrecord.cli import describe
from fastrecord.cli.options import path_type, quiet_option, text_type
from fastrecord.cli.text import bytes_text, progress_of_total, say

if TYPE_CHECKING:
    from fastrecord.files.indexing import IndexSummary


@click.command()
@click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")
@click.option("--field", type=text_type, metavar="NAME", help="Field of type image to index. Default: all of them.")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Make all indexes again, which replaces damaged ones. Default: leave images alone that have one.",
)
@quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per file and line: path, fields, images, indexed, present, without, bytes, seconds.",
)
@click.pass_context
def index(
    ctx: click.Context, files: tuple[str, ...], field: str | None, rebuild: bool, quiet: bool, as_json: bool
) -> None:
    """Add the crop index to the JPEGs of each FILE, so that a crop is decoded without most of its image.

    The images keep their bytes, and nothing in FILE is rewritten: it grows by the index. Images that are crop-ready,
    small, or of a kind without an index are left alone. Works on all CPUs.

    A commit every 20 seconds makes the work durable: after a kill or Ctrl-C FILE is good, and the same command
    continues. Open readers are not disturbed, and see the index when they open FILE again.

    Exit status: 0 all files are indexed; 1 an error; 2 wrong usage; 130 Ctrl-C.
    """
    from fastrecord.files.indexing import index

    failed = False
    for file in files:
        try:
            with progress_of_total(quiet=quiet, unit=" images", desc=file) as show:
                summary = index(file, field=field, rebuild=rebuild, progress=show)
        except (FastRecordError, OSError) as err:
            say(f"error: {describe(err)}", err=True)
            failed = True
            continue
        say(json.dumps(summary.to_dict()) if as_json else _line(summary))
    if failed:
        ctx.exit(1)


def _line(summary: IndexSummary) -> str:
    counts = f"{summary.indexed:,} indexed"
    counts += f", {summary.present:,} before" if summary.present else ""
    counts += f", {summary.without:,} without an index" if summary.without else ""
    speed = f"{summary.seconds:.1f} s, {summary.indexed / max(summary.seconds, 1e-9):,.0f} images/s"
    return f"{summary.path}: {summary.images:,} images: {counts}; {bytes_text(summary.bytes)}, {speed}"
