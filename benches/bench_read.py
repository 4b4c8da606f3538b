"""Warm reads: batches as returned, with a buffer of every record, and copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray

import fastrecord as fr
from benches.conftest import Data
from benches.support.native import Gather

BATCH = 256
THREADS = 2


def batches(records: int, count: int) -> list[NDArray[np.int64]]:
    """Batches in random order, without repeated records in a batch."""
    rng = np.random.default_rng(1)
    return [rng.choice(records, BATCH, replace=False) for _ in range(count)]


def consume(items: Any) -> None:
    """Exhaust an iterator at C speed."""
    deque(items, maxlen=0)


def extents(data: Data) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The mapped file and the place of each payload, for peers that read the same extents."""
    memory = np.memmap(data.frec, np.uint8, mode="r")
    with fr.Reader(data.frec) as reader:
        lengths = reader.lengths("data")
        base = memory.ctypes.data
        views = reader.read_batch(np.arange(data.records), ["data"])["data"]
        first = np.frombuffer(views[0], np.uint8).ctypes.data
        # All payloads lie in one run, except for the commits between them; their addresses give
        # their places.
        addresses = np.array([np.frombuffer(view, np.uint8).ctypes.data for view in views])
        # Views of batches come from a separate mapping: the first payload lies after the
        # superblock's page.
        offsets = addresses - first + 4096
    assert base
    return np.asarray(memory), offsets.astype(np.int64), lengths


def test_batch_of_views_as_handed_over(large: Data, versus: Callable[..., None]) -> None:
    """Zero-copy batches of 256 records of 110 KB: bounds checked, all lengths known."""
    reader = fr.Reader(large.frec)
    environment = lmdb.open(str(large.lmdb), subdir=False, readonly=True, lock=False)
    chosen = batches(large.records, 100)
    with environment.begin(buffers=True) as transaction:

        def ours() -> None:
            for rows in chosen:
                reader.read_batch(rows, ["data"])

        def theirs() -> None:
            for rows in chosen:
                [transaction.get(large.keys[i]) for i in rows]

        versus(ours, {"lmdb buffers=True": (theirs, 10, "speedup")}, scale=1e9 / BATCH / len(chosen))


def test_batch_with_a_python_buffer_of_every_record(large: Data, versus: Callable[..., None]) -> None:
    """The same, with a memoryview of each record."""
    reader = fr.Reader(large.frec)
    memory, offsets, lengths = extents(large)
    view = np.memmap(large.frec, np.uint8, mode="r")
    chosen = batches(large.records, 100)

    def ours() -> None:
        for rows in chosen:
            consume(reader.read_batch(rows, ["data"])["data"])

    starts, ends = offsets.tolist(), (offsets + lengths).tolist()
    plain = [rows.tolist() for rows in chosen]

    def theirs() -> None:
        for rows in plain:
            consume(memory[starts[i] : ends[i]] for i in rows)

    def subclass() -> None:
        for rows in plain:
            consume(view[starts[i] : ends[i]] for i in rows)

    peers = {"numpy slices": (theirs, 1, "speedup"), "numpy.memmap slices": (subclass, 1, "speedup")}
    versus(ours, peers, scale=1e9 / BATCH / len(chosen))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("threads", [1, THREADS])
def test_batch_copied(large: Data, gather: Gather, versus: Callable[..., None], threads: int, verify: bool) -> None:
    """Batches of 256 records of 110 KB copied into one reused buffer, against a memcpy of the same extents."""
    reader = fr.Reader(large.frec, threads=threads)
    memory, offsets, lengths = extents(large)
    out = np.empty(BATCH * large.size, np.uint8)
    chosen = batches(large.records, 10)
    memory[::4096].sum()  # maps every page, as our warm-up does
    for start in range(0, large.records, BATCH):
        reader.read_batch_into(range(start, min(start + BATCH, large.records)), "data", out, verify=False)

    def ours() -> None:
        for rows in chosen:
            reader.read_batch_into(rows, "data", out, verify=verify)

    def theirs() -> None:
        for rows in chosen:
            gather(offsets[rows], lengths[rows], out, threads=threads, memory=memory)

    target = 0.55 if verify else 0.9
    versus(ours, {f"memcpy, {threads} threads": (theirs, target, "speedup")}, scale=1e3 / len(chosen))


@pytest.mark.parametrize("verify", [False, True])
def test_small_records_copied(small: Data, versus: Callable[..., None], verify: bool) -> None:
    """Batches of 256 of 1,000,000 records of 100 B, copied."""
    reader = fr.Reader(small.frec)
    environment = lmdb.open(str(small.lmdb), subdir=False, readonly=True, lock=False)
    chosen = batches(small.records, 400)
    out = np.empty(BATCH * small.size, np.uint8)
    with environment.begin() as transaction:

        def ours() -> None:
            for rows in chosen:
                reader.read_batch_into(rows, "data", out, verify=verify)

        def theirs() -> None:
            for rows in chosen:
                [transaction.get(small.keys[i]) for i in rows]

        versus(ours, {"lmdb": (theirs, 10, "speedup")}, scale=1e9 / BATCH / len(chosen))
