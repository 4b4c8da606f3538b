"""`OrderPrefetch` and `PlannedPrefetch`: bring what the next batches read of shards in object stores.

`OrderPrefetch` brings what comes next, and a full cache gives up what was used longest ago.
`PlannedPrefetch` follows a plan of a cache that knows the future: all ranks of a node compute the same
plan, each brings a share of it, the first one gives up, and `Ranks` shows them how far the others are.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastrecord.checks import digest, local_ranks
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.loader.batch_source import BatchRequest
from fastrecord.loader.stats import Clock
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.cache import Hold
from fastrecord.store.cached_file import CachedFile
from fastrecord.store.locks import pauses
from fastrecord.store.plan import Plan, least_limit, steps_ahead
from fastrecord.store.plan_executor import PlanExecutor
from fastrecord.store.ranks import MOST, PATIENCE, Ranks, Start
from fastrecord.store.shard_source import ShardSource, bring, hold_all, is_whole
from fastrecord.store.threads import Threads

# Shards from which parts are brought at once.
_SHARDS = 16
# Requests that are brought ahead; few of them where space is limited.
_DEPTH, _LIMITED = 16, 2
# An epoch of at least this share of all records reads the files whole: then neighbours come in one request.
_MOST = 0.75
# The sizes of all records of a larger data set are not kept in memory, and its shards are not all opened.
_MOST_ROWS, _MOST_SHARDS = 1 << 24, 1 << 12

_Numbers = NDArray[np.int64]
# Shards, and records in them.
_Parts = list[tuple[int, _Numbers]]


class Begin(Protocol):
    """Begins an iteration."""

    def __call__(self, *, local: bool) -> Iterator[BatchRequest]:
        """Return the requests; `local`: all that they read is on this machine."""


class _Prefetch:
    """What both have in common.

    Args:
        dataset: Its files, some of them in object stores.
        fields: The fields of a batch.
        clock: Counts the time that the consumer waits.
    """

    def __init__(self, dataset: FastRecordDataset, fields: Sequence[str], clock: Clock) -> None:
        self._shards, self._fields, self._clock = dataset.selection.shards, list(fields), clock
        self._count = len(self._shards.ends)
        self._caches = list(dict.fromkeys(source.cache for source in self._shards.sources))
        self._threads = Threads(_SHARDS, "fastrecord-prefetch")

    def _split(self, rows: _Numbers) -> _Parts:
        return [(shard, records) for shard, _, records in self._shards.split(rows)]

    def _supplies(self, parts: _Parts) -> Iterator[tuple[ShardSource, _Numbers]]:
        """Yield what brings each shard that does not lie on this machine, and its records."""
        for shard, records in parts:
            supply = self._shards.supply(shard)
            if supply is not None:
                yield supply, records

    def _hold(self, parts: _Parts) -> list[Hold]:
        """Bring what was given up meanwhile; return what keeps all here."""
        wanted: list[list[tuple[CachedFile, list[str], _Numbers, bool]]] = [[] for _ in self._caches]
        for supply, records in self._supplies(parts):
            wanted[self._caches.index(supply.source.cache)].append((supply.file, self._fields, records, True))
        return [hold_all(cache, files) for cache, files in zip(self._caches, wanted, strict=True)]


class OrderPrefetch(_Prefetch):
    """Requests in order, each once its values are here.

    Args:
        dataset, fields, clock: As for both.
        begin: Begins what the loader makes.
    """

    def __init__(self, dataset: FastRecordDataset, fields: Sequence[str], begin: Begin, clock: Clock) -> None:
        super().__init__(dataset, fields, clock)
        shards = self._shards
        self._queue: deque[tuple[BatchRequest, _Parts, list[Future[None]]]] = deque()
        self._depth = _DEPTH if shards.fit_caches else _LIMITED
        self._whole_runs = shards.fit_caches and len(dataset) >= _MOST * int(shards.ends[-1])
        # Shards of which all is here, as of a generation of each cache; and all sizes, once those are all shards.
        self._whole: set[int] = set()
        self._generations: list[int] = []
        self._sizes: _Numbers | None = None
        if self._count <= _MOST_SHARDS:
            self._look(range(self._count), [cache.hold() for cache in self._caches], look=False)
        unlimited = all(source.store.cache_size is None for source in shards.sources)
        self._requests = begin(local=unlimited and len(self._whole) == self._count)

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
                for supply, records in self._supplies(parts):
                    supply.source.count(int(supply.sizes(self._fields)[records].sum()))
            else:
                self._shards.sources[0].count(int(self._sizes[request.rows].sum()))
            return request, holds
        with self._clock.waiting_for_network():
            for future in futures:
                future.result()
            parts = parts or self._split(request.rows)
            holds = self._hold(parts)
            self._look([shard for shard, _ in parts], holds)
            return request, holds

    def release(self, request: BatchRequest) -> None:
        """The threads are done with this request; its holds have been released before."""

    def close(self) -> None:
        """Bring no more."""
        for _, _, futures in self._queue:
            for future in futures:
                future.cancel()
        self._queue.clear()
        self._threads.end()

    def _fill(self) -> None:
        while len(self._queue) < self._depth and (request := next(self._requests, None)) is not None:
            parts: _Parts = [] if self._sizes is not None else self._split(request.rows)
            futures = [
                self._threads.submit(bring, self._shards.readers[shard], self._fields, records, self._whole_runs)
                for shard, records in parts
                if shard not in self._whole
            ]
            self._queue.append((request, parts, futures))

    def _held(self) -> list[Hold]:
        """Return what keeps all that was known to be here; nothing if some of it was given up since."""
        holds = [cache.hold() for cache in self._caches]
        if [hold.generation for hold in holds] == self._generations:
            return holds
        self._whole.clear()
        self._sizes = None
        return []

    def _look(self, shards: Iterable[int], holds: Sequence[Hold], *, look: bool = True) -> None:
        """Note of which shards all is here; `look`: look at their copies too."""
        generations = [hold.generation for hold in holds]
        if generations != self._generations:
            self._whole.clear()
            self._sizes, self._generations = None, generations
        for shard in shards:
            supply = self._shards.supply(shard)
            generation = 0 if supply is None else generations[self._caches.index(supply.source.cache)]
            if is_whole(self._shards.readers[shard], self._fields, generation, look=look):
                self._whole.add(shard)
        all_here = len(self._whole) == self._count <= _MOST_SHARDS and len(self._shards) <= _MOST_ROWS
        if all_here and self._sizes is None:
            supplies = map(self._shards.supply, range(self._count))
            lengths = np.diff(self._shards.ends, prepend=0)
            self._sizes = np.concatenate(
                [
                    np.zeros(length, np.int64) if supply is None else supply.sizes(self._fields)
                    for supply, length in zip(supplies, lengths, strict=True)
                ]
            )


class PlannedPrefetch(_Prefetch):
    """Requests in order, each once its values are here; the cache keeps what the plan says.

    Args:
        dataset: Its files, all in one object store, with a cache that has a limit.
        sampler: Its sampler.
        fields, clock: As for both.
        requests: The batches that the loader makes next, one in each.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        sampler: FastRecordBatchSampler,
        fields: Sequence[str],
        requests: Iterator[BatchRequest],
        clock: Clock,
    ) -> None:
        super().__init__(dataset, fields, clock)
        self._requests = requests
        (self._source,), (self._cache,) = self._shards.sources, self._caches
        place = _place_of(sampler)
        if place is None:
            raise AssertionError
        self._order = NodeOrder(sampler, dataset, place.node, nodes=place.nodes)
        self._last = len(sampler) - 1
        self._ahead: PlanExecutor | None = None
        self._ranks: Ranks | None = None
        self._done, self._given_up = -1, 0
        # Whether it was closed; and whether the other ranks have not gone on for so long that it does without them.
        self._closed = self._alone = False
        try:
            self._request = next(requests, None)
            if place.ranks > 1:
                # Without any batch, the sampler counts the epoch as over.
                epoch = sampler.epoch - 1 if self._request is None else self._request.epoch
                name = self._name(sampler, epoch, place)
                self._ranks = Ranks.join(self._cache.folder or "", name, place.rank, place.ranks)
            if self._request is None:
                return
            none = np.empty(0, np.int64)
            self._each([(bring, reader, self._fields, none, False) for reader in self._shards.readers])  # columns
            files = [self._file(shard) for shard in range(self._count)]
            self._sizes = np.concatenate([file.sizes(self._fields) for file in files])
            # Rows that were brought and not read since.
            self._brought = np.zeros(len(self._sizes), np.bool_)
            if place.ranks == 1 or self._ranks is not None:
                self._ahead = self._begun(self._request, files)
        except BaseException:
            self.close()
            raise

    def is_ready(self) -> bool:
        """Return whether `next` would return without waiting for a store."""
        request = self._request
        if request is None or self._ahead is None:
            return True
        step = self._step(request)
        return self._ahead.has(step) and (self._ranks is None or self._ranks.has(step))

    def next(self) -> tuple[BatchRequest, list[Hold]] | None:
        """Return the next request, with what keeps its values here; None at the end.

        Raises:
            FastRecordError, OSError: the store does not answer, or has other shards.
        """
        request = self._request
        if request is None:
            return None
        with self._clock.waiting_for_network():
            self._wait(self._step(request))
            # Usually all is here; another job may have needed the space.
            holds = self._hold(self._split(request.rows))
        found = np.unique(request.rows[~self._brought[request.rows]])
        self._source.count(int(self._sizes[found].sum()))
        self._brought[request.rows] = False
        self._request = next(self._requests, None)
        return request, holds

    def release(self, request: BatchRequest) -> None:
        """The threads are done with this request."""
        step = self._step(request)
        over = request.number == self._last or (request.number + 1) % self._order.batches == 0
        self._done = step if over else step - 1
        if self._ranks is not None:
            self._ranks.report(done=self._done)

    def close(self) -> None:
        """Bring no more."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.close()
        self._threads.end()
        if self._ranks is not None:
            self._ranks.leave()

    # What the plan's decisions call: a unit is a row.

    def bring(self, units: _Numbers) -> None:
        """Bring this rank's share of rows."""
        self._brought[units] = True
        if self._ranks is not None:
            # What comes by one request is of one rank.
            units = units[units // self._order.together % self._ranks.count == self._ranks.rank]
        self._each(
            [
                (partial(self._file(shard).need, tight=True), self._fields, records)
                for shard, records in self._split(units)
            ]
        )

    def give_up(self, units: _Numbers) -> None:
        """Give up rows, or wait until the leader has done so."""
        ranks = self._ranks
        if ranks is None or ranks.leads:
            self._cache.give_up([(self._file(shard), self._fields, rows) for shard, rows in self._split(units)])
            if ranks is not None:
                ranks.gave_up()
            return
        self._given_up += 1
        pause = pauses()
        while ranks.given_up < self._given_up and not self._closed:
            self._cache.let_go()  # the leader waits for what this process holds
            pause()

    def progress(self) -> int:
        """Return the last step that all ranks are done with."""
        if self._ranks is None:
            return self._done
        self._cache.let_go()
        return self._ranks.done

    def _wait(self, step: int) -> None:
        """Wait until what a step needs is here; ranks that do not go on are not waited for."""
        if self._ahead is None or self._alone:
            return
        if self._ranks is None:
            self._ahead.wait(step)
            return
        self._ahead.check()
        pause, before, end = pauses(), self._ranks.progress(), time.monotonic() + PATIENCE
        while not self._ranks.has(step):
            self._ahead.check()
            if (now := self._ranks.progress()) != before:
                before, end = now, time.monotonic() + PATIENCE
            self._alone = time.monotonic() > end
            if self._alone:
                return
            pause()

    def _each(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Call functions side by side; wait for all of them."""
        futures = [self._threads.submit(*call) for call in calls]
        for future in futures:
            future.result()

    def _begun(self, request: BatchRequest, files: Sequence[CachedFile]) -> PlanExecutor | None:
        """Begin to execute a plan; None if the cache is too small for one, or the ranks do not begin together."""
        first, ranks = self._step(request), self._ranks
        start: Start | None
        if ranks is None or ranks.leads:
            start = self._start(request.epoch, first, files)
            if ranks is not None:
                ranks.begin(start)
        else:
            start = ranks.start()
        if start is None or start.step != first:
            if ranks is not None:
                ranks.leave()
            return None
        self._done = first - 1
        if ranks is not None:
            ranks.report(done=self._done)
        epoch, step = divmod(first, self._order.steps)
        plan = Plan(self._order, self._sizes, start.limit, ahead=start.ahead, epoch=epoch, step=step, there=start.there)
        reached = None if ranks is None else lambda step: ranks.report(reached=step)
        return PlanExecutor(plan.of_epoch(), self, steps=self._order.steps, reached=reached).start()

    def _start(self, epoch: int, first: int, files: Sequence[CachedFile]) -> Start | None:
        """Return what a plan begins with; None if the cache is too small for one."""
        starts = np.r_[0, self._shards.ends[:-1]]
        there = np.concatenate([start + file.all_here(self._fields) for start, file in zip(starts, files, strict=True)])
        # What opening reads, and columns, stay.
        kept = sum(file.charge for file in files) - int(self._sizes[there].sum())
        limit = (self._source.store.cache_size or 0) - kept
        if least_limit(self._order, self._sizes, 1, epoch=epoch) > limit:
            return None
        return Start(first, limit, steps_ahead(self._order, self._sizes, limit), there)

    def _name(self, sampler: FastRecordBatchSampler, epoch: int, place: _Place) -> str:
        """Name what the ranks of the node do together: the same for all of them."""
        order = {**sampler.state_dict(0), "epoch": epoch, "affinity": sampler.affinity}
        url, limit = self._source.folder.url, self._source.store.cache_size
        about = [url, limit, self._fields, order, place.node, place.nodes, place.ranks]
        return digest(json.dumps(about, sort_keys=True))

    def _step(self, request: BatchRequest) -> int:
        return self._order.step(request.epoch, request.number)

    def _file(self, shard: int) -> CachedFile:
        supply = self._shards.supply(shard)
        if supply is None:
            raise AssertionError
        return supply.file


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank is.

    Attributes:
        node, nodes: The number of its node, and of all nodes.
        rank, ranks: Its number on the node, and the ranks of the node.
    """

    node: int
    nodes: int
    rank: int
    ranks: int


def _place_of(sampler: FastRecordBatchSampler) -> _Place | None:
    """Return where a sampler's rank is; None if it is not known."""
    ranks = local_ranks()
    if ranks is None:
        if sampler.world_size > 1 and sampler.affinity is None:
            return None  # what started the ranks may have started several on a node
        ranks = sampler.world_size // sampler.nodes
    nodes = sampler.world_size // ranks
    if nodes * ranks != sampler.world_size or (sampler.affinity is not None and sampler.nodes != nodes):
        return None  # the sampler divides its batches otherwise
    return _Place(sampler.rank // ranks, nodes, sampler.rank % ranks, ranks)


def can_plan(dataset: FastRecordDataset, sampler: FastRecordBatchSampler) -> bool:
    """Return whether a plan of the ranks of this node decides what the cache of a data set keeps."""
    shards = dataset.selection.shards
    sources = shards.sources
    place = _place_of(sampler)
    if place is None or place.ranks > MOST:
        return False
    if len({source.cache for source in sources}) != 1:
        return False
    if shards.fit_caches or not sources[0].cache.is_named:
        return False
    if len(shards.ends) > _MOST_SHARDS or int(shards.ends[-1]) > _MOST_ROWS:
        return False
    return all(shards.supply(shard) is not None for shard in range(len(shards.ends)))
