"""The subcommand import: options and output. Stores nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fastrecord.cli.options import path_type, quiet_option, settings_option, summary_option
from fastrecord.cli.packing.options import (
    check_file_options,
    field_options,
    file_options,
    image_options,
    pack_progress,
    print_summary,
    take_recode,
)
from fastrecord.cli.text import bytes_text, say

if TYPE_CHECKING:
    from fastrecord.pack.records import Preview

_WIDTH = 60


@click.command("import")
@click.argument("paths", type=path_type, nargs=-1, metavar="SRC... OUT")
@click.option("--out", "-o", type=path_type, metavar="OUT", help="Another way to give OUT.")
@click.option(
    "--format",
    "format_",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Format of SRC: arrayrecord, beton, cifar, hdf5, huggingface, idx, litdata, lmdb, mds, n5, numpy, parquet, "
    "recordio, tfrecord, torch, webdataset, zarr, or one of another package; auto looks at SRC.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the fields that the records would have, and the first records. Write nothing; OUT may be left out.",
)
@field_options
@settings_option
@click.option(
    "--lmdb-values",
    type=click.Choice(["auto", "image", "bytes", "tuple", "datum", "pyobject"]),
    help="What the values of an LMDB are; the same as --set values=.... [default: auto]",
)
@file_options
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "auto"]),
    help="Compress arrays, bytes, json and lists. auto measures the first ones and may choose none.",
)
@image_options
@quiet_option
@summary_option
def import_(
    paths: tuple[str, ...],
    out: str | None,
    format_: str,
    dry_run: bool,
    mapping: dict[str, str],
    types: dict[str, str],
    fill: dict[str, str],
    settings: dict[str, str],
    lmdb_values: str | None,
    append: bool,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Store the records of another format in OUT: tar shards, LMDB, TFRecord, HDF5, parquet and more.

    SRC is a file, a folder or a pattern in quotes, such as 'train-{000..146}.tar'. Several SRC are read one after the
    other. Labels that are names are numbered by sorted name.

    As with `fastrecord pack`, a commit every GiB makes the records durable, and --resume continues after a kill,
    Ctrl-C, a full disk or a damaged record of SRC.
    """
    from fastrecord.pack.records import import_records, preview_records

    check_file_options(append, resume, overwrite, options, out or (paths[-1] if len(paths) > 1 else ""))
    take_recode(options)
    if lmdb_values is not None:
        settings = settings | {"values": lmdb_values}
    given = list(paths)
    if out is None and len(given) > 1:
        out = given.pop()
    if not given:
        raise click.UsageError("Missing argument 'SRC'.")
    chosen: dict[str, Any] = {"mapping": mapping or None, "types": types, "fill": fill, "settings": settings}
    try:
        if dry_run:
            preview = preview_records(given, format_, **chosen)
            _show(preview, as_json=as_json)
            return
        if out is None:
            raise click.UsageError("Missing argument 'OUT'.")
        with pack_progress(quiet=quiet) as show:
            summary = import_records(
                given,
                out,
                format_,
                append=append,
                resume=resume,
                overwrite=overwrite,
                progress=show,
                **chosen,
                **options,
            )
    except ValueError as err:
        raise click.UsageError(str(err)) from err
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        if summary.recognised is not None:
            say(f"format: {summary.format} ({summary.recognised})")
        say(*(f"left out: {each}" for each in summary.left_out))
        print_summary(summary, resumed=resume, skipped="records that cannot be read")


def _show(preview: Preview, *, as_json: bool) -> None:
    if as_json:
        fields = [{"name": n, "type": str(t), "from": f, "origin": o} for n, t, f, o in preview.fields]
        rows = [{name: _short(value) for name, value in record.items()} for record in preview.first]
        data = {"format": preview.format, "why": preview.why, "records": preview.records, "fields": fields}
        more = {"numbers": preview.numbers, "bad": preview.bad, "nulls": preview.nulls, "left_out": preview.left_out}
        say(json.dumps(data | {"classes": preview.classes, "first": rows} | more))
        return
    say(f"format: {preview.format}" + (f" ({preview.why})" if preview.why else ""))
    if preview.records is not None:
        say(f"records: {preview.records:,}")
    if preview.classes is not None:
        say(f"classes: {preview.classes:,}")
    width = max(len(name) for name, *_ in preview.fields)
    say("fields:")
    for name, kind, given, origin in preview.fields:
        say(f"  {name:{width}}  {kind}  from {given}" + (f" ({origin})" if origin else ""))
    for name, count in preview.nulls.items():
        say(f"nulls: {count:,} in {name}: --fill {name}=VALUE, or --bad-files skip")
    say(*(f"left out: {each}" for each in preview.left_out))
    records = {**dict(zip(preview.numbers, preview.first, strict=True)), **preview.bad}
    for number, record in sorted(records.items()):
        say(f"record {number}:" if isinstance(record, dict) else f"record {number}: bad: {record}")
        for name, value in record.items() if isinstance(record, dict) else ():
            say(f"  {name:{width}}  {_short(value)}")


def _short(value: Any) -> str:
    """Return a value in few characters."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        from fastrecord._core import image_size

        size = image_size(value)
        shape = "" if size is None else f", an image of {size[0]} x {size[1]}"
        return f"{bytes_text(memoryview(value).nbytes)}{shape}"
    if hasattr(value, "shape"):
        if value.shape:
            return f"array {value.dtype} {tuple(value.shape)}"
        value = value.item()
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
