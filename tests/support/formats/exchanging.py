"""Exports and imports through a format's own classes, without the commands."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import Destination, Format, Source
from fastrecord.schema import FieldType


def picture(number: int, kind: str = "JPEG", size: tuple[int, int] = (12, 8)) -> bytes:
    """Return a small image as bytes, different for each number."""
    file = io.BytesIO()
    Image.new("RGB", size, (number % 256, number // 256 % 256, 7)).save(file, kind)
    return file.getvalue()


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


def bad_records(source: Source) -> dict[int, str]:
    """Return the reasons of a source's bad records."""
    return {n: why for rows in source.read(0, [f.name for f in source.fields]) for n, why in rows.bad.items()}


def assert_round_trip(reader: fr.Reader, source: Source, path: Path) -> None:
    """Import a source into `path`, and compare all values, types and metadata with a file's."""
    schema = {field.rename or field.name: field.type for field in source.fields}
    metadata = dict(source.metadata) | ({"classes": list(source.classes)} if source.classes is not None else {})
    with fr.Writer(path, schema, "w", metadata) as writer:
        for rows in source.read(0, [field.name for field in source.fields]):
            assert not rows.bad, rows.bad
            writer.extend({field.rename or field.name: rows.columns[field.name] for field in source.fields})
    again = fr.Reader(path)
    assert (dict(again.schema), again.metadata, len(again)) == (dict(reader.schema), reader.metadata, len(reader))
    for number in range(len(reader)):
        assert_same(again[number], reader[number])


def assert_same(left: Any, right: Any) -> None:
    """Compare values; NaN equals NaN."""
    if isinstance(right, dict):
        assert left.keys() == right.keys()
        for name in right:
            assert_same(left[name], right[name])
    elif isinstance(right, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(right, (np.ndarray, float, complex, np.generic)):
        np.testing.assert_array_equal(left, right)
        assert np.asarray(left).dtype == np.asarray(right).dtype
    else:
        assert type(left) is type(right)
        assert left == right
