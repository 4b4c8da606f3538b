"""The subcommand repair: options and report. Repairs nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fastrecord.cli.options import path_type, quiet_option, summary_option
from fastrecord.cli.text import bytes_text, progress_of_total, say

if TYPE_CHECKING:
    from fastrecord.operations.repair import RepairSummary

# Further lost records are counted, and are in the list file.
_SHOWN = 20


@click.command()
@click.argument("bad", type=path_type)
@click.argument("out", type=path_type)
@click.option(
    "--lost",
    type=path_type,
    metavar="LIST",
    help="File to list what is lost, a JSON object a line: record, field, key, why. Not written if nothing is. "
    "[default: OUT.lost.jsonl]",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT and LIST if they exist, at the end: until then the old file stays, so both need room. Default: "
    "refuse.",
)
@quiet_option
@summary_option
@click.pass_context
def repair(
    ctx: click.Context, bad: str, out: str, lost: str | None, overwrite: bool, quiet: bool, as_json: bool
) -> None:
    """Write the records of BAD that can be saved into OUT, in their order, and list the others. BAD is only read.

    A record is saved whole, as it is stored, or is lost: one damaged value is enough. Taken is the newest commit whose
    footer, directory and metadata can be read; index blocks that are damaged are taken from older commits where these
    have them.

    If nothing is damaged nothing is written. Until all is copied nothing can be read of OUT; after an error or Ctrl-C
    it is absent (with --overwrite, the old one).

    Exit status: 0 every record is saved, or BAD is good; 1 records are lost, or nothing can be saved; 2 wrong usage;
    130 Ctrl-C.
    """
    from fastrecord.operations.repair import repair as repair_file

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
        say(f"lost: more, all are in {summary.lost_list}", err=True)
    if summary.unknown:
        say(f"lost: what was committed behind commit {summary.commit}: nothing tells how many records", err=True)
    if summary.out is None:
        tail = ""
        if summary.tail_bytes:
            tail = f"; {summary.tail_bytes:,} bytes behind the last commit, which the next writer cuts off"
        say(f"{summary.path}: good, nothing to repair, nothing was written{tail}")
        return
    speed = bytes_text(summary.bytes / max(summary.seconds, 1e-9))
    listed = f", listed in {summary.lost_list}" if summary.lost_list is not None else ""
    incomplete = "" if summary.complete else "; its import is not complete"
    say(
        f"{summary.out}: {summary.saved:,} of {summary.records:,} records saved, {summary.lost:,} lost{listed}; "
        f"{bytes_text(summary.bytes)}, {summary.seconds:.1f} s, {speed}/s{incomplete}"
    )
