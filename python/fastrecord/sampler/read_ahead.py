"""`ReadAhead`: which records to prefetch when records are shuffled by blocks.

Returns indices; it does not read or advise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import BlockOrder
from fastrecord.sampler.epoch import Epoch


class ReadAhead:
    """Lists the records of the next window in file order, during the batches of the current window.

    In a window of blocks the records come in random order: read one by one, they are random reads
    within it. But the next window is known. It is requested at the pace at which the current window
    is consumed, in file order. So a disk reads whole blocks in one direction, and each batch is in
    the page cache when it is needed. Each rank lists its own records only, so a machine reads only
    what it needs.

    Args:
        epoch: The epoch.
        order: Its order.
        rank, world_size: This rank has every `world_size`-th position, starting at position `rank`.
    """

    def __init__(self, epoch: Epoch, order: BlockOrder, rank: int, world_size: int) -> None:
        self._order, self._size, self._rank, self._world_size = order, epoch.global_batch_size, rank, world_size
        self._used = min(epoch.used, epoch.positions)
        self._end = -1
        self._window = (0, 0)
        self._next: NDArray[np.int64] = np.empty(0, np.int64)
        self._named = 0

    def indices(self, batch: int) -> NDArray[np.int64]:
        """Return the indices to prefetch when a batch begins: int64 (N,), N may be 0.

        The indices are this rank's. The first batch, and a batch that does not follow the
        previous one, start with the rest of their own window. That rest has not been prefetched.

        Args:
            batch: Number of the batch in its epoch.
        """
        start = batch * self._size
        stop = min(start + self._size, self._used)
        parts = []
        if start != self._end:
            self._enter(start)
            parts.append(self._share(start, self._window[1]))
        self._end = stop
        while start < stop:
            if start >= self._window[1]:
                self._enter(start)
            first, last = self._window
            start = min(stop, last)
            # The whole next window is listed when the whole current window is consumed.
            named = len(self._next) * (start - first) // (last - first)
            parts.append(self._next[self._named : named])
            self._named = named
        return np.concatenate(parts)

    def _enter(self, position: int) -> None:
        first, last = self._order.window(position)
        self._window = first, min(last, self._used)
        self._next = self._share(last, self._order.window(last)[1]) if last < self._used else self._next[:0]
        self._named = 0

    def _share(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return this rank's records at positions [start, stop), in file order."""
        first = start + (self._rank - start) % self._world_size
        return np.sort(self._order.rows(np.arange(first, min(stop, self._used), self._world_size, dtype=np.int64)))
