"""`BatchMaker`: batches of columns, made by the core's threads or read in the consumer's thread.

Does not choose records, and knows neither images nor arrays.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Loading, LoadPlan
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.values import pick
from fastrecord.loader.batch_source import BatchRequest, IterableSource, SamplerSource
from fastrecord.loader.delivery import Delivery
from fastrecord.loader.destination import Destination
from fastrecord.loader.foreign import Failures
from fastrecord.loader.group import Group
from fastrecord.loader.outputs import Outputs
from fastrecord.loader.own_steps import OwnSteps
from fastrecord.loader.places import move_places
from fastrecord.loader.skip import EpochSkips
from fastrecord.loader.stats import Clock
from fastrecord.loader.unstacked import Columns, UnstackedFields

if TYPE_CHECKING:  # what needs no store does without it
    from fastrecord.loader.prefetch import OrderPrefetch, PlannedPrefetch

Part: TypeAlias = slice | NDArray[np.int64]

# Groups in progress have at most this many bytes together, except that one group may always be in progress: a batch
# of several views has hundreds of megabytes.
_BYTES = 2 << 30


class _Local:
    """Requests whose values are on this machine."""

    def __init__(self, requests: Iterator[BatchRequest]) -> None:
        self._requests = requests

    def is_ready(self) -> bool:
        return True

    def next(self) -> tuple[BatchRequest, Sequence[Any]] | None:
        request = next(self._requests, None)
        return None if request is None else (request, ())

    def release(self, request: BatchRequest) -> None:
        pass


class BatchMaker:
    """Makes batches: a dict of columns, or `(images, labels, *extra)` as a view of it.

    Args:
        dataset: The files.
        outputs: Which columns are in a batch, and which of them the core's threads make. All others
            are read in the consumer's thread.
        destination: Where batches go.
        delivery: Groups in progress besides the one being consumed (with 0, a batch is made when it
            is requested), and the form of arrays of varying shape.

    Raises:
        SchemaError: `delivery.ragged` names another field.
        ValueError: the sample has a `Lambda`, and batches are copied to a device.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        outputs: Outputs,
        destination: Destination,
        delivery: Delivery,
    ) -> None:
        self._dataset, self.outputs, self._destination = dataset, outputs, destination
        self._prefetch, self._ragged = delivery.prefetch, delivery.ragged or {}
        others = [name for name in outputs.fields if name not in outputs.kinds]
        self._unstacked = UnstackedFields(dataset, others, outputs.labels, self._ragged)
        pictures = outputs.sample.pictures
        self._own = {name: OwnSteps(picture) for name, picture in pictures.items() if picture.pipeline.own}
        if self._own and destination.copies:
            raise ValueError("Lambda works on the CPU: leave out device of delivery, or write batch_transform=")
        self._only_stacked = not others and dataset.fields is not None and not outputs.sample.pictures

    def plan(self) -> LoadPlan:
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
        with self._requests(source, clock, pending) as requests:
            while True:
                # What is being made is handed out before this waits for a store.
                while self._has_room(pending) and (not pending or requests.is_ready()):
                    if (found := requests.next()) is None:
                        break
                    request, holds = found
                    pending.append(Group(loading, request, self.outputs, self._destination, clock, holds))
                if not pending:
                    return
                group = pending.popleft()
                with clock.waiting():
                    group.complete()
                # On a stream of copies, each batch must wait for its copy, on the stream that is current then.
                plain = self._only_stacked and not group.failures and self._destination.stream is None
                upcoming = pending[0] if pending and self._destination.copies else None
                yield group, self._stacked(group, skips) if plain else self._cut(group, skips, upcoming)
                requests.release(group.request)
                del group, upcoming  # frees the group's memory for a later one once its batches are gone

    def _has_room(self, pending: deque[Group]) -> bool:
        """Return whether one more group may be in progress."""
        if not pending:
            return True
        return len(pending) <= self._prefetch and sum(group.nbytes for group in pending) + pending[0].nbytes <= _BYTES

    @contextmanager
    def _requests(
        self, source: SamplerSource | IterableSource, clock: Clock, pending: deque[Group]
    ) -> Iterator[_Local | OrderPrefetch | PlannedPrefetch]:
        """Begin an iteration of the source. What lies in object stores is brought before it is read."""

        def begin(*, local: bool) -> Iterator[BatchRequest]:
            # All that a group reads must be here before the first of its batches is handed out.
            return source.groups(*(self.outputs.group if self._prefetch and local else (1, 1)))

        sources = self._dataset.selection.shards.sources
        if not sources:
            yield _Local(begin(local=True))
            return
        from fastrecord.loader.prefetch import OrderPrefetch, PlannedPrefetch, can_plan

        def let_go() -> None:
            for group in list(pending):
                group.let_go()

        prefetch: OrderPrefetch | PlannedPrefetch
        if isinstance(source, SamplerSource) and can_plan(self._dataset, source.sampler):
            prefetch = PlannedPrefetch(self._dataset, source.sampler, self.outputs.read, begin(local=False), clock)
        else:
            prefetch = OrderPrefetch(self._dataset, self.outputs.read, begin, clock)
        # When the interpreter ends, the module `os` may be gone.
        process, current = os.getpid(), os.getpid
        with ExitStack() as stack:
            for cache in {each.cache for each in sources}:
                stack.enter_context(cache.releasing(let_go))
            stack.callback(prefetch.close)
            try:
                yield prefetch
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
            made = self._view(batch, others, group, part)
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

    def _view(self, made: Columns, read: Columns, group: Group, part: Part) -> Any:
        """Return a batch: a dict of its columns, or of a sample that is a list `(images, labels, *extra)`."""
        sample = self.outputs.sample
        request, found = group.request, dict(made)
        for name, picture in sample.pictures.items():
            if name in self._own:
                order, positions = (request.seed, request.epoch), request.positions[part]
                found[name] = self._own[name].apply(made[name], order, positions)
            else:
                found[name] = self._destination.show(made[name], picture)
        for name, like in sample.places.items():
            value = read[name] if name in read else made[name].cpu()
            moved = move_places(value, like, group.views(part)[like.of], self._ragged.get(name, "list"))
            read[name], read[f"{name}_kept"] = moved
        found |= {name: self._destination.send(value) for name, value in read.items()}
        if (mixer := self.outputs.mixer) is not None:
            (name,) = sample.pictures
            slots = np.arange(len(request.rows))[part]
            failed = [slot for slot, _ in group.failures]
            found[name], found[mixer.label] = mixer.apply(request, slots, failed, found[name], found[mixer.label])
        kept = [f"{name}_kept" for name in sample.places]
        columns = {name: found[name] for name in (*self.outputs.fields, *kept)}
        if self._dataset.fields is not None or not sample.single:
            return columns
        images, *rest = columns.values()
        return (images, *rest) if rest else images
