"""The commands info, ls and head: what files and data sets hold, from their indexes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

import click

from fastrecord._core import Batch, Reader, codecs, side_kinds
from fastrecord.cli.command import arguments, command, json_option
from fastrecord.cli.sources import SHARDS_AT_ONCE, Classes, Records, opened, opened_file
from fastrecord.cli.text import bytes_text, say
from fastrecord.dataset.manifest import NAME, is_one_file
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
# Images of a field that `info` looks at.
_SAMPLE = 64


def _about(file: str) -> dict[str, Any]:
    """Describe a file, or a data set."""
    if not is_one_file(file):
        return _about_set(file)
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

    with closing(Shards.open_alike(path)) as shards:
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


def _stored(reader: Reader, *, remote: bool) -> dict[str, dict[str, Any]]:
    """Return how fields are stored; of a file in an object store, what its head says."""
    compression = {} if remote else reader.compression()
    for name, kind in reader.schema.items() if remote else ():
        if (how := kind.compression) is not None:
            unknown = dict.fromkeys(("dictionaries", "bytes", "stored", "ratio"))
            compression[name] = {"codec": how.codec, "level": how.level, **unknown}
    images = [name for name, kind in reader.schema.items() if kind.name == "image"]
    return {
        "compression": compression,
        "crops": {name: _crops(reader, name, 0 if remote else _SAMPLE) for name in images},
    }


def _crops(reader: Reader, field: str, most: int) -> dict[str, int]:
    """Return how many images of a field were sampled, and how many of them have a crop index, or are packed."""
    from fastrecord.look.values import CROP_INDEX, PACKED_JPEG

    count = min(len(reader), most)
    some = [i * len(reader) // count for i in range(count)]
    kinds = side_kinds(reader, field, some).tolist() if some else []
    stored = codecs(reader, field, some).tolist() if some else []
    return {"sampled": count, "crop_index": kinds.count(CROP_INDEX), "packed": stored.count(PACKED_JPEG)}


@command(_about, "FILE...", each=True, to_dict=lambda about: about)
def info(about: dict[str, Any]) -> Iterator[str]:
    """Show what each FILE holds.

    Reads the newest commit, the index of compressed fields, and a byte of some images; changes nothing. A FILE may also
    be a data set: a folder of files, or its dataset.json. Then one summary is about all of them. And it may be the URL
    of either in an object store: then no image is looked at.
    """
    yield about["file"]
    for name, value in _rows(about):
        yield f"  {name:<9} {value}"


def _rows(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    where = ""
    if "shards" in about:
        where = f", in {about['first']}"
        least, most = about["smallest"], about["largest"]
        manifest = "none: `fastrecord manifest` makes one, which opens the data set without opening its files"
        if about["manifest"] is not None:
            manifest = f"{about['manifest']}, generation {about['generation']:,}"
        yield "manifest", manifest
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield "shards", f"{about['shards']:,}, of {each} records each"
    yield "records", f"{about['records']:,}"
    yield "bytes", f"{about['bytes']:,} ({bytes_text(about['bytes'])})"
    yield "fields", ", ".join(f"{name} ({kind})" for name, kind in about["fields"].items())
    stored = [_compressed(name, how) for name, how in about["compression"].items()]
    if stored := [*stored, *_croppable(about["crops"])]:
        yield "stored", f"{', '.join(stored)}{where}"
    if "commits" in about:
        yield "commits", f"{about['commits']:,}"
    if isinstance(classes := about["classes"], list):
        more = ", ..." if len(classes) > _NAMED else ""
        yield "classes", f"{len(classes):,}: {', '.join(map(str, classes[:_NAMED]))}{more}"
    metadata = about.get("metadata", {})
    if isinstance(skipped := metadata.get("skipped"), list) and skipped:
        yield "skipped", f"{len(skipped):,} input files were left out (--json lists them)"
    if recoded := _recoded(metadata.get("packs")):
        yield "recoded", "; ".join(recoded)
    if (shard := Shard.of(metadata)) is not None:
        yield "shard", f"{shard.number:,} of {shard.count:,}, counted from 0, in the set {shard.set}"
    yield "complete", "yes" if about["complete"] else "no: `fastrecord pack --resume` finishes it"
    yield "format", f"version {about['version']}{where}"
    if "file_id" in about:
        yield "file id", about["file_id"]
    if about.get("tail_bytes"):
        tail = f"{about['tail_bytes']:,} bytes after the last commit"
        yield "tail", f"{tail}: a commit in progress, or a torn one that the next writer cuts off"


def _compressed(field: str, how: dict[str, Any]) -> str:
    """Return a field's compression and ratio: data zstd level 3 with a dictionary (2.45 times smaller)."""
    level = "" if how["level"] is None else f" level {how['level']}"
    dictionary = " with a dictionary" if how["dictionaries"] else ""
    smaller = "" if how["ratio"] is None else f" ({how['ratio']:.2f} times smaller)"
    return f"{field} {how['codec']}{level}{dictionary}{smaller}"


def _croppable(crops: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield how many of the sampled images of each field are packed, or have a crop index, if any."""
    for field, counts in crops.items():
        names = {"packed": "packed", "crop_index": "with a crop index"}
        if found := [f"{counts[name]:,} {text}" for name, text in names.items() if counts[name]]:
            yield f"{field} {' and '.join(found)}, of {counts['sampled']:,} looked at"


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
            texts.append(text + (f" (from record {pack.get('first_record')})" if len(entries) > 1 else ""))
    return texts


@click.command()
@arguments("FILE", ["file"])
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Number of the first record to list. Default: 0.")
@click.option("--limit", type=click.IntRange(min=0), help="Maximum number of records to list. Default: all.")
@json_option
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
            rows = _records(records, *run, classes)
            return [json.dumps(row) if as_json else _line(row, schema, digits) for row in rows]

        batches = (range(start, min(start + _BATCH, stop)) for start in range(offset, stop, _BATCH))
        runs = chain.from_iterable(records.runs(batch.start, batch.stop) for batch in batches)
        for some in in_order(lines, runs, SHARDS_AT_ONCE, "fastrecord-ls") if records.remote else map(lines, runs):
            say(*some)


def _records(
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
            value = values[name][i]
            row[name] = [value.real, value.imag] if isinstance(value, complex) else value
            if name == "label" and classes is not None:
                row[name] = classes.label(shard, row[name])
                row |= classes.named(row[name])
        yield row


def _line(row: dict[str, Any], schema: Schema, digits: int) -> str:
    cells = []
    for name, value in row.items():
        if name == "record":
            cells.append(f"{value:>{digits}}")
        elif name in schema and schema[name].name in _LARGE:
            cells.append(f"{value['bytes']:>9,}")
            if "width" in value:
                cells.append(f"{value['width']}x{value['height']}".rjust(9))
        else:
            cells.append(json.dumps(value) if isinstance(value, dict | list) else f"{value}")
    return "  ".join(cells)


@click.command()
@arguments("FILE", ["file"])
@click.option("-n", "count", type=click.IntRange(min=0), default=5, help="Number of records. Default: 5.")
@json_option
def head(file: str, count: int, as_json: bool) -> None:
    """Show the first records of FILE with all their fields: numbers and texts, and large values in short.

    FILE may also be a folder of shards, a data set, or the URL of a file or data set.
    """
    from fastrecord.look.values import short_text, summarize
    from fastrecord.schema.roles import find_label, holds_classes

    with opened(file) as records:
        schema = records.schema
        width = max((len(name) for name in schema), default=0)
        label = find_label(records.readers[0])
        classes = records.classes() if label is not None and holds_classes(schema[label]) else None
        records.bring(0, min(count, len(records)))
        for number in range(min(count, len(records))):
            ((shard, _, (record, *_)),) = records.runs(number, number + 1)
            # Copies: if the file is cut meanwhile, that is an error, not a signal.
            values = {name: records.readers[shard].get(record, name, copy=True) for name in schema}
            named = {}
            if classes is not None and label is not None:
                values[label] = classes.label(shard, values[label])
                named = classes.named(values[label])
            if as_json:
                shown = {name: summarize(value, schema[name]) for name, value in values.items()}
                say(json.dumps({"record": number, **shown, **named}))
                continue
            texts = {name: short_text(value, schema[name], 100) for name, value in values.items()}
            if label is not None and named:
                texts[label] += f" ({named['class']})"
            say(f"record {number:,}", *(f"  {name:<{width}}  {text}" for name, text in texts.items()))
