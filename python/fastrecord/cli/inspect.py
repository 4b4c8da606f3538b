"""The subcommands that read a file: info, ls, extract."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import click

from fastrecord._core import Batch, FastRecordError, Reader, side_kinds
from fastrecord.cli import describe
from fastrecord.cli.options import output, path_type, quiet_option, summary_option, text_type
from fastrecord.cli.sources import SHARDS_AT_ONCE, Classes, Records, is_one_file, opened, opened_file
from fastrecord.cli.text import bytes_text, progress_of_total, say
from fastrecord.dataset.manifest import NAME
from fastrecord.schema import Schema
from fastrecord.schema.classes import merge_classes
from fastrecord.schema.roles import plain
from fastrecord.schema.shard_sets import Shard
from fastrecord.store import is_url
from fastrecord.store.threads import in_order

_BATCH = 4096
# For values of these types the listing shows the size, not the value.
_LARGE = ("image", "bytes", "array", "list")
_NAMED = 5
# Images of a field that `info` looks at, and the kinds of side bytes that it counts.
_SAMPLE = 64
_KINDS = {"crop_ready": 1, "crop_index": 2}


@click.command()
@click.argument("files", nargs=-1, required=True, type=path_type, metavar="FILE...")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per file and line: records, bytes, fields, crops, commits, classes, version, ...",
)
@click.pass_context
def info(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Show what each FILE holds.

    Reads the newest commit, the index of compressed fields, and a byte of some images; changes nothing. A FILE may also
    be a data set: a folder of files, or its dataset.json. Then one summary is about all of them. And it may be the URL
    of either in an object store: then no image is looked at.
    """
    failed = False
    for file in files:
        try:
            one = is_one_file(file)
            about = _about(file) if one else _about_set(file)
        except (FastRecordError, OSError) as err:
            say(f"error: {describe(err)}", err=True)
            failed = True
            continue
        say(*([json.dumps(about)] if as_json else _about_lines(about) if one else _set_lines(about)))
    if failed:
        ctx.exit(1)


def _about(file: str) -> dict[str, Any]:
    with opened_file(file) as reader:
        metadata = reader.metadata
        return {
            "file": file,
            "records": len(reader),
            "bytes": reader.nbytes,
            "fields": {name: str(kind) for name, kind in reader.schema.items()},
            **_stored(reader, remote=is_url(file)),
            "commits": reader.commit,
            "classes": metadata.get("classes"),
            "version": reader.version,
            "complete": reader.complete,
            "file_id": reader.file_id,
            "tail_bytes": reader.tail_bytes,
            "metadata": {key: value for key, value in metadata.items() if key != "classes"},
        }


def _about_set(path: str) -> dict[str, Any]:
    """Describe a data set; with a manifest, this opens only the first shard."""
    from fastrecord.dataset.shards import Shards

    shards = Shards.open_alike(path)
    try:
        first, named = shards.readers[0], shards.named
        classes, _ = merge_classes(shards.readers, None, shards.class_lists())
        counts = [len(reader) for reader in shards.readers]
        return {
            "file": path,
            "manifest": None if named is None else os.path.join(named.folder, NAME),
            "generation": None if named is None else named.manifest.generation,
            "shards": len(counts),
            "records": sum(counts),
            "smallest": min(counts),
            "largest": max(counts),
            "bytes": sum(reader.nbytes for reader in shards.readers),
            "fields": {name: str(plain(kind)) for name, kind in shards.schema.items()},
            "first": os.path.basename(first.path),
            **_stored(first, remote=is_url(path)),
            "version": first.version,
            "classes": classes or None,
            "complete": all(reader.complete for reader in shards.opened),
        }
    finally:
        shards.close()


def _set_lines(about: dict[str, Any]) -> list[str]:
    least, most = about["smallest"], about["largest"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    manifest = "none: `fastrecord manifest` makes one, which opens the data set without opening its files"
    if about["manifest"] is not None:
        manifest = f"{about['manifest']}, generation {about['generation']:,}"
    rows = [
        ("manifest", manifest),
        ("shards", f"{about['shards']:,}, of {each} records each"),
        ("records", f"{about['records']:,}"),
        ("bytes", f"{about['bytes']:,} ({bytes_text(about['bytes'])})"),
        ("fields", ", ".join(f"{name} ({kind})" for name, kind in about["fields"].items())),
        *_class_rows(about["classes"]),
        ("complete", "yes" if about["complete"] else "no: `fastrecord pack --resume` finishes it"),
        ("format", f"version {about['version']}, in {about['first']}"),
    ]
    stored = [f"{name} {_compression_text(how)}" for name, how in about["compression"].items()]
    stored += [text for name, counts in about["crops"].items() if (text := _crops_text(name, counts))]
    if stored:
        rows.append(("stored", f"{', '.join(stored)}, in {about['first']}"))
    return [about["file"], *(f"  {name:<9} {value}" for name, value in rows)]


def _class_rows(classes: object) -> list[tuple[str, str]]:
    if not isinstance(classes, list):
        return []
    more = ", ..." if len(classes) > _NAMED else ""
    return [("classes", f"{len(classes):,}: {', '.join(str(name) for name in classes[:_NAMED])}{more}")]


def _stored(reader: Reader, *, remote: bool) -> dict[str, dict[str, Any]]:
    """Return how fields are stored; of a file in an object store, what its head says."""
    images = [name for name, kind in reader.schema.items() if kind.name == "image"]
    kinds = {name: kind.compression for name, kind in reader.schema.items()}
    compression: dict[str, Any] = {}
    if remote:
        for name, how in kinds.items():
            if how is not None:
                unknown = dict.fromkeys(("dictionaries", "bytes", "stored", "ratio"))
                compression[name] = {"codec": how.codec, "level": how.level, **unknown}
    else:
        compression = reader.compression()
    return {
        "compression": compression,
        "crops": {name: _crops(reader, name, 0 if remote else _SAMPLE) for name in images},
    }


def _crops(reader: Reader, field: str, most: int) -> dict[str, int]:
    """Return how many sampled images of a field can be decoded in parts, by how."""
    count = min(len(reader), most)
    kinds = side_kinds(reader, field, [i * len(reader) // count for i in range(count)]).tolist() if count else []
    return {"sampled": count} | {name: kinds.count(kind) for name, kind in _KINDS.items()}


def _about_lines(about: dict[str, Any]) -> list[str]:
    rows = [
        ("records", f"{about['records']:,}"),
        ("bytes", f"{about['bytes']:,} ({bytes_text(about['bytes'])})"),
        ("fields", ", ".join(f"{name} ({kind})" for name, kind in about["fields"].items())),
        ("commits", f"{about['commits']:,}"),
    ]
    compressed = [f"{name} {_compression_text(how)}" for name, how in about["compression"].items()]
    if compressed:
        rows.insert(3, ("codecs", ", ".join(compressed)))
    crops = [text for name, counts in about["crops"].items() if (text := _crops_text(name, counts))]
    if crops:
        rows.insert(3, ("crops", ", ".join(crops)))
    rows += _class_rows(about["classes"])
    skipped = about["metadata"].get("skipped")
    if isinstance(skipped, list) and skipped:
        rows.append(("skipped", f"{len(skipped):,} input files were left out (--json lists them)"))
    recoded = _recoded(about["metadata"].get("packs"))
    if recoded:
        rows.append(("recoded", "; ".join(recoded)))
    shard = Shard.of(about["metadata"])
    if shard is not None:
        rows.append(("shard", f"{shard.number:,} of {shard.count:,}, counted from 0, in the set {shard.set}"))
    rows.append(("complete", "yes" if about["complete"] else "no: `fastrecord pack --resume` finishes it"))
    rows.append(("format", f"version {about['version']}"))
    rows.append(("file id", about["file_id"]))
    if about["tail_bytes"]:
        tail = f"{about['tail_bytes']:,} bytes after the last commit"
        rows.append(("tail", f"{tail}: a commit in progress, or a torn one that the next writer cuts off"))
    return [about["file"], *(f"  {name:<9} {value}" for name, value in rows)]


def _crops_text(field: str, counts: dict[str, int]) -> str:
    """Return which of the sampled images can be decoded in parts; empty if none can."""
    names = {"crop_index": "with a crop index", "crop_ready": "crop-ready"}
    texts = [f"{counts[kind]:,} {name}" for kind, name in names.items() if counts[kind]]
    return f"{field} {', '.join(texts)}, of {counts['sampled']:,} looked at" if texts else ""


def _compression_text(how: dict[str, Any]) -> str:
    """Return a field's compression and ratio: zstd level 3 with a dictionary, 2.45 times smaller."""
    level = "" if how["level"] is None else f" level {how['level']}"
    dictionary = " with a dictionary" if how["dictionaries"] else ""
    smaller = "" if how["ratio"] is None else f" ({how['ratio']:.2f} times smaller)"
    return f"{how['codec']}{level}{dictionary}{smaller}"


def _recoded(packs: object) -> list[str]:
    """Return how each pack of a file changed its images, in command-line form."""
    from fastrecord.recode import Recode

    texts: list[str] = []
    entries = packs if isinstance(packs, list) else []
    for pack in entries:
        settings = pack.get("recode") if isinstance(pack, dict) else None
        if settings is not None:
            try:
                text = str(Recode.from_json(settings))
            except (TypeError, ValueError):
                text = json.dumps(settings)
            if len(entries) > 1:
                text += f" (from record {pack.get('first_record')})"
            texts.append(text)
    return texts


@click.command()
@click.argument("file", type=path_type)
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first record to list."
)
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of records to list. Default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per record and line.")
def ls(file: str, offset: int, limit: int | None, as_json: bool) -> None:
    """List the records of FILE: number, then each field. Images, bytes, arrays and lists show their size in bytes.

    Images also show width x height. Reads only the index, strings and JSON values. FILE may also be a data set: a
    folder of files, or its dataset.json. Its records are numbered one file after the other. Or a URL of either.
    """
    with opened(file) as records:
        schema = records.schema
        stop = len(records) if limit is None else min(offset + limit, len(records))
        labelled = "label" in schema and schema["label"].name == "int64"
        classes = records.classes() if labelled else None
        digits = len(str(max(len(records) - 1, 0)))

        def lines(run: tuple[int, int, range]) -> list[str]:
            rows = _rows(records, *run, classes)
            return [json.dumps(row) if as_json else _row_text(row, schema, digits) for row in rows]

        batches = (range(start, min(start + _BATCH, stop)) for start in range(offset, stop, _BATCH))
        runs = chain.from_iterable(records.runs(batch.start, batch.stop) for batch in batches)
        for some in in_order(lines, runs, SHARDS_AT_ONCE, "fastrecord-ls") if records.remote else map(lines, runs):
            say(*some)


def _rows(
    records: Records, shard: int, first: int, numbers: range, classes: Classes | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of some records of one file; the first one has number `first` in the data set."""
    reader, schema = records.readers[shard], records.schema
    values: dict[str, list[Any]] = {}
    small = [name for name, kind in schema.items() if kind.name not in _LARGE]
    batch: Mapping[str, Any] | Batch = reader.read_batch(numbers, small) if small else {}
    for name, kind in schema.items():
        if kind.name in _LARGE:
            sizes = [{"bytes": size} for size in reader.lengths(name, numbers).tolist()]
            if kind.name == "image":
                here = slice(numbers.start, numbers.stop)
                widths, heights = (reader.column(f"{name}.{side}")[here].tolist() for side in ("width", "height"))
                for size, width, height in zip(sizes, widths, heights, strict=True):
                    size |= {"width": width, "height": height}
            values[name] = sizes
        else:
            column = batch[name]
            if kind.name == "bfloat16":
                # numpy sees bfloat16 as uint16: the upper halves of float32.
                column = (column.astype("uint32") << 16).view("float32")
            values[name] = column.tolist() if hasattr(column, "tolist") else list(column)
    for i in range(len(numbers)):
        row: dict[str, Any] = {"record": first + i}
        for name in schema:
            row[name] = _as_json(values[name][i])
            if name == "label" and classes is not None:
                row[name] = classes.label(shard, row[name])
                row |= classes.named(row[name])
        yield row


def _as_json(value: Any) -> Any:
    """Return a complex number as its two parts, for JSON; other values unchanged."""
    return [value.real, value.imag] if isinstance(value, complex) else value


def _row_text(row: dict[str, Any], schema: Schema, digits: int) -> str:
    cells = []
    for name, value in row.items():
        if name == "record":
            cells.append(f"{value:>{digits}}")
        elif name in schema and schema[name].name in _LARGE:
            cells.append(f"{value['bytes']:>9,}")
            if "width" in value:
                cells.append(f"{value['width']}x{value['height']}".rjust(9))
        else:
            text = json.dumps(value) if isinstance(value, dict | list) else f"{value}"
            cells.append(text)
    return "  ".join(cells)


def _ranges(ctx: click.Context, param: click.Parameter, value: str | None) -> list[range] | None:
    """Parse `0,5,10-20`; return the ranges, ends included."""
    if value is None:
        return None
    ranges = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise click.BadParameter(f"{part!r} is not a record number or range: write them like 0,5,10-20", ctx, param)
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return ranges


@click.command()
@click.argument("file", type=path_type)
@output("DIR")
@click.option(
    "--records", callback=_ranges, metavar="LIST", help="Only these record numbers, such as 0,5,10-20. Default: all."
)
@click.option(
    "--class",
    "classes",
    type=text_type,
    multiple=True,
    metavar="NAME",
    help="Only records of this class; may be repeated.",
)
@click.option(
    "--field", type=text_type, metavar="NAME", help="Field to extract. Default: the only field of type image or bytes."
)
@click.option("--numbered", is_flag=True, help="Name files by record number and image type, not by key.")
@click.option("--overwrite", is_flag=True, help="Replace files that exist. Default: stop at the first one.")
@quiet_option
@summary_option
def extract(file: str, out: str, records: list[range] | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the images of FILE into DIR, byte for byte as they were packed, under their keys.

    DIR is created if absent; its other files stay. Checksums are verified. All keys are checked before the first file
    is written: none leads out of DIR, and no link below it is followed. A file gets its name when it is whole.
    """
    from fastrecord.files.extraction import extract

    large: list[str] = []
    with progress_of_total(quiet=quiet, unit=" records") as show:
        chosen = None if records is None else chain.from_iterable(records)
        summary = extract(file, out, records=chosen, progress=show, on_large=large.append, **options)
    for message in large:
        say(f"error: {message}", err=True)
    if as_json:
        say(json.dumps(summary.to_dict()))
    else:
        say(f"{summary.folder}: {summary.records:,} records, {bytes_text(summary.bytes)}")
    if large:
        sys.exit(1)
