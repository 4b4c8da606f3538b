"""`ImageBatches`: batches of images made by the core's threads, with labels and other fields.

Decodes nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord import _core
from fastrecord._core import FastRecordError, SchemaError
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decoding import Decoding
from fastrecord.dataset.labels import listed_labels
from fastrecord.dataset.values import as_tensors, pick
from fastrecord.loader.batch_source import ForeignRequests, OwnRequests, Request
from fastrecord.loader.destination import Destination, Pending
from fastrecord.loader.foreign import Foreign
from fastrecord.loader.skip import EpochSkips
from fastrecord.loader.stats import Clock
from fastrecord.transforms import Geometry


class ImageBatches:
    """Makes batches `(images, labels, *fields)`; in fields mode, dicts of images and fields.

    Args:
        dataset: The files and labels.
        outputs: Field -> geometry of its images.
        single: With one output, put the images themselves into the batch, not a dict.
        fields: Further fields whose values follow.
        flip: Whether images are mirrored at random.
        decoding: What is decoded, and by what.
        destination: Where batches go.
        prefetch: Batches in progress besides the one that the consumer has or waits for.
    """

    def __init__(
        self,
        dataset: FastRecordDataset,
        outputs: Mapping[str, Geometry],
        single: bool,
        fields: Sequence[str],
        flip: bool,
        decoding: Decoding,
        destination: Destination,
        prefetch: int,
    ) -> None:
        self._dataset, self._outputs, self._single, self._fields = dataset, outputs, single, fields
        self._destination, self._prefetch = destination, prefetch
        # The consumer's batch, the previous batch during its replacement, and the batches in
        # progress.
        spares = len(outputs) * (prefetch + 2)
        self._options = {"flip": flip, "main": _main(dataset, outputs), "spares": spares, **decoding.options()}
        self._foreign = Foreign(dataset, list(outputs), decoding) if decoding.decoder == "auto" else None

    def plan(self) -> _core.ImagePlan:
        """Return the plan for the core's threads."""
        names = list(self._outputs)
        specs = [geometry._spec() for geometry in self._outputs.values()]
        return _core.ImagePlan(
            [(reader, names) for reader in self._dataset.readers], specs, verify=self._dataset.verify, **self._options
        )

    def groups(
        self, loading: _core.Loading, requests: OwnRequests | ForeignRequests, clock: Clock, skips: EpochSkips
    ) -> Iterator[Iterable[tuple[Request, NDArray[np.int64] | slice, Any]]]:
        """Yield groups of one batch: its request, the rows that are left, and its value (or None).

        Raises:
            FastRecordError, OSError: a batch with a failed record is due.
        """
        pending: deque[Pending] = deque()
        waiting = iter(requests)
        while True:
            while len(pending) <= self._prefetch and (request := next(waiting, None)) is not None:
                pending.append(self._begin(loading, request, clock))
            if not pending:
                return
            batch = pending.popleft()
            with clock.waiting():
                batch.complete()
            kept, made = self._finish(batch, skips)
            if pending and self._destination.copies and pending[0].is_ready():
                # Its copy to the device runs during the consumer's computation.
                pending[0].complete()
            yield ((batch.request, kept, made),)

    def _begin(self, loading: _core.Loading, request: Request, clock: Clock) -> Pending:
        foreign = self._foreign
        fill = None if foreign is None else partial(foreign.fill, loading, request, clock=clock)
        return self._destination.begin(loading, request, self._outputs, fill)

    def _finish(self, batch: Pending, skips: EpochSkips) -> tuple[NDArray[np.int64] | slice, Any]:
        """Return the consumer's batch, without failed records if they may be skipped."""
        rows, images = batch.request.rows, [self._destination.receive(image) for image in batch.images]
        kept: NDArray[np.int64] | slice = slice(None)
        skips.seen += len(rows)
        if batch.failures:
            kept = skips.keep(rows, batch.failures)
            if not len(kept):
                return kept, None
            rows = rows[kept]
            images = [pick(tensor, kept) for tensor in images]
        try:
            labels, values = self._following(rows)
        except FastRecordError:
            failures = self._unread(rows)
            if not failures:
                raise
            left = skips.keep(rows, failures)
            if not len(left):
                return left, None
            kept = left if isinstance(kept, slice) else kept[left]
            rows = rows[left]
            images = [pick(tensor, left) for tensor in images]
            labels, values = self._following(rows)
        shown = [self._destination.show(tensor) for tensor in images]
        if self._dataset.fields is not None:
            others = dict(zip(self._fields, values, strict=True))
            named = {**dict(zip(self._outputs, shown, strict=True)), **others}
            return kept, {name: named[name] for name in self._dataset.fields}
        parts: list[Any] = [shown[0] if self._single else dict(zip(self._outputs, shown, strict=True))]
        parts += [self._destination.send(own) for own in labels] + values
        return kept, tuple(parts) if len(parts) > 1 else parts[0]

    def _following(self, rows: NDArray[np.int64]) -> tuple[list[Any], list[Any]]:
        """Return the labels of records, of a data set that has them, and the values of further fields."""
        return [self._labels(rows)] if self._dataset.has_labels else [], self._values(rows)

    def _unread(self, rows: NDArray[np.int64]) -> list[tuple[int, Exception]]:
        """Return the places of the rows whose label or further values are damaged or missing, and why.

        Raises:
            SchemaError: a label has no class, which is no fault of one record.
        """
        failures: list[tuple[int, Exception]] = []
        for place in range(len(rows)):
            try:
                self._following(rows[place : place + 1])
            except SchemaError:
                raise
            except FastRecordError as error:
                failures.append((place, error))
        return failures

    def _values(self, rows: NDArray[np.int64]) -> list[Any]:
        if not self._fields:
            return []
        schema, label = self._dataset.readers[0].schema, self._dataset.selection.mapped_label
        values = dict(zip(self._fields, self._dataset.values(rows, self._fields), strict=True))
        if label in values:
            values[label] = self._dataset.labels(rows)
        return [self._destination.send_all(as_tensors(value, schema[name])) for name, value in values.items()]

    def _labels(self, rows: NDArray[np.int64]) -> Any:
        labels = self._dataset.labels(rows)
        transform = self._dataset.target_transform
        if transform is None:
            return labels
        return torch.utils.data.default_collate([transform(label) for label in listed_labels(labels)])


def _main(dataset: FastRecordDataset, outputs: Mapping[str, Geometry]) -> int | None:
    """Return the output that may show any image: the data set's image field, else the first."""
    names = list(outputs)
    if len(names) == 1:
        return None
    return names.index(dataset.selection.image_field) if dataset.selection.image_field in names else 0
