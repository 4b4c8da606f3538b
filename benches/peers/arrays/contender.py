"""`Source`: a loader of this folder, as the harness starts it."""

from __future__ import annotations

import importlib
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benches.peers.arrays import Batch, Epochs, Options
from benches.peers.arrays.srcnn import BORDER, Trainer
from benches.support.pairs import Pairs

# Loading alone repeats its epoch for this long: an epoch of a thousand pairs may take a millisecond.
ENOUGH = 0.1  # seconds
# Half of the cores compute, so that loading has the others on a machine without a GPU.
MODEL_THREADS = max(1, len(os.sched_getaffinity(0)) // 2)


def srcnn_pairs(folder: Path, side: int, count: int) -> Pairs:
    """The pairs for SRCNN: `side` pixels, reduced and enlarged by 2, and the inner part unchanged."""
    return Pairs(folder, count, side, side - BORDER, scale=2)


class Source:
    """A loader of pairs, alone or with SRCNN; `open` says which pairs.

    Args:
        source: The module of benches/peers/arrays, and after a colon words, joined by +.
        folder: The folder of the data.
    """

    def __init__(self, *, source: str, folder: str) -> None:
        self._name, _, words = source.partition(":")
        self._words, self._folder = frozenset(words.split("+")) - {""}, Path(folder)
        self._module = importlib.import_module(f"benches.peers.arrays.{self._name}")
        self.version: str = self._module.version()
        self._trainer = Trainer()
        self._epochs: Epochs
        self._pairs: Pairs
        self._number = 0

    def open(self, side: int, pairs: int, workers: int, *, pinned: bool = False) -> None:
        """Make the files if they do not exist, and close what was open before."""
        self.close()
        self._pairs, self._workers = srcnn_pairs(self._folder, side, pairs), workers
        self._module.prepare(self._pairs, self._words)
        self._epochs = self._module.epochs(self._pairs, Options(self._words, workers, pinned))

    def close(self) -> None:
        """End the workers."""
        self._epochs = lambda _number, _batch: ()

    def once(self, side: int, pairs: int, workers: int, batch: int) -> None:
        """Open pairs and load an epoch."""
        self.open(side, pairs, workers)
        for _ in self._epoch(batch):
            pass

    def check(self, batches: Sequence[int]) -> None:
        """Check an epoch in batches of each size; it also starts the workers.

        Raises:
            ValueError: A pair is missing or repeated, patches of two pairs are mixed, the order is
                the file's, or a batch has a wrong form.
        """
        for batch in batches:
            came = [self._identified(found, batch) for found in self._epoch(batch)]
            if self._name != "constant":
                self._compare(came, batch)

    def warm(self, batches: Sequence[int]) -> None:
        """Train for two steps at each size, since the first ones choose and compile kernels."""
        torch.set_num_threads(MODEL_THREADS)
        for batch in batches:
            zeros = {
                name: torch.zeros((batch, *shape), dtype=torch.uint8) for name, shape in self._pairs.shapes.items()
            }
            self._trainer.epoch([zeros, zeros])

    def load(self, batches: Sequence[int]) -> dict[int, float]:
        """Load epochs in batches of each size; return the seconds of one."""
        torch.set_num_threads(1)  # as in a DataLoader's workers: threads slow down so small a copy
        seconds = {}
        for batch in batches:
            start, epochs = time.perf_counter(), 0
            while (now := time.perf_counter()) - start < ENOUGH or not epochs:
                records = sum(len(found["hr"]) for found in self._epoch(batch))
                if records != self._pairs.count:
                    raise ValueError(f"{records} pairs of {self._pairs.count}")
                epochs += 1
            seconds[batch] = (now - start) / epochs
        return seconds

    def train(self, batches: Sequence[int]) -> dict[int, dict[str, float]]:
        """Train for an epoch in batches of each size; return the seconds of its phases."""
        torch.set_num_threads(MODEL_THREADS)
        return {batch: self._trainer.epoch(self._epoch(batch)) for batch in batches}

    def _epoch(self, batch: int) -> Iterable[Batch]:
        self._number += 1
        return self._epochs(self._number, batch)

    def _identified(self, found: Batch, batch: int) -> NDArray[np.uint32]:
        """Return a number for each pair of a batch, computed from both patches."""
        count = len(found["hr"])
        for name, shape in self._pairs.shapes.items():
            if found[name].dtype != torch.uint8 or found[name].shape != (count, *shape):
                raise ValueError(
                    f"{name}: a batch of {found[name].dtype} {tuple(found[name].shape)} with {count} pairs"
                )
        if not 0 < count <= batch:
            raise ValueError(f"a batch of {count} pairs, not of {batch}")
        return _numbers(found["lr"].numpy(), found["hr"].numpy())

    def _compare(self, batches: Sequence[NDArray[np.uint32]], batch: int) -> None:
        came, stored = np.concatenate(batches), _numbers(*self._pairs.arrays().values())
        if not np.array_equal(np.sort(came), np.sort(stored)):
            raise ValueError(f"{len(came)} pairs came of {len(stored)}, and they are not each of those stored once")
        if np.array_equal(came, stored):
            raise ValueError("the pairs came in the order of the file")
        # Each worker that makes its own batches may have a smaller last one.
        if len(batches) > -(-len(stored) // batch) + max(0, self._workers - 1):
            raise ValueError(f"{len(batches)} batches of {len(stored)} pairs, {batch} in each")


def _numbers(lr: NDArray[np.uint8], hr: NDArray[np.uint8]) -> NDArray[np.uint32]:
    pairs = zip(lr, hr, strict=True)
    return np.array([zlib.crc32(large.tobytes(), zlib.crc32(small.tobytes())) for small, large in pairs], np.uint32)
