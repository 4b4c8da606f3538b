"""`UnstackedFields`: the columns of a batch that the core's threads do not make.

These are labels, text, bytes, JSON, lists, and arrays of varying shape. Does not decode images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, SchemaError
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.values import as_tensors, read_values
from fastrecord.errors import Code
from fastrecord.loader.delivery import Ragged

# Values of this many bytes are read at once: more would be new memory for each batch, which the system
# fills with zeros first.
_BYTES = 4 << 20
# Name -> tensor (B, ...), list of B values, or array and offsets.
Columns: TypeAlias = dict[str, Any]


class UnstackedFields:
    """Reads the columns of a batch that the core's threads do not make, in the consumer's thread.

    Args:
        dataset: The files, and the numbers of the labels.
        fields: Their names.
        labels: The one of them with labels that differ from the stored values.
        ragged: As in Delivery.

    Raises:
        SchemaError: a field in `ragged` is not an array of varying shape.
    """

    def __init__(
        self, dataset: FastRecordDataset, fields: Sequence[str], labels: str | None, ragged: Mapping[str, Ragged]
    ) -> None:
        self._dataset, self._fields, self._label = dataset, fields, labels
        reader = dataset.readers[0]
        self._kinds = {name: reader.schema[name] for name in fields if name != labels}
        for name in ragged:
            if name not in self._kinds or None not in (self._kinds[name].shape or ()):
                raise Code.FIELD_TYPE.error(
                    f"{reader.path}: ragged: field {name!r} is not one of the batch's arrays of varying shape"
                )
        self._merged = {name: way for name, way in ragged.items() if way != "list"}
        self._plain = [name for name in self._kinds if name not in self._merged]

    def read_many(self, rows: NDArray[np.int64], sizes: Sequence[int]) -> Iterator[Columns | None]:
        """Yield the columns of each of neighbouring batches; None for one that must be read alone.

        Small values of all batches are read at once.
        """
        ends = [0, *accumulate(sizes)]
        if len(sizes) == 1 or self._merged or self._payload_bytes(rows) > _BYTES:
            for start, stop in pairwise(ends):
                yield self._tried(rows[start:stop])
            return
        whole = self._tried(rows)
        for start, stop in pairwise(ends):
            yield None if whole is None else {name: values[start:stop] for name, values in whole.items()}

    def _tried(self, rows: NDArray[np.int64]) -> Columns | None:
        try:
            return self.read(rows)
        except FastRecordError:
            return None

    def _payload_bytes(self, rows: NDArray[np.int64]) -> float:
        """Return the bytes of the values that are not of one size; infinity if they cannot be read."""
        names = [name for name in self._plain if self._kinds[name].nbytes is None]
        parts = list(self._dataset.selection.shards.split(rows)) if names else []
        try:
            return sum(int(self._dataset.readers[at].lengths(n, own).sum()) for at, _, own in parts for n in names)
        except FastRecordError:
            return math.inf

    def read(self, rows: NDArray[np.int64]) -> Columns:
        """Return the columns of a batch.

        Args:
            rows: Record numbers over all files, int64 (B,).

        Raises:
            FastRecordError: a value cannot be read.
            SchemaError: a label has no class.
        """
        found: Columns = {}
        if self._plain:
            values = read_values(self._dataset.selection.shards, rows, self._plain)
            found |= {name: as_tensors(value, self._kinds[name]) for name, value in values.items()}
        for name, way in self._merged.items():
            found[name] = self._pad(name, rows) if way == "pad" else self._pack(name, rows)
        return {name: self._labels(rows) if name == self._label else found[name] for name in self._fields}

    def failures(self, rows: NDArray[np.int64]) -> list[tuple[int, Exception]]:
        """Return the slots of rows with a value that cannot be read, and the errors.

        Raises:
            SchemaError: a label has no class, which is not a fault of one record.
        """
        failures: list[tuple[int, Exception]] = []
        for slot in range(len(rows)):
            try:
                self.read(rows[slot : slot + 1])
            except SchemaError:
                raise
            except FastRecordError as error:
                failures.append((slot, error))
        return failures

    def _labels(self, rows: NDArray[np.int64]) -> Any:
        labels, transform = self._dataset.selection.labels.of(rows), self._dataset.target_transform
        if transform is None:
            return torch.from_numpy(labels)
        listed = labels.tolist() if labels.ndim == 1 else torch.from_numpy(labels)
        return torch.utils.data.default_collate([transform(label) for label in listed])

    def _parts(self, name: str, rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Any]]:
        """Return the arrays of each file, with their slots in the batch."""
        dataset = self._dataset
        return [
            (slots, dataset.readers[shard].read_batch(records, [name], verify=dataset.verify, copy=True)[name])
            for shard, slots, records in dataset.selection.shards.split(rows)
        ]

    def _pad(self, name: str, rows: NDArray[np.int64]) -> Any:
        parts = [(slots, arrays.padded(), arrays.shapes) for slots, arrays in self._parts(name, rows)]
        varying = [axis for axis, length in enumerate(self._kinds[name].shape or ()) if length is None]
        lengths = np.empty((len(rows), len(varying)), np.int64)
        for slots, _, shapes in parts:
            lengths[slots] = shapes[:, varying]
        whole = parts[0][1]
        if len(parts) > 1:
            shape = np.max([array.shape[1:] for _, array, _ in parts], axis=0)
            whole = np.zeros((len(rows), *shape), whole.dtype)
            for slots, array, _ in parts:
                index: tuple[Any, ...] = (slots, *(slice(length) for length in array.shape[1:]))
                whole[index] = array
        of_one = lengths[:, 0].copy() if len(varying) == 1 else lengths
        return as_tensors(whole, self._kinds[name]), torch.from_numpy(of_one)

    def _pack(self, name: str, rows: NDArray[np.int64]) -> Any:
        parts = [(slots, *arrays.packed()) for slots, arrays in self._parts(name, rows)]
        if len(parts) == 1:
            _, values, offsets = parts[0]
            return as_tensors(values, self._kinds[name]), torch.from_numpy(offsets)
        lengths = np.zeros(len(rows), np.int64)
        for slots, _, offsets in parts:
            lengths[slots] = np.diff(offsets)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rest = {values.shape[1:] for _, values, _ in parts if len(values)} or {parts[0][1].shape[1:]}
        if len(rest) > 1:
            raise Code.RAGGED.error(f"field {name!r}: arrays that differ beyond their first dimension cannot be packed")
        whole = np.empty((int(offsets[-1]), *rest.pop()), parts[0][1].dtype)
        for slots, values, own in parts:
            # The destination of each of the file's arrays, as the distance from its source.
            shift = np.repeat(offsets[slots] - own[:-1], np.diff(own))
            whole[np.arange(len(values)) + shift] = values
        return as_tensors(whole, self._kinds[name]), torch.from_numpy(offsets)
