"""Input files and content checks shared by the tests of merge, split, shuffle and compact."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from fastrecord.schema.shard_sets import without_origin

SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})

Row = tuple[Any, ...]


def write_rows(
    path: Path,
    count: int,
    *,
    classes: Sequence[str] | None = None,
    largest: int = 3_000,
    commit_bytes: int = 1 << 30,
    complete: bool = True,
    seed: int = 0,
    **metadata: Any,
) -> Path:
    """Write records of up to `largest` random bytes, a label, and a key with the file's name."""
    rng = np.random.default_rng(seed)
    if classes is not None:
        metadata["classes"] = list(classes)
    options: dict[str, Any] = {"complete": complete, "commit_bytes": commit_bytes}
    with fr.Writer(path, SCHEMA, metadata=metadata, **options) as writer:
        for i in range(count):
            data = rng.bytes(int(rng.integers(0, largest + 1)))
            writer.append({"data": data, "label": i % len(classes or "abc"), "key": f"{path.stem}/{i}"})
    return path


def rows(path: str | os.PathLike[str]) -> list[Row]:
    """Verify all checksums and return all records, with labels as class names if there are any."""
    with fr.Reader(path) as reader:
        report = reader.verify()
        assert report["ok"], report["errors"]
        assert report["tail_bytes"] == 0
        classes = reader.metadata.get("classes")
        found = []
        for record in reader:
            label = record["label"]
            name = label if classes is None or label < 0 else classes[label]
            found.append((bytes(record["data"]), name, record["key"]))
        return found


def keys(path: str | os.PathLike[str]) -> list[str]:
    with fr.Reader(path) as reader:
        return list(reader.read_batch(range(len(reader)), ["key"])["key"])


def commits(path: str | os.PathLike[str]) -> int:
    with fr.Reader(path) as reader:
        return reader.commit


def metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a file's metadata without its provenance."""
    with fr.Reader(path) as reader:
        return without_origin(reader.metadata)
