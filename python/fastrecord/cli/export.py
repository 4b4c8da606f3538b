"""The subcommand export: options and report. Writes nothing itself."""

from __future__ import annotations

import json
from typing import Any

import click

from fastrecord.cli.options import output, path_type, quiet_option, settings_option, summary_option, text_type
from fastrecord.cli.text import bytes_text, parse_size, progress_of_total, say


@click.command()
@click.argument("file", type=path_type)
@output("DST")
@click.option(
    "--format",
    "-f",
    required=True,
    metavar="NAME",
    help="The format: folder, webdataset, lmdb, tfrecord, recordio, hdf5, numpy, parquet, arrayrecord, mds, or one "
    "that an installed package adds.",
)
@click.option(
    "--shard-size",
    callback=parse_size,
    metavar="SIZE",
    help="Make DST a folder of files NAME-00000.EXT, each with values of at most SIZE, such as 1GiB (unless one record "
    "alone has more). The files are larger by what the format adds.",
)
@click.option("--drop", type=text_type, multiple=True, metavar="FIELD", help="Leave a field out; may be repeated.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace DST once all is written. Old and new need room together. A folder is replaced only if it holds an "
    "export. Default: refuse.",
)
@click.option(
    "--allow-incomplete",
    is_flag=True,
    help="Accept a file whose own packing was stopped or is in progress, and shard sets with missing shards. "
    "Default: refuse them.",
)
@settings_option
@quiet_option
@summary_option
def export(file: str, out: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the records of FILE into DST, a file or folder of another format. FILE does not change.

    FILE is a .frec file, or a folder or pattern of several, such as the shards of a set. The records keep their order,
    and every checksum is compared. `fastrecord import` makes the same records of DST again. A field that the format
    cannot hold is refused by name, unless --drop leaves it out.

    DST appears when everything is written. After an error or Ctrl-C it is absent, or with --overwrite the old one.
    """
    from fastrecord.files.export import check_format, export

    try:
        check_format(options["format"], options["shard_size"], options["settings"])
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    with progress_of_total(quiet=quiet, unit=" records") as show:
        summary = export(file, out, progress=show, **options)
    if as_json:
        say(json.dumps(summary.to_dict()))
        return
    files = "" if summary.files == 1 else f" in {summary.files:,} files"
    dropped = f"; left out: {', '.join(summary.dropped)}" if summary.dropped else ""
    speed = bytes_text(summary.bytes / max(summary.seconds, 1e-9))
    say(
        f"{summary.path}: {summary.records:,} records{files}, {bytes_text(summary.source_bytes)} -> "
        f"{bytes_text(summary.bytes)}, {summary.seconds:.1f} s, {speed}/s{dropped}"
    )
