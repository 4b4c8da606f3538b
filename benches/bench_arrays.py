"""Time the loader's batches of arrays against a plain copy, a memmap, and other batch sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fastrecord as fr
from benches.conftest import note
from benches.peers.arrays import ours
from benches.support.native import Gather
from benches.support.pairs import Pairs

THREADS = min(2, len(os.sched_getaffinity(0)))
FIELDS = {"lr": 32 * 32 * 3, "hr": 128 * 128 * 3}
# The yardstick copies this many records at a time: enough to keep its threads busy, few enough to
# stay in the cache.
AT_ONCE = 80


@dataclass
class Files:
    """20,000 pairs as a .frec file and as .npy files."""

    frec: Path
    pairs: Pairs

    def extents(self) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
        """The mapped .frec file, and the place of each value in it."""
        memory = np.memmap(self.frec, np.uint8, mode="r")
        with fr.Reader(self.frec) as reader:
            found = {
                name: np.array([np.asarray(reader.get(i, name)).ctypes.data for i in range(len(reader))])
                for name in FIELDS
            }
        # Payloads begin after the superblock's page; views of single records come from another
        # mapping of the file.
        base = min(int(addresses.min()) for addresses in found.values()) - 4096
        return np.asarray(memory), {name: addresses - base for name, addresses in found.items()}


@pytest.fixture(scope="session")
def files(folder: Path) -> Files:
    """Made once: patches of 32 and 128 pixels."""
    pairs = Pairs(folder / "pairs", 20_000, 32, 128, scale=4).make()
    ours.prepare(pairs)
    return Files(ours.path_of(pairs), pairs)


def epochs(
    files: Files, batch: int, *, verify: bool = True, fields: tuple[str, ...] = ("lr", "hr")
) -> Callable[[], None]:
    """Return a function that runs an epoch in batches of the given size."""
    dataset = fr.FastRecordDataset(files.frec, fields=fields, verify=verify)
    loader = fr.FastRecordLoader(dataset, batch, shuffle=True, threads=THREADS)

    def run() -> None:
        for _ in loader:
            pass

    return run


def copies(files: Files, gather: Gather, batch: int, fields: tuple[str, ...] = ("lr", "hr")) -> Callable[[], None]:
    """Return a function that copies an epoch's values into a reused buffer, in random order."""
    memory, offsets = files.extents()
    memory[::4096].sum()  # maps every page, as our warm-up does
    count = files.pairs.count
    order = np.random.default_rng(1).permutation(count)
    out = {name: np.empty(batch * FIELDS[name], np.uint8) for name in fields}
    lengths = {name: np.full(count, FIELDS[name], np.int64) for name in fields}

    def run() -> None:
        for start in range(0, count, batch):
            rows = order[start : start + batch]
            for name in fields:
                # Small copies are not worth a second thread.
                threads = THREADS if FIELDS[name] > 1 << 14 else 1
                gather(offsets[name][rows], lengths[name][: len(rows)], out[name], threads=threads, memory=memory)

    return run


def memmap(files: Files, batch: int) -> Callable[[], None]:
    """Return a function that indexes the .npy files by whole batches, in this process."""
    arrays = files.pairs.arrays()
    order = np.random.default_rng(1).permutation(files.pairs.count)

    def run() -> None:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            for array in arrays.values():
                torch.from_numpy(array[rows])

    return run


@pytest.mark.parametrize("batch", [8, 128])
def test_overhead_of_a_batch_over_copying(
    files: Files, gather: Gather, benchmark: Any, versus: Callable[..., None], batch: int
) -> None:
    """The cost of an epoch beyond a copy of its bytes by as many threads, without checksums."""
    name = f"memcpy, {THREADS} threads"
    scale = 1e6 * batch / files.pairs.count
    yardstick = copies(files, gather, AT_ONCE)
    versus(epochs(files, batch, verify=False), {name: (yardstick, 0.8, "speedup")}, rounds=10, scale=scale)
    beyond = (benchmark.stats.stats.median - benchmark.extra_info[name]["seconds"]) * scale
    benchmark.extra_info["us_beyond_memcpy"] = beyond
    note(f"us beyond memcpy, batch of {batch}", "10 us", max(beyond, 0.0), 10, 1, "cost")


def test_small_batches_against_large_ones(files: Files, versus: Callable[..., None]) -> None:
    """An epoch in batches of 8 against one in batches of 128."""
    versus(epochs(files, 8), {"batches of 128": (epochs(files, 128), 1.3, "cost")}, rounds=10, scale=1)


@pytest.mark.parametrize("batch", [8, 128])
def test_epoch_against_a_memmap(files: Files, versus: Callable[..., None], batch: int) -> None:
    """An epoch with checksums against whole batches of a numpy memmap in the training process."""
    versus(epochs(files, batch), {"numpy memmap": (memmap(files, batch), 1, "speedup")}, rounds=10, scale=1)


@pytest.mark.parametrize("verify", [False, True])
def test_stacked_batches_of_256(files: Files, gather: Gather, versus: Callable[..., None], verify: bool) -> None:
    """Batches of 256 arrays of 48 KiB against a memcpy of the same extents."""
    yardstick = copies(files, gather, 256, ("hr",))
    target = 0.55 if verify else 0.8
    peers = {f"memcpy, {THREADS} threads": (yardstick, target, "speedup")}
    versus(epochs(files, 256, verify=verify, fields=("hr",)), peers, rounds=10, scale=1e3 * 256 / files.pairs.count)
