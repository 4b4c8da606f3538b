"""The commands that choose records, or bring them elsewhere: select, extract, export, copy, manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from fastrecord.cli.command import arguments, command, json_option, quiet_option
from fastrecord.cli.rewrite import copied
from fastrecord.cli.text import bytes_text, progress_of_total, say, speed
from fastrecord.files import extraction, rewrite, transfer
from fastrecord.files.export import export as export_records
from fastrecord.files.manifest import check_manifest, clean_manifest, write_manifest
from fastrecord.options import derived, path_type

if TYPE_CHECKING:
    from fastrecord.files.copy_job import RewriteSummary
    from fastrecord.files.export import ExportSummary
    from fastrecord.files.extraction import ExtractSummary
    from fastrecord.files.manifest import ManifestSummary


def _keys(ctx: click.Context, param: click.Parameter, path: str | None) -> list[str] | None:  # noqa: ARG001
    """Read a file with a key on each line."""
    if path is None:
        return None
    with click.open_file(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line for line in file.read().split("\n") if line]


def _ranges(ctx: click.Context, param: click.Parameter, value: str | None) -> Iterator[int] | None:
    """Parse `0,5,10-20`, ends included."""
    ranges = []
    for part in () if value is None else value.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise click.BadParameter(f"{part!r} is not a record number or range: write them like 0,5,10-20", ctx, param)
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return None if value is None else chain.from_iterable(ranges)


_KEY_LIST = {"type": path_type, "callback": _keys, "metavar": "LIST"}


@command(
    rewrite.select,
    "FILE OUT",
    keys={**_KEY_LIST, "help": "Only records whose key is in this file, one on a line; - is stdin."},
    drop_keys={**_KEY_LIST, "help": "Only records whose key is not in this file."},
)
def select(summary: RewriteSummary) -> Iterator[str]:
    """Write some records of FILE into OUT, in their order, as they are stored. FILE does not change.

    FILE may also be a data set: a folder of files, or its dataset.json. A key of a list that no record has is an
    error. To delete records, write the others and replace FILE by OUT.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    return copied(summary)


@command(
    extraction.extract,
    "FILE DIR",
    unit=" records",
    failed=lambda summary: bool(summary.left_out),
    records={
        "type": str,
        "callback": _ranges,
        "help": "Only these record numbers, such as 0,5,10-20. Default: all.",
    },
)
def extract(summary: ExtractSummary) -> Iterator[str]:
    """Write the images of FILE into DIR, byte for byte as they were packed, under their keys.

    DIR is created if absent; its other files stay. Checksums are verified. All keys are checked before the first file
    is written: none leads out of DIR, and no link below it is followed. A file gets its name when it is whole.
    """
    say(*(f"error: {message}" for message in summary.left_out), err=True)
    yield f"{summary.folder}: {summary.records:,} records, {bytes_text(summary.bytes)}"


@command(export_records, "FILE DST", unit=" records")
def export(summary: ExportSummary) -> Iterator[str]:
    """Write the records of FILE into DST, a file or folder of another format. FILE does not change.

    FILE is a .frec file, or a folder or pattern of several, such as the shards of a set. The records keep their order,
    and every checksum is compared. `fastrecord import` makes the same records of DST again. A field that the format
    cannot hold is refused by name, unless --drop leaves it out.

    DST appears when everything is written. After an error or Ctrl-C it is absent, or with --overwrite the old one.
    """
    files = "" if summary.files == 1 else f" in {summary.files:,} files"
    dropped = f"; left out: {', '.join(summary.dropped)}" if summary.dropped else ""
    yield (
        f"{summary.path}: {summary.records:,} records{files}, {bytes_text(summary.source_bytes)} -> "
        f"{bytes_text(summary.bytes)}, {speed(summary.bytes, summary.seconds)}{dropped}"
    )


@command(transfer.copy, "SRC DST")
def copy(summary: transfer.CopySummary) -> Iterator[str]:
    """Copy a data set of shards, or one file, to an object store or from there.

    SRC is a folder with a dataset.json, or a .frec file; DST is the folder that becomes its copy, or the file. One of
    them is a URL. Shards that are there already are left out, so a copy that was broken off continues; the manifest is
    written last and at once. --store, the environment or a profile gives credentials, region and endpoint.
    """
    there = summary.shards - len(summary.copied)
    more = f"; {there:,} of them were there already" if there else ""
    yield f"{summary.path}: {summary.shards:,} shards, {bytes_text(summary.bytes)}{more}"


@click.command()
@arguments("DIR", ["folder"])
@click.option("--check", is_flag=True, help="Change nothing: compare the manifest with the shards.")
@click.option(
    "--clean",
    is_flag=True,
    help="Only remove what killed writes of several processes have left: shards that were never part of the data set.",
)
@derived(write_manifest, "allow_incomplete")
@quiet_option
@json_option
@click.pass_context
def manifest(
    ctx: click.Context, folder: str, check: bool, clean: bool, allow_incomplete: bool, quiet: bool, as_json: bool
) -> None:
    """Write DIR/dataset.json, which names the .frec files in DIR as the shards of one data set.

    Names each shard at its newest commit, with its records, bytes and footer's checksum. Shards that it names already
    keep their order, and new ones follow. The manifest is replaced at once: a reader sees the old one or the new one.
    DIR may also be the URL of a folder in an object store.

    Exit status: 0 good; 1 an error, or --check found a difference; 2 wrong usage; 130 Ctrl-C.
    """
    if check and clean:
        raise click.UsageError("give --check or --clean: one changes nothing, the other removes files")
    with progress_of_total(quiet=quiet, unit=" shards", desc=folder) as show:
        if not (check or clean):
            summary = write_manifest(folder, allow_incomplete=bool(allow_incomplete), progress=show)
            say(json.dumps(summary.to_dict()) if as_json else _written(summary))
            return
        findings = check_manifest(folder, progress=show) if check else clean_manifest(folder)
    for finding in findings:
        say(json.dumps(finding.to_dict()) if as_json else f"{finding.name}: {finding.kind}: {finding.message}")
    if not findings and not as_json:
        say(f"{folder}: good: the shards are as the manifest names them" if check else f"{folder}: nothing to remove")
    if findings and check:
        ctx.exit(1)


def _written(summary: ManifestSummary) -> str:
    changes = ((summary.added, "added"), (summary.renewed, "renewed"), (summary.removed, "removed"))
    counts = ", ".join(f"{len(names):,} {what}" for names, what in changes if names) or "nothing has changed"
    about = f"{summary.shards:,} shards, {summary.records:,} records, {bytes_text(summary.bytes)}"
    return f"{summary.path}: generation {summary.generation}: {about}; {counts}"
