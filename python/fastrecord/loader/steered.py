"""`Steered`: brings what the next batches read by the plan of a cache that knows the future.

For one process on a node: it decides alone what the cache brings and gives up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import bring
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.stats import Clock
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.ahead import Ahead
from fastrecord.store.cache import Hold
from fastrecord.store.cached_file import CachedFile
from fastrecord.store.plan import Plan, least_limit, steps_ahead
from fastrecord.store.supply import hold_all
from fastrecord.store.threads import Threads

# Shards from which parts are brought at once.
_SHARDS = 16
# A plan needs the size of each record in memory, and opens each shard.
_MOST_ROWS, _MOST_SHARDS = 1 << 24, 1 << 12

_Numbers = NDArray[np.int64]


class Steered:
    """Requests in order, each once its values are here.

    Args:
        dataset: Its files, all in one object store, with a cache that has a limit.
        sampler: Its sampler.
        fields: The fields of a batch.
        requests: The batches that the loader makes next, one in each.
        clock: Counts the time that the consumer waits.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        sampler: FastRecordBatchSampler,
        fields: Sequence[str],
        requests: Iterator[BatchRequest],
        clock: Clock,
    ) -> None:
        self._shards, self._fields = dataset.selection.shards, list(fields)
        self._requests, self._clock = requests, clock
        self._source = self._shards.sources[0]
        self._cache = self._source.cache
        self._order = NodeOrder(sampler, dataset, sampler.rank, nodes=sampler.world_size)
        self._last = len(sampler) - 1
        self._threads = Threads(_SHARDS, "fastrecord-steered")
        self._ahead: Ahead | None = None
        self._done = -1
        try:
            none = np.empty(0, np.int64)
            self._each([(bring, reader, self._fields, none) for reader in self._shards.readers])  # columns
            files = self._files()
            self._sizes = np.concatenate([file.sizes(self._fields) for file in files])
            # Rows that were brought and not read since.
            self._brought = np.zeros(len(self._sizes), np.bool_)
            self._request = next(requests, None)
            if self._request is not None:
                self._ahead = self._begun(self._request, files)
        except BaseException:
            self._threads.end()
            raise

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for a store."""
        request = self._request
        return request is None or self._ahead is None or self._ahead.has(self._step(request))

    def next(self) -> tuple[BatchRequest, list[Hold]] | None:
        """Return the next request, with what keeps its values here; None at the end.

        Raises:
            FastRecordError, OSError: the store does not answer, or has other shards.
        """
        request = self._request
        if request is None:
            return None
        with self._clock.waiting_for_network():
            if self._ahead is not None:
                self._ahead.wait(self._step(request))
            # Usually all is here; another job may have needed the space.
            wanted = [
                (self._file(shard), self._fields, records, True) for shard, _, records in self._split(request.rows)
            ]
            hold = hold_all(self._cache, wanted)
        found = np.unique(request.rows[~self._brought[request.rows]])
        self._source.count(int(self._sizes[found].sum()))
        self._brought[request.rows] = False
        self._request = next(self._requests, None)
        return request, [hold]

    def is_read(self, request: BatchRequest) -> None:
        """Take note that nothing more is read of a request."""
        step = self._step(request)
        over = request.number == self._last or (request.number + 1) % self._order.batches == 0
        self._done = step if over else step - 1

    def close(self) -> None:
        """Bring no more."""
        if self._ahead is not None:
            self._ahead.close()
        self._threads.end()

    # What the plan's decisions call: a unit is a row.

    def bring(self, units: _Numbers) -> None:
        """Bring rows."""
        self._brought[units] = True
        self._each(
            [
                (partial(self._file(shard).need, tight=True), self._fields, records)
                for shard, _, records in self._split(units)
            ]
        )

    def give_up(self, units: _Numbers) -> None:
        """Give up rows."""
        self._cache.give_up([(self._file(shard), self._fields, records) for shard, _, records in self._split(units)])

    def progress(self) -> int:
        """Return the last step that is done."""
        return self._done

    def _each(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Call functions side by side; wait for all of them."""
        futures = [self._threads.submit(*call) for call in calls]
        for future in futures:
            future.result()

    def _begun(self, request: BatchRequest, files: Sequence[CachedFile]) -> Ahead | None:
        """Begin to execute a plan; None if the cache is too small for one."""
        starts = np.r_[0, self._shards.ends[:-1]]
        there = np.concatenate([start + file.all_here(self._fields) for start, file in zip(starts, files, strict=True)])
        # What opening reads, and columns, stay.
        kept = sum(file.charge for file in files) - int(self._sizes[there].sum())
        limit = (self._source.limit or 0) - kept
        if least_limit(self._order, self._sizes, 1, epoch=request.epoch) > limit:
            return None
        ahead = steps_ahead(self._order, self._sizes, limit)
        first = self._step(request)
        step = first - request.epoch * self._order.steps
        plan = Plan(self._order, self._sizes, limit, ahead=ahead, epoch=request.epoch, step=step, there=there)
        self._done = first - 1
        return Ahead(plan.of_epoch(), self, steps=self._order.steps).start()

    def _step(self, request: BatchRequest) -> int:
        return self._order.step(request.epoch, request.number)

    def _split(self, rows: _Numbers) -> list[tuple[int, _Numbers, _Numbers]]:
        return list(self._shards.split(rows))

    def _files(self) -> list[CachedFile]:
        return [self._file(shard) for shard in range(len(self._shards.ends))]

    def _file(self, shard: int) -> CachedFile:
        supply = self._shards.supply(shard)
        if supply is None:
            raise AssertionError
        return supply.file


def can_steer(dataset: FastRecordDataset, sampler: FastRecordBatchSampler) -> bool:
    """Return whether one process's plan decides what the cache of a data set keeps."""
    shards = dataset.selection.shards
    sources = shards.sources
    # A launcher that does not say how many ranks a node has may have started several.
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or sampler.world_size)
    if ranks > 1 or sampler.nodes not in (1, sampler.world_size):
        return False  # several ranks use the cache
    if len({source.cache for source in sources}) != 1:
        return False
    if sources[0].limit is None or not sources[0].cache.is_named:
        return False
    if len(shards.ends) > _MOST_SHARDS or int(shards.ends[-1]) > _MOST_ROWS:
        return False
    return all(shards.supply(shard) is not None for shard in range(len(shards.ends)))
