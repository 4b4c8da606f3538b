"""The subcommand repair: options and report. Repairs nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fastrecord.cli.options import output, path_type, quiet_option, summary_option
from fastrecord.cli.text import bytes_text, progress_of_total, say

if TYPE_CHECKING:
    from fastrecord.files.salvage import RepairSummary

# Further lost records are counted, and are in the list file.
_SHOWN = 20


@click.command()
@click.argument("bad", type=path_type)
@output()
@click.option(
    "--lost",
    type=path_type,
    metavar="LIST",
    help="File that lists the losses, one JSON object per line: record, field, key, why. Not written without losses. "
    "[default: OUT.lost.jsonl]",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT and LIST once all is copied. Old and new files need room together. Default: refuse existing "
    "files.",
)
@quiet_option
@summary_option
@click.pass_context
def repair(
    ctx: click.Context, bad: str, out: str, lost: str | None, overwrite: bool, quiet: bool, as_json: bool
) -> None:
    """Write the records of BAD that can be saved into OUT, in their order, and list the others. BAD is only read.

    Each record is saved whole, as it is stored, or is lost: one damaged value is enough. The newest commit with a
    readable footer, directory and metadata counts.

    If nothing is damaged, nothing is written. OUT can be read only when everything is copied. After an error or Ctrl-C
    it is absent, or with --overwrite the old file.

    Exit status: 0 every record is saved, or BAD is good; 1 records are lost, or nothing can be saved; 2 wrong usage;
    130 Ctrl-C.
    """
    from fastrecord.files.salvage import repair as repair_file

    with progress_of_total(quiet=quiet, unit="B", unit_scale=True, desc=bad) as show:
        summary = repair_file(bad, out, lost=lost, overwrite=overwrite, progress=show)
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        _print(summary)
    if summary.lost or summary.unknown:
        ctx.exit(1)


def _print(summary: RepairSummary) -> None:
    for note in summary.notes:
        say(f"damage: {note}", err=True)
    for value in summary.values[:_SHOWN]:
        key = "" if value.key is None else f" (key {value.key})"
        say(f"lost: record {value.record}{key}: {value.why}", err=True)
    if len(summary.values) > _SHOWN:
        say(f"lost: more; {summary.lost_list} lists all", err=True)
    if summary.unknown:
        say(f"lost: what was committed after commit {summary.commit}: an unknown number of records", err=True)
    if summary.out is None:
        tail = ""
        if summary.tail_bytes:
            tail = f"; {summary.tail_bytes:,} bytes after the last commit, which the next writer cuts off"
        say(f"{summary.path}: good, nothing to repair, nothing was written{tail}")
        return
    speed = bytes_text(summary.bytes / max(summary.seconds, 1e-9))
    listed = f", listed in {summary.lost_list}" if summary.lost_list is not None else ""
    incomplete = "" if summary.complete else "; its packing is not complete"
    say(
        f"{summary.out}: {summary.saved:,} of {summary.records:,} records saved, {summary.lost:,} lost{listed}; "
        f"{bytes_text(summary.bytes)}, {summary.seconds:.1f} s, {speed}/s{incomplete}"
    )
