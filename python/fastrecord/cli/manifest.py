"""The subcommand manifest: options and report. Opens no shard itself."""

from __future__ import annotations

import json

import click

from fastrecord.cli.options import path_type, quiet_option
from fastrecord.cli.text import bytes_text, progress_of_total, say


@click.command()
@click.argument("folder", type=path_type, metavar="DIR")
@click.option("--check", is_flag=True, help="Change nothing: compare the manifest with the shards.")
@click.option(
    "--clean",
    is_flag=True,
    help="Only remove what killed writes of several processes have left: shards that were never part of the data set.",
)
@click.option("--allow-incomplete", is_flag=True, help="Take shards whose packing was not finished.")
@quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as JSON; with --check or --clean, one object per finding and line: name, kind, message.",
)
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
    from fastrecord.files.manifest import check_manifest, clean_manifest, write_manifest

    if check and clean:
        raise click.UsageError("give --check or --clean: one changes nothing, the other removes files")
    if clean:
        found = clean_manifest(folder)
        for each in found:
            say(json.dumps(each.to_dict()) if as_json else f"{each.name}: {each.kind}: {each.message}")
        if not found and not as_json:
            say(f"{folder}: nothing to remove")
        return
    with progress_of_total(quiet=quiet, unit=" shards", desc=folder) as show:
        findings = check_manifest(folder, progress=show) if check else []
        summary = None if check else write_manifest(folder, allow_incomplete=allow_incomplete, progress=show)
    if summary is not None:
        changes = ((summary.added, "added"), (summary.renewed, "renewed"), (summary.removed, "removed"))
        counts = ", ".join(f"{len(names):,} {what}" for names, what in changes if names) or "nothing has changed"
        about = f"{summary.shards:,} shards, {summary.records:,} records, {bytes_text(summary.bytes)}"
        text = f"{summary.path}: generation {summary.generation}: {about}; {counts}"
        say(json.dumps(summary.to_dict()) if as_json else text)
        return
    for finding in findings:
        say(json.dumps(finding.to_dict()) if as_json else f"{finding.name}: {finding.kind}: {finding.message}")
    if findings:
        ctx.exit(1)
    if not as_json:
        say(f"{folder}: good: the shards are as the manifest names them")
