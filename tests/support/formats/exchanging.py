"""Exports and imports through a format's own classes, without the commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import Destination, Format, Source
from fastrecord.schema import FieldType
from tests.support.pictures import save


def picture(number: int, kind: str = "JPEG", size: tuple[int, int] = (12, 8)) -> bytes:
    """Return a small image as bytes, different for each number."""
    return save(Image.new("RGB", size, (number % 256, number // 256 % 256, 7)), kind)


def write_file(path: Path, fields: Mapping[str, FieldType], columns: Mapping[str, Any], **metadata: Any) -> fr.Reader:
    """Write a .frec file, and return a reader of it."""
    with fr.Writer(path, fields, "w", metadata) as writer:
        writer.extend(columns)
    return fr.Reader(path)


def export(reader: fr.Reader, target: Format, path: Path, batch: int = 3, **settings: str) -> None:
    """Write all records of a file to one file of another format."""
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
    """Compare values; NaN equals NaN."""
    assert plain(left) == plain(right)


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
