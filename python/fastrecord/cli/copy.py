"""The subcommand copy: options and report."""

from __future__ import annotations

import json

import click

from fastrecord.cli.options import path_type, quiet_option
from fastrecord.cli.text import bytes_text, progress_of_total, say


@click.command()
@click.argument("src", type=path_type)
@click.argument("dst", type=path_type)
@click.option("--overwrite", is_flag=True, help="Replace a data set that has other shards, or another file.")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def copy(src: str, dst: str, overwrite: bool, quiet: bool, as_json: bool) -> None:
    """Copy a data set of shards, or one file, to an object store or from there.

    SRC is a folder with a dataset.json, or a .frec file; DST is the folder that becomes its copy, or the file. One of
    them is a URL. Shards that are there already are left out, so a copy that was broken off continues; the manifest is
    written last and at once. --store, the environment or a profile gives credentials, region and endpoint.
    """
    from fastrecord.files.transfer import copy as run
    from fastrecord.store import is_url

    if is_url(src) == is_url(dst):
        raise click.UsageError("one of SRC and DST is a URL: `cp` copies files of this machine")

    with progress_of_total(quiet=quiet, unit="B", desc=dst) as show:
        summary = run(src, dst, overwrite=overwrite, progress=show)
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        there = summary.shards - len(summary.copied)
        more = f"; {there:,} of them were there already" if there else ""
        say(f"{summary.path}: {summary.shards:,} shards, {bytes_text(summary.bytes)}{more}")
