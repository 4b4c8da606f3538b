"""`ArrayBatches`: batches of field values, stacked by the core's threads in groups.

Does not make images; `image_batches` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord import _core
from fastrecord._core import FastRecordError
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.values import pick
from fastrecord.loader.batch_source import ForeignRequests, OwnRequests, Request
from fastrecord.loader.destination import Destination
from fastrecord.loader.skip import EpochSkips
from fastrecord.loader.stats import Clock
from fastrecord.loader.unstacked import ListedFields

# Steps that cost some microseconds at any size are done once for this many bytes of batches ...
_GROUP_BYTES = 4 << 20
# ... but at most for this many batches, so that the first batch arrives soon.
_GROUP_BATCHES = 64

Part: TypeAlias = slice | NDArray[np.int64]
# Field -> dtype and shape of a value.
_Kinds: TypeAlias = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class ArrayBatches:
    """Makes batches: dicts of field -> tensor (B, *shape), or the values of ListedFields.

    Neighbouring batches are made as one group, and split when the first of them is due. Each batch
    has its own tensors over a part of the group's memory, which lives as long as any of them.

    Args:
        dataset: A data set in fields mode.
        listed: Makes the values of fields that the threads cannot stack.
        destination: Where batches go.
        prefetch: Groups in progress besides the one being consumed; 0: a batch is made when it is
            requested.
    """

    def __init__(
        self, dataset: FastRecordDataset, listed: ListedFields, destination: Destination, prefetch: int
    ) -> None:
        self._dataset, self._listed = dataset, listed
        self._destination, self._prefetch = destination, prefetch
        schema = dataset.readers[0].schema
        self._names = tuple(dataset.fields or ())
        stacked = {name: schema[name] for name in self._names if name not in listed.names}
        self._kinds: _Kinds = {
            name: (getattr(torch, kind.dtype or ""), tuple(dim or 0 for dim in kind.shape or ()))
            for name, kind in stacked.items()
        }
        record = sum(kind.nbytes or 0 for kind in stacked.values())
        self._records = -(-_GROUP_BYTES // max(record, 1))

    def plan(self) -> _core.ArrayPlan:
        """Return the plan for the core's threads."""
        names = list(self._kinds)
        # The consumer's group, the previous group during its replacement, and the groups in
        # progress.
        spares = len(names) * (self._prefetch + 2)
        files = [(reader, names) for reader in self._dataset.readers]
        return _core.ArrayPlan(files, verify=self._dataset.verify, spares=spares)

    def groups(
        self, loading: _core.Loading, requests: OwnRequests | ForeignRequests, clock: Clock, skips: EpochSkips
    ) -> Iterator[Iterable[tuple[Request, Part, dict[str, Any] | None]]]:
        """Yield groups of batches: each has a request, its part of the rows, its fields (or None).

        Raises:
            FastRecordError, OSError: from a group, when a batch with a failed record is due.
        """
        waiting = requests.groups(_GROUP_BATCHES, self._records) if self._prefetch else iter(requests)
        pending: deque[_Group] = deque()
        while True:
            while len(pending) <= self._prefetch and (request := next(waiting, None)) is not None:
                pending.append(_Group(loading, request, self._kinds, self._destination))
            if not pending:
                return
            group = pending.popleft()
            with clock.waiting():
                group.complete()
            if pending and self._destination.copies and pending[0].is_ready():
                # Its copy to the device runs during the consumer's computation.
                pending[0].complete()
            yield self._cut(group, skips)
            del group  # frees its memory for a later group once its batches are gone

    def _cut(self, group: _Group, skips: EpochSkips) -> Iterator[tuple[Request, Part, dict[str, Any] | None]]:
        request, failures, stacked = group.request, group.failures, tuple(self._kinds)
        listed = None if failures else self._listed.read_many(request.rows)
        simple, on_stream = not (failures or self._listed.names), self._destination.stream is not None
        columns = group.columns()
        stop = 0
        for number, size in enumerate(request.sizes):
            start, stop = stop, stop + size
            skips.seen += size
            part: Part = slice(start, stop)
            if on_stream:
                group.reach()
            fields: dict[str, Any] = dict(zip(stacked, [column[number] for column in columns], strict=True))
            if not simple:
                if listed is not None:
                    others = {name: values[part] for name, values in listed.items()}
                else:
                    kept, others = self._read(request.rows[part], group.failures_in(start, stop), skips)
                    if not len(kept):
                        yield request, kept, None
                        continue
                    if len(kept) < size:
                        part = kept + start
                        fields = {name: pick(tensor, kept) for name, tensor in fields.items()}
                fields |= {name: self._destination.send_all(value) for name, value in others.items()}
                fields = {name: fields[name] for name in self._names}
            yield request, part, fields

    def _read(
        self, rows: NDArray[np.int64], failures: list[tuple[int, Exception]], skips: EpochSkips
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Return the rows of a batch to keep, and their values that are not stacked yet."""
        kept = skips.keep(rows, failures) if failures else np.arange(len(rows))
        if not len(kept):
            return kept, {}
        try:
            return kept, self._listed.read(rows[kept])
        except FastRecordError:
            failures = self._listed.failures(rows[kept])
            if not failures:
                raise
        kept = kept[skips.keep(rows[kept], failures)]
        return kept, self._listed.read(rows[kept]) if len(kept) else {}


class _Group:
    """Neighbouring batches in progress.

    Attributes:
        request: The request.
        failures: Positions of failed rows, in order, with their errors; set by `complete`.
    """

    def __init__(self, loading: _core.Loading, request: Request, kinds: _Kinds, destination: Destination) -> None:
        self.request, self._destination = request, destination
        self.failures: list[tuple[int, Exception]] = []
        records = len(request.rows)
        self._kinds = [(dtype, (records, *shape)) for dtype, shape in kinds.values()]
        self._memory: list[torch.Tensor] | None = None
        if destination.pinned:
            self._memory = [torch.empty(shape, dtype=dtype, pin_memory=True) for dtype, shape in self._kinds]
        # numpy does not have all of these dtypes.
        flat = None if self._memory is None else [tensor.view(-1).view(torch.uint8).numpy() for tensor in self._memory]
        self._load = loading.submit(0, 0, request.rows, None, flat, request.ahead)
        self._whole: list[torch.Tensor] | None = None
        self._reached: Any = None

    def is_ready(self) -> bool:
        """Return whether `complete` would return without waiting for the threads."""
        return self._whole is not None or self._load.is_ready()

    def complete(self) -> None:
        """Wait for the group and start its copy to the device. A second call does nothing."""
        if self._whole is not None:
            return
        made, self.failures = self._load.wait()
        whole = self._memory
        if whole is None:
            whole = [_tensor(memory, *kind) for memory, kind in zip(made, self._kinds, strict=True)]
        self._memory = None
        self._whole = [self._destination.copy(tensor) for tensor in whole] if self._destination.copies else whole

    def columns(self) -> list[Sequence[torch.Tensor]]:
        """Return each field's tensors, one for each batch; call it only once."""
        self.reach()
        # The parts have their own version counters: an in-place change of one does not affect the
        # others.
        return [whole.unsafe_split_with_sizes(self.request.sizes) for whole in self._whole or ()]

    def reach(self) -> None:
        """Make the current stream wait for the copy of the group."""
        current = self._destination.current_stream()
        if current is not None and current != self._reached:
            self._reached = current
            for tensor in self._whole or ():
                self._destination.receive(tensor)

    def failures_in(self, start: int, stop: int) -> list[tuple[int, Exception]]:
        """Return the failures of the batch of rows [start, stop), with positions in that batch."""
        return [(place - start, error) for place, error in self.failures if start <= place < stop]


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
