"""`Ahead`: brings what the next batches read of shards in object stores, while others are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.stats import Clock
from fastrecord.store.cache import Cache, Hold
from fastrecord.store.cached_file import CachedFile
from fastrecord.store.shard_source import bring, hold_all, is_whole
from fastrecord.store.threads import Threads

# Shards from which parts are brought at once.
_SHARDS = 16
# Requests that are brought ahead; few of them where space is limited.
_DEPTH, _LIMITED = 16, 2
# An epoch of at least this share of all records reads the files whole: then neighbours come in one request.
_MOST = 0.75
# Of a data set whose sizes of all records are kept in memory.
_MOST_ROWS, _MOST_SHARDS = 1 << 24, 1 << 12

if TYPE_CHECKING:
    from fastrecord.loader.batch_maker import Begin

_Parts = list[tuple[int, NDArray[np.int64]]]


class Ahead:
    """Requests in order, each once its values are here.

    Args:
        dataset: Its files, some of them in object stores.
        fields: The fields of a batch.
        begin: Begins what the loader makes; `here`: all that it reads is here already.
        clock: Counts the time that the consumer waits.
    """

    def __init__(self, dataset: FastRecordDataset, fields: Sequence[str], begin: Begin, clock: Clock) -> None:
        shards = dataset.selection.shards
        self._shards, self._fields = shards, list(fields)
        self._clock, self._sources = clock, dataset.selection.shards.sources
        self._threads = Threads(_SHARDS, "fastrecord-ahead")
        self._queue: deque[tuple[BatchRequest, _Parts, list[Future[None]]]] = deque()
        self._depth = _DEPTH if shards.fit_caches else _LIMITED
        self._whole_runs = shards.fit_caches and len(dataset) >= _MOST * int(shards.ends[-1])
        limited = any(source.store.cache_size is not None for source in self._sources)
        # Shards of which all is here, as of a generation of each cache; and all sizes, once those are all shards.
        self._whole: set[int] = set()
        self._generations: list[int] = []
        self._sizes: NDArray[np.int64] | None = None
        if len(self._shards.ends) <= _MOST_SHARDS:
            self._look(range(len(self._shards.ends)), [cache.hold() for cache in self._caches()], look=False)
        self._requests = begin(here=not limited and len(self._whole) == len(self._shards.ends))

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for a store."""
        self._fill()
        return not self._queue or all(future.done() for future in self._queue[0][2])

    def next(self) -> tuple[BatchRequest, list[Hold]] | None:
        """Return the next request, with what keeps its values here; None at the end.

        Raises:
            FastRecordError, OSError: the store does not answer, or has other shards.
        """
        self._fill()
        if not self._queue:
            return None
        request, parts, futures = self._queue.popleft()
        self._fill()
        if not futures and (holds := self._held()):
            if self._sizes is None:
                self._count(parts)
            else:
                self._sources[0].count(int(self._sizes[request.rows].sum()))
            return request, holds
        with self._clock.waiting_for_network():
            for future in futures:
                future.result()
            return request, self._hold(parts or self._split(request))

    def is_read(self, request: BatchRequest) -> None:
        """Take note that nothing more is read of a request: what it held was released before."""

    def close(self) -> None:
        """Bring no more."""
        for _, _, futures in self._queue:
            for future in futures:
                future.cancel()
        self._queue.clear()
        self._threads.end()

    def _fill(self) -> None:
        while len(self._queue) < self._depth and (request := next(self._requests, None)) is not None:
            parts: _Parts = [] if self._sizes is not None else self._split(request)
            futures = [
                self._threads.submit(bring, self._shards.readers[shard], self._fields, records, self._whole_runs)
                for shard, records in parts
                if shard not in self._whole
            ]
            self._queue.append((request, parts, futures))

    def _split(self, request: BatchRequest) -> _Parts:
        return [(shard, records) for shard, _, records in self._shards.split(request.rows)]

    def _caches(self) -> list[Cache]:
        return list(dict.fromkeys(source.cache for source in self._sources))

    def _held(self) -> list[Hold]:
        """Return what keeps all that was known to be here; nothing if some of it was given up since."""
        holds = [cache.hold() for cache in self._caches()]
        if [hold.generation for hold in holds] == self._generations:
            return holds
        self._forget()
        return []

    def _forget(self) -> None:
        self._whole.clear()
        self._sizes = None

    def _count(self, parts: _Parts) -> None:
        for shard, records in parts:
            supply = self._shards.supply(shard)
            if supply is not None:
                supply.source.count(int(supply.sizes(self._fields)[records].sum()))

    def _hold(self, parts: _Parts) -> list[Hold]:
        """Bring what was given up meanwhile; return what keeps the rest here."""
        caches = self._caches()
        wanted: list[list[tuple[CachedFile, list[str], NDArray[np.int64], bool]]] = [[] for _ in caches]
        for shard, records in parts:
            supply = self._shards.supply(shard)
            if supply is not None:
                wanted[caches.index(supply.source.cache)].append((supply.file, self._fields, records, True))
        holds = [hold_all(cache, files) for cache, files in zip(caches, wanted, strict=True)]
        self._look([shard for shard, _ in parts], holds)
        return holds

    def _look(self, shards: Iterable[int], holds: Sequence[Hold], *, look: bool = True) -> None:
        """Note of which shards all is here; `look`: look at their copies too."""
        caches, generations = self._caches(), [hold.generation for hold in holds]
        if generations != self._generations:
            self._forget()
            self._generations = generations
        for shard in shards:
            supply = self._shards.supply(shard)
            generation = 0 if supply is None else generations[caches.index(supply.source.cache)]
            if is_whole(self._shards.readers[shard], self._fields, generation, look=look):
                self._whole.add(shard)
        count = len(self._shards.ends)
        if self._sizes is None and len(self._whole) == count <= _MOST_SHARDS and len(self._shards) <= _MOST_ROWS:
            self._sizes = np.concatenate([self._sizes_of(shard) for shard in range(count)])

    def _sizes_of(self, shard: int) -> NDArray[np.int64]:
        supply = self._shards.supply(shard)
        if supply is None:
            return np.zeros(len(self._shards.readers[shard]), np.int64)
        return supply.sizes(self._fields)
