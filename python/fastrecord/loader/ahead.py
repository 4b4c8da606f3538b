"""`Ahead`: brings what the next batches read of shards in object stores, while others are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from fastrecord._core import bring
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.stats import Clock
from fastrecord.store.cache import Hold
from fastrecord.store.cached_file import CachedFile
from fastrecord.store.supply import hold_all
from fastrecord.store.threads import Threads

# Shards from which parts are brought at once.
_SHARDS = 16
# Requests that are brought ahead; few of them where space is limited.
_DEPTH, _LIMITED = 16, 2


class Ahead:
    """Requests in order, each once its values are here.

    Args:
        dataset: Its files, some of them in object stores.
        fields: The fields of a batch.
        requests: What the loader makes next.
        clock: Counts the time that the consumer waits.
    """

    def __init__(
        self, dataset: FastRecordDataset, fields: Sequence[str], requests: Iterator[BatchRequest], clock: Clock
    ) -> None:
        self._shards, self._fields, self._requests, self._clock = (
            dataset.selection.shards,
            list(fields),
            requests,
            clock,
        )
        self._threads = Threads(_SHARDS, "fastrecord-ahead")
        self._queue: deque[tuple[BatchRequest, list[Future[None]]]] = deque()
        limited = any(source.limit is not None for source in self._shards.sources)
        self._depth = _LIMITED if limited else _DEPTH

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for a store."""
        self._fill()
        return not self._queue or all(future.done() for future in self._queue[0][1])

    def next(self) -> tuple[BatchRequest, list[Hold]] | None:
        """Return the next request, with what keeps its values here; None at the end.

        Raises:
            FastRecordError, OSError: the store does not answer, or has other shards.
        """
        self._fill()
        if not self._queue:
            return None
        request, futures = self._queue.popleft()
        self._fill()
        with self._clock.waiting_for_network():
            for future in futures:
                future.result()
            return request, self._hold(request)

    def close(self) -> None:
        """Bring no more."""
        for _, futures in self._queue:
            for future in futures:
                future.cancel()
        self._queue.clear()
        self._threads.end()

    def _fill(self) -> None:
        while len(self._queue) < self._depth and (request := next(self._requests, None)) is not None:
            readers, futures = self._shards.readers, []
            for shard, _, records in self._shards.split(request.rows):
                futures.append(self._threads.submit(bring, readers[shard], self._fields, records))
            self._queue.append((request, futures))

    def _hold(self, request: BatchRequest) -> list[Hold]:
        wanted: dict[int, list[tuple[CachedFile, list[str], object, bool]]] = {}
        caches = {}
        for shard, _, records in self._shards.split(request.rows):
            supply = self._shards.supply(shard)
            if supply is not None:
                cache = supply.source.cache
                caches[id(cache)] = cache
                wanted.setdefault(id(cache), []).append((supply.file, self._fields, records, True))
        return [hold_all(caches[at], files) for at, files in wanted.items()]  # type: ignore[arg-type]
