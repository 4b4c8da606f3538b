"""Class folders and checks of packed files, shared by the pack tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import fastrecord as fr
from fastrecord.packing.summary import PackSummary
from fastrecord.schema.shard_sets import without_origin
from tests.conftest import encode


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write_many(folder: Path, count: int) -> Path:
    """Make class folders of JPEGs that differ in their last bytes."""
    data = encode(1)[:-2]
    names = (f"{'abc'[i % 3]}/{i:04d}.jpg" for i in range(count))
    return write(folder, {name: data + i.to_bytes(2, "little") + b"\xff\xd9" for i, name in enumerate(names)})


def write_shards(
    folder: Path, schema: fr.Schema, shards: int, each: int, record: Callable[[int], Mapping[str, Any]]
) -> Path:
    """Write a data set of shards of as many records, each made of its number."""
    folder.mkdir()
    for shard in range(shards):
        with fr.Writer(folder / f"train-{shard:05}-of-{shards:05}.frec", schema) as writer:
            for number in range(shard * each, (shard + 1) * each):
                writer.append(record(number))
    fr.files.write_manifest(folder)
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


def pack_with(source: Any, out: str | os.PathLike[str], **options: Any) -> PackSummary:
    """Pack; what is no field of an option object, nor an argument of `pack`, is a setting of the format."""
    own = {"dataset": ("quality",), "pairs": ("sixteen_bit",)}.get(options.get("format", ""), ())
    own_settings = {name: options.pop(name) for name in own if name in options}
    options["settings"] = options.get("settings", {}) | own_settings
    taken: dict[Any, dict[str, Any]] = {kind: _take(kind, options) for kind in (fr.Fields, fr.Recode, fr.Output)}
    given: dict[str, Any] = {name: options.pop(name) for name in ("format", "settings") if name in options}
    passed = {name: options.pop(name) for name in ("bad_files", "progress") if name in options}
    if store := taken[fr.Output].get("store"):
        given["store"] = store
    if options:
        given["settings"] = {**given.get("settings", {}), **options}
    objects: dict[str, Any] = {"fields": fr.Fields, "recode": fr.Recode, "output": fr.Output}
    return fr.pack(
        fr.Input(source, **given), out, **passed, **{name: kind(**taken[kind]) for name, kind in objects.items()}
    )


def _take(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
