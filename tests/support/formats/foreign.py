"""Read sources of other formats whole, and export records to them; values compared exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from fastrecord.interchange import Format, Source
from tests.support.formats import exchanging
from tests.support.formats.exchanging import assert_same_file as assert_same_file
from tests.support.formats.exchanging import bad_records as bad
from tests.support.formats.exchanging import import_back as import_back
from tests.support.formats.exchanging import plain as plain
from tests.support.pictures import jpeg, picture, save

RNG = np.random.default_rng(7)


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
                found += len(bad(opened))
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


def write_frec(path: Path, schema: Mapping[str, fr.FieldType], columns: Mapping[str, Any], **metadata: Any) -> Path:
    """Write a .frec file."""
    exchanging.write_file(path, schema, columns, **metadata).close()
    return path


def export(chosen: Format, frec: Path, path: Path, **settings: str) -> Path:
    """Export a .frec file, none of whose fields the format refuses."""
    with fr.Reader(frec) as reader:
        assert not chosen.refuse(reader.schema)
        exchanging.export(reader, chosen, path, 3, **settings)
    return path


def images(count: int) -> list[bytes]:
    """Return small images, of several kinds."""
    return [
        jpeg(20 + i, 15, quality=60 + i) if i % 3 else save(picture(17, 12 + i, seed=i), "PNG") for i in range(count)
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
