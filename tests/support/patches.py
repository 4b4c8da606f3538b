"""A file with a field of every kind, and its records, shared by the array loader tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from tests.support.loading import loader_of

SCHEMA = fr.Schema(
    {
        "lr": fr.array("uint8", (4, 4, 3)),  # 48 bytes: stored in its column
        "hr": fr.array("uint8", (16, 16, 3)),
        "noise": fr.array("float16", (50,)),
        "mean": fr.array("bfloat16", (40,)),
        "nothing": fr.array("float32", (0, 3)),
        "flag": "bool",
        "phase": "complex64",
        "number": "int64",
        "tokens": fr.array("int32", (None,)),
        "boxes": fr.array("float32", (None, 4)),
        "key": fr.string(),
        "raw": fr.bytes_(),
        "meta": fr.json(),
        "words": fr.list_(fr.string()),
    }
)
STACKED = ("lr", "hr", "noise", "mean", "nothing", "flag", "phase", "number")
COUNT = 107  # in the fixture `patches`


def record(number: int) -> dict[str, Any]:
    """Return a record of seeded random values."""
    rng = np.random.default_rng(number)
    return {
        "lr": rng.integers(0, 256, (4, 4, 3), np.uint8),
        "hr": rng.integers(0, 256, (16, 16, 3), np.uint8),
        "noise": rng.normal(size=50).astype(np.float16),
        "mean": torch.from_numpy(rng.normal(size=40)).to(torch.bfloat16),
        "nothing": np.zeros((0, 3), np.float32),
        "flag": number % 3 == 0,
        "phase": complex(number, -1),
        "number": number,
        "tokens": np.arange(number % 6, dtype=np.int32) + number,
        "boxes": rng.random((1 + number % 4, 4), np.float32),
        "key": f"patch {number}",
        "raw": bytes([number % 256]) * (number % 5),
        "meta": {"number": number},
        "words": ["word"] * (number % 3),
    }


def write_patches(path: Path, numbers: Iterable[int] = range(COUNT)) -> Path:
    """Write the records with these numbers."""
    with fr.Writer(path, SCHEMA) as writer:
        for number in numbers:
            writer.append(record(number))
    return path


def opened(*paths: Path, **options: Any) -> fr.FastRecordDataset:
    """Return a data set of all fields; by default it would look for images in `raw`."""
    return fr.FastRecordDataset(paths, **{"fields": tuple(SCHEMA), **options})


def make(data: Path | fr.FastRecordDataset, batch_size: int | None = 4, **options: Any) -> FastRecordLoader:
    """Return a loader with two threads."""
    dataset = data if isinstance(data, fr.FastRecordDataset) else opened(data)
    return loader_of(dataset, batch_size, **options)


def numbers(batches: Iterable[Any]) -> list[list[int]]:
    """Return the record numbers of each batch."""
    return [batch["number"].tolist() for batch in batches]


def plain(value: Any) -> Any:
    """Replace tensors and arrays in a value by their bits, so that `==` compares it."""
    if isinstance(value, torch.Tensor):
        bits = value.contiguous().view(torch.uint8) if value.numel() else value
        return str(value.dtype), tuple(value.shape), bits.flatten().tolist()
    if isinstance(value, np.ndarray):
        return plain(torch.from_numpy(value))
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def expected(chosen: Iterable[int]) -> dict[str, Any]:
    """Return the batch of some records, made with torch alone."""
    records = [record(number) for number in chosen]
    batch: dict[str, Any] = {}
    for name, kind in SCHEMA.items():
        values = [one[name] for one in records]
        if isinstance(values[0], np.ndarray):
            values = [torch.from_numpy(value) for value in values]
        if name in ("flag", "phase", "number"):
            batch[name] = torch.tensor(values, dtype=getattr(torch, kind.name))
        else:
            batch[name] = torch.stack(values) if name in STACKED else values
    return batch


def check(batch: dict[str, Any], chosen: Iterable[int]) -> None:
    """Compare a batch of all fields with its expected records."""
    wanted = expected(chosen)
    assert list(batch) == list(wanted)
    for name, values in wanted.items():
        assert plain(batch[name]) == plain(values), name
