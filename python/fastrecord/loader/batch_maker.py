"""`BatchMaker`: batches of columns, made by the core's threads or read in the consumer's thread.

Does not choose records, and knows neither images nor arrays.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, repeat
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import ArrayPlan, CorruptFileError, FastRecordError, ImagePlan, Loading
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.values import pick
from fastrecord.loader.batch_source import BatchRequest, IterableSource, SamplerSource
from fastrecord.loader.destination import Destination
from fastrecord.loader.group import Group
from fastrecord.loader.outputs import Failures, Outputs
from fastrecord.loader.skip import EpochSkips
from fastrecord.loader.stats import Clock
from fastrecord.loader.unstacked import Columns, UnstackedFields

Part: TypeAlias = slice | NDArray[np.int64]


class Waiting(Protocol):
    """Requests that are to be made."""

    def is_ready(self) -> bool:
        """Return whether `next` returns at once."""

    def next(self) -> tuple[BatchRequest, Sequence[Any]] | None:
        """Return the next request, and what keeps its values where they are; None at the end."""

    def is_read(self, request: BatchRequest) -> None:
        """Take note that nothing more is read of a request."""


class Begin(Protocol):
    """Begins an iteration."""

    def __call__(self, *, here: bool) -> Iterator[BatchRequest]:
        """Return the requests; `here`: all that they read is on this machine."""


class _Here:
    """Requests whose values are on this machine."""

    def __init__(self, requests: Iterator[BatchRequest]) -> None:
        self._requests = requests

    def is_ready(self) -> bool:
        return True

    def next(self) -> tuple[BatchRequest, Sequence[Any]] | None:
        request = next(self._requests, None)
        return None if request is None else (request, ())

    def is_read(self, request: BatchRequest) -> None:
        pass


class BatchMaker:
    """Makes batches: a dict of columns, or `(images, labels, *extra)` as a view of it.

    Args:
        dataset: The files, and which fields are in a batch.
        outputs: The columns that the core's threads make.
        unstacked: Reads all other columns in the consumer's thread.
        destination: Where batches go.
        prefetch: Groups in progress besides the one being consumed; 0: a batch is made when it is
            requested.
        single: Put the only image output itself into the batch, not a dict.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        outputs: Outputs,
        unstacked: UnstackedFields,
        destination: Destination,
        prefetch: int,
        *,
        single: bool,
    ) -> None:
        self._dataset = dataset
        self._fields, self.outputs, self._unstacked = dataset.fields, outputs, unstacked
        self._destination, self._prefetch, self._single = destination, prefetch, single
        self._only_stacked = not outputs.are_images and tuple(outputs.kinds) == dataset.fields

    def plan(self) -> ArrayPlan | ImagePlan:
        """Return the plan for the core's threads."""
        # The consumer's group, the previous group during its replacement, and those in progress.
        return self.outputs.plan(spares=len(self.outputs.kinds) * (self._prefetch + 2))

    def groups(
        self, loading: Loading, source: SamplerSource | IterableSource, clock: Clock, skips: EpochSkips
    ) -> Iterator[tuple[Group, Iterable[tuple[BatchRequest, Part, Any]]]]:
        """Yield groups, and their batches: each has a request, its part of the rows, its value (or None).

        Raises:
            FastRecordError, OSError: from a group, when a batch with a failed record is due.
        """
        pending: deque[Group] = deque()

        def begin(*, here: bool) -> Iterator[BatchRequest]:
            # All that a group reads must be here before the first of its batches is handed out.
            return source.groups(*self.outputs.group) if self._prefetch and here else iter(source)

        with self._brought(source, begin, clock, pending) as waiting:
            yield from self._groups(loading, waiting, pending, clock, skips)

    def _groups(
        self, loading: Loading, waiting: Waiting, pending: deque[Group], clock: Clock, skips: EpochSkips
    ) -> Iterator[tuple[Group, Iterable[tuple[BatchRequest, Part, Any]]]]:
        mend = self._mend if self._dataset.selection.shards.sources else None
        while True:
            # What is being made is handed out before this waits for a store.
            while len(pending) <= self._prefetch and (not pending or waiting.is_ready()):
                if (found := waiting.next()) is None:
                    break
                request, holds = found
                fill = self.outputs.fill(request, clock)
                pending.append(Group(loading, request, self.outputs, self._destination, fill, holds, mend))
            if not pending:
                return
            group = pending.popleft()
            with clock.waiting():
                group.complete()
            # On a stream of copies, each batch must wait for its copy, on the stream that is current then.
            plain = self._only_stacked and not group.failures and self._destination.stream is None
            upcoming = pending[0] if pending and self._destination.copies else None
            yield group, self._stacked(group, skips) if plain else self._cut(group, skips, upcoming)
            waiting.is_read(group.request)
            del group, upcoming  # frees the group's memory for a later one once its batches are gone

    def _mend(self, rows: NDArray[np.int64], failures: Failures) -> list[Any]:
        """Bring what is damaged in a copy again; return what keeps it here."""
        from fastrecord.store.shard_source import mend

        shards, names = self._dataset.selection.shards, list(self.outputs.kinds)
        damaged = rows[[slot for slot, error in failures if isinstance(error, CorruptFileError)]]
        if not len(damaged):
            return []
        holds = [mend(shards.readers[shard], names, records) for shard, _, records in shards.split(damaged)]
        return [hold for hold in holds if hold is not None]

    @contextmanager
    def _brought(
        self, source: SamplerSource | IterableSource, begin: Begin, clock: Clock, pending: deque[Group]
    ) -> Iterator[Waiting]:
        """Have what lies in object stores brought before it is read."""
        sources = self._dataset.selection.shards.sources
        if not sources:
            yield _Here(begin(here=True))
            return
        from fastrecord.loader.ahead import Ahead  # what needs no store does without them
        from fastrecord.loader.steered import Steered, can_steer

        def let_go() -> None:
            for group in list(pending):
                group.let_go()

        selection = self._dataset.selection
        others = (name for name in selection.fields if name != selection.image_field)
        names = tuple(dict.fromkeys((*self.outputs.kinds, *others)))
        ahead: Ahead | Steered
        if isinstance(source, SamplerSource) and can_steer(self._dataset, source.sampler):
            ahead = Steered(self._dataset, source.sampler, names, begin(here=False), clock)
        else:
            ahead = Ahead(self._dataset, names, begin, clock)
        # When the interpreter ends, the module `os` may be gone.
        process, current = os.getpid(), os.getpid
        with ExitStack() as stack:
            for cache in {each.cache for each in sources}:
                stack.enter_context(cache.releasing(let_go))
            stack.callback(ahead.close)
            try:
                yield ahead
            finally:
                if process != current():
                    stack.pop_all()  # a fork has neither the threads nor, for certain, their locks

    def _stacked(self, group: Group, skips: EpochSkips) -> Iterator[tuple[BatchRequest, Part, Any]]:
        """Return the batches of a group that need no further step.

        The threads copy 8 small arrays in the time of some lines of Python. So nothing runs for
        each batch except torch's split and these iterators.
        """
        request, names = group.request, tuple(self.outputs.kinds)
        skips.seen += len(request.rows)
        batches = map(dict, map(zip, repeat(names), zip(*group.columns(), strict=True)))
        ends = list(accumulate(request.sizes))
        return zip(repeat(request), map(slice, [0, *ends], ends), batches, strict=False)

    def _cut(self, group: Group, skips: EpochSkips, upcoming: Group | None) -> Iterator[tuple[BatchRequest, Part, Any]]:
        """Yield the batches of a group; the copy of the upcoming one begins before the last."""
        request, names = group.request, tuple(self.outputs.kinds)
        many = repeat(None) if group.failures else self._unstacked.read_many(request.rows, request.sizes)
        on_stream = self._destination.stream is not None
        columns = group.columns()
        stop = 0
        for number, size in enumerate(request.sizes):
            start, stop = stop, stop + size
            skips.seen += size
            part: Part = slice(start, stop)
            if on_stream:
                group.reach()
            batch: Columns = dict(zip(names, [column[number] for column in columns], strict=True))
            others = next(many)
            if others is None:
                kept, others = self._read(request.rows[part], group.failures_in(start, stop), skips)
                if not len(kept):
                    yield request, kept, None
                    continue
                if len(kept) < size:
                    part = kept + start
                    batch = {name: pick(tensor, kept) for name, tensor in batch.items()}
            made = self._view(batch, others)
            if upcoming is not None and stop == len(request.rows) and upcoming.is_ready():
                # Its copy runs during the consumer's computation, after all copies that this waits for.
                upcoming.complete()
            yield request, part, made

    def _read(
        self, rows: NDArray[np.int64], failures: Failures, skips: EpochSkips
    ) -> tuple[NDArray[np.int64], Columns]:
        """Return the rows of a batch to keep, and their columns that the threads did not make."""
        kept = skips.keep(rows, failures) if failures else np.arange(len(rows))
        if not len(kept):
            return kept, {}
        try:
            return kept, self._unstacked.read(rows[kept])
        except FastRecordError:
            failures = self._unstacked.failures(rows[kept])
            if not failures:
                raise
        kept = kept[skips.keep(rows[kept], failures)]
        return kept, self._unstacked.read(rows[kept]) if len(kept) else {}

    def _view(self, made: Columns, read: Columns) -> Any:
        """Return a batch: a dict of its fields, or in image mode `(images, labels, *extra)`."""
        if self.outputs.are_images:
            made = {name: self._destination.show(images) for name, images in made.items()}
        read = {name: self._destination.send(value) for name, value in read.items()}
        if self._fields is not None:
            columns = made | read
            return {name: columns[name] for name in self._fields}
        images = next(iter(made.values())) if self._single else made
        return (images, *read.values()) if read else images
