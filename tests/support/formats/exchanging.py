"""Exports and imports through a format's own classes, without the commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import Destination, Format, Source
from fastrecord.schema import FieldType
from tests.support import pictures

RNG = np.random.default_rng(7)


def picture(number: int, kind: str = "JPEG", size: tuple[int, int] = (12, 8)) -> bytes:
    """Return a small image as bytes, different for each number."""
    return pictures.save(Image.new("RGB", size, (number % 256, number // 256 % 256, 7)), kind)


def write_file(path: Path, fields: Mapping[str, FieldType], columns: Mapping[str, Any], **metadata: Any) -> fr.Reader:
    """Write a .frec file, and return a reader of it."""
    with fr.Writer(path, fields, "w", metadata) as writer:
        writer.extend(columns)
    return fr.Reader(path)


def export(reader: fr.Reader, target: Format, path: Path, batch: int = 3, **settings: str) -> None:
    """Write all records of a file to one file of another format."""
    assert not target.refuse(reader.schema)
    destination = target.create(str(path), reader.schema, reader.metadata, settings)
    write_all(reader, destination, batch)
    destination.close()


def write_all(reader: fr.Reader, destination: Destination, batch: int = 3) -> None:
    """Write all records of a file to a destination, which stays open."""
    for start in range(0, len(reader), batch):
        values = reader.read_batch(range(start, min(start + batch, len(reader))))
        destination.write(start, {name: values[name] for name in reader.schema})


def bad_records(source: Source) -> dict[int, str]:
    """Return the numbers of the bad records, and why they are bad."""
    names = [field.name for field in source.fields]
    return {number: why for rows in source.read(0, names) for number, why in rows.bad.items()}


def take(source: Source, start: int = 0, names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return the values of a source's records, all of which are good."""
    chosen = [field.name for field in source.fields] if names is None else list(names)
    columns: dict[str, list[Any]] = {name: [] for name in chosen}
    number = start
    for rows in source.read(start, chosen):
        assert rows.start == number
        assert not rows.bad, rows.bad
        number += rows.count
        for name in chosen:
            values = rows.columns[name]
            assert len(values) == rows.count
            columns[name] += [bytes(v) if isinstance(v, memoryview) else v for v in values]
    return columns


def import_back(source: Source, path: Path) -> Path:
    """Write the records of a source into a .frec file, with its types, names and classes."""
    names = {field.rename or field.name: field for field in source.fields}
    metadata = dict(source.metadata) | ({"classes": list(source.classes)} if source.classes is not None else {})
    with fr.Writer(path, {name: field.type for name, field in names.items()}, "w", metadata) as writer:
        for rows in source.read(0, [field.name for field in source.fields]):
            assert not rows.bad, rows.bad
            writer.extend({name: rows.columns[field.name] for name, field in names.items()})
    return path


def assert_round_trip(reader: fr.Reader, source: Source, path: Path) -> None:
    """Import a source into `path`, and compare all values, types and metadata with a file's."""
    assert_same_file(Path(reader.path), import_back(source, path))


def assert_same_file(first: Path, second: Path) -> None:
    """Compare schema, metadata and every value of two .frec files."""
    with fr.Reader(first) as one, fr.Reader(second) as two:
        assert (dict(one.schema), one.metadata, len(one)) == (dict(two.schema), two.metadata, len(two))
        for a, b in zip(one, two, strict=True):
            assert plain(a) == plain(b)


def assert_same(left: Any, right: Any) -> None:
    """Compare values and their types; NaN equals NaN."""
    assert typed(left) == typed(right)


def typed(value: Any) -> Any:
    """Return a value as `plain` does, with the types of single values."""
    if isinstance(value, Mapping):
        return {name: typed(each) for name, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return (str(value.dtype) if isinstance(value, np.generic) else type(value).__name__, plain(value))


def plain(value: Any) -> Any:
    """Return a value in a form that compares exactly: arrays as (dtype, shape, bytes), NaN equal to NaN."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def records(source: Source, start: int = 0, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the records from `start` on; none may be bad, and none missing."""
    names = [field.name for field in source.fields] if names is None else names
    found: list[dict[str, Any]] = []
    for rows in source.read(start, names):
        assert not rows.bad, rows.bad
        assert rows.start == start + len(found)
        assert list(rows.columns) == list(names)
        assert all(len(values) == rows.count for values in rows.columns.values())
        found += [dict(zip(names, row, strict=True)) for row in zip(*rows.columns.values(), strict=True)]
    return found


def damaged(
    chosen: Format, source: str | Path, file: Path, places: Callable[[int], Sequence[int]], count: int, **settings: str
) -> tuple[int, int]:
    """Change three bytes of a file again and again; return how many records were bad, and how often an error came.

    Args:
        chosen: The format.
        source: The source, of which the file is a part; errors name the file.
        file: The file.
        places: Number of the change -> where bytes may change.
        count: How often.
        settings: Settings of the format.
    """
    whole, rng, found, errors = file.read_bytes(), np.random.default_rng(5), 0, 0
    for number in range(count):
        changed = bytearray(whole)
        for at in rng.choice(places(number), 3):
            changed[at] = rng.integers(0, 256)
        file.write_bytes(changed)
        try:
            with open_source(chosen, source, **settings) as opened:
                found += len(bad_records(opened))
        except (fr.FastRecordError, MemoryError) as err:
            assert isinstance(err, MemoryError) or str(file) in str(err)  # noqa: PT017 - most changes are no error
            errors += 1
    return found, errors


def types(source: Source) -> dict[str, str]:
    """Return the types of a source's fields, as text."""
    return {field.name: str(field.type) for field in source.fields}


def renames(source: Source) -> dict[str, str]:
    """Return the names that fields get in a .frec file."""
    return {field.name: field.rename for field in source.fields if field.rename is not None}


def open_source(chosen: Format, source: str | Path | Sequence[str], **settings: str) -> Source:
    """Open a source."""
    return chosen.open(str(source) if isinstance(source, Path) else source, settings)


def images(count: int) -> list[bytes]:
    """Return small images, of several kinds."""
    return [
        pictures.jpeg(20 + i, 15, quality=60 + i)
        if i % 3
        else pictures.save(pictures.picture(17, 12 + i, seed=i), "PNG")
        for i in range(count)
    ]


def every_type(count: int = 10) -> tuple[dict[str, fr.FieldType], dict[str, Any]]:
    """Return a schema with every kind of field that files of arrays and bytes can hold, and columns."""
    schema = {
        "image": fr.image(),
        "label": fr.FieldType("int64"),
        "key": fr.string(),
        "raw": fr.bytes_(),
        "meta": fr.json(),
        "flag": fr.FieldType("bool"),
        "small": fr.FieldType("uint8"),
        "signed": fr.FieldType("int16"),
        "large": fr.FieldType("uint64"),
        "half": fr.FieldType("float16"),
        "single": fr.FieldType("float32"),
        "double": fr.FieldType("float64"),
        "grid": fr.array("float32", (3, 4)),
        "line": fr.array("int32", (None,)),
        "frames": fr.array("uint8", (None, 2, 3)),
        "ragged": fr.array("int16", (None, None)),
        "numbers": fr.list_("int64"),
        "words": fr.list_(fr.string()),
        "boxes": fr.list_(fr.array("float32", (4,))),
    }
    columns: dict[str, Any] = {
        "image": images(count),
        "label": np.arange(count) % 4,
        "key": [f"clé/{i}" for i in range(count)],
        "raw": [bytes(RNG.integers(0, 256, i * 3, dtype=np.uint8)) for i in range(count)],
        "meta": [{"n": i, "tags": ["a", None, 1.5]} if i % 2 else [i, "x"] for i in range(count)],
        "flag": np.arange(count) % 2 == 0,
        "small": np.arange(count, dtype=np.uint8),
        "signed": np.arange(count, dtype=np.int16) - 5,
        "large": np.full(count, 2**64 - 1, np.uint64) - np.arange(count, dtype=np.uint64),
        "half": RNG.random(count).astype(np.float16),
        "single": RNG.random(count, np.float32),
        "double": RNG.random(count),
        "grid": RNG.random((count, 3, 4), np.float32),
        "line": [np.arange(i, dtype=np.int32) for i in range(count)],
        "frames": [RNG.integers(0, 256, (i % 3, 2, 3), dtype=np.uint8) for i in range(count)],
        "ragged": [np.full((i % 3 + 1, i + 1), i, np.int16) for i in range(count)],
        "numbers": [list(range(i % 4)) for i in range(count)],
        "words": [["ä", ""][: i % 3] for i in range(count)],
        "boxes": [[np.full(4, j, np.float32) for j in range(i % 3)] for i in range(count)],
    }
    return schema, columns
