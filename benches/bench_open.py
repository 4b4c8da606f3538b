"""Time and memory of opening a file, for any number of records."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fastrecord as fr
from benches.conftest import Data, make, note


def test_open_a_million_records(small: Data, folder: Path, versus: Callable[..., None], benchmark: Any) -> None:
    """Open and close a file of 1,000,000 records, against one of 1,000."""
    thousand = make(folder, 1_000, 100, with_lmdb=False)

    def opened(path: Path) -> None:
        for _ in range(10):
            fr.Reader(path).close()

    versus(
        lambda: opened(small.frec),
        {"1,000 records": (lambda: opened(thousand.frec), 2, "cost")},
        scale=1e6 / 10,
    )
    note("open 1,000,000 records, s", "1 ms", benchmark.stats.stats.median / 10, 1e-3, 1, "cost")


def test_open_a_hundred_million_records(folder: Path, versus: Callable[..., None], benchmark: Any) -> None:
    """Open a file of 100,000,000 records and read its last one, against a file of 1,000."""
    paths = {count: folder / f"labels-{count}.frec" for count in (1_000, 100_000_000)}
    for count, path in paths.items():
        if not path.exists():
            with fr.Writer(path, fr.Schema({"label": "int64"}), mode="w") as writer:
                for start in range(0, count, 1_000_000):
                    writer.extend({"label": np.arange(start, min(start + 1_000_000, count))})

    def last(count: int) -> None:
        for _ in range(10):
            with fr.Reader(paths[count]) as reader:
                assert reader[count - 1]["label"] == count - 1

    versus(
        lambda: last(100_000_000),
        {"1,000 records": (lambda: last(1_000), 2, "cost")},
        scale=1e6 / 10,
    )
    note("open 100,000,000 records, s", "1 ms", benchmark.stats.stats.median / 10, 1e-3, 1, "cost")


def test_memory_of_an_open_file(small: Data) -> None:
    """Resident memory of 20 open readers of 1,000,000 records, after `len` and one record each."""
    process = psutil.Process()
    fr.Reader(small.frec)[0]
    gc.collect()
    before = process.memory_info().rss
    readers = [fr.Reader(small.frec) for _ in range(20)]
    added = (process.memory_info().rss - before) / len(readers)
    note("memory of one open reader, bytes", "1 MB", max(added, 1.0), 1e6, 1, "cost")
    assert all(len(reader) == small.records for reader in readers)
