"""Class folders and checks of packed files, shared by the pack tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastrecord as fr
from fastrecord.schema.shard_sets import without_origin
from tests.conftest import encode


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def records(path: Path) -> list[tuple[bytes, int | None, str]]:
    with fr.Reader(path) as reader:
        return [(bytes(row["image"]), row.get("label"), row["key"]) for row in (reader[i] for i in range(len(reader)))]


def keys(path: Path) -> list[str]:
    return [key for _, _, key in records(path)]


def metadata(path: Path) -> dict[str, Any]:
    """Return a file's metadata without its shard set."""
    with fr.Reader(path) as reader:
        return without_origin(reader.metadata)


def is_complete(path: Path) -> bool:
    with fr.Reader(path) as reader:
        return reader.complete


def small_folder(folder: Path) -> Path:
    """Make two class folders of two and three images."""
    files = {f"{name}/{i}.jpg": encode(10 * len(name) + i) for name, n in (("ant", 2), ("bee", 3)) for i in range(n)}
    return write(folder, files)
