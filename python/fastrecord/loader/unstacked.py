"""`ListedFields`: values that are not tensors of one shape.

These are text, bytes, JSON, lists, and arrays of varying shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import FastRecordError
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.values import as_tensors
from fastrecord.errors import Code
from fastrecord.loader.delivery import Ragged


class ListedFields:
    """Reads the fields that the core's threads do not stack, in the consumer's thread.

    Args:
        dataset: A data set in fields mode.
        ragged: As in Delivery.

    Attributes:
        names: The fields.

    Raises:
        SchemaError: a field of images, which a loader decodes; a field in `ragged` without arrays
            of varying shape.
    """

    def __init__(self, dataset: FastRecordDataset, ragged: Mapping[str, Ragged] | None) -> None:
        self._dataset = dataset
        self._ragged = dict(ragged or {})
        self._label = dataset.selection.mapped_label
        reader = dataset.readers[0]
        schema = reader.schema
        names = dataset.fields or ()
        for name in self._ragged:
            if name not in names or None not in (schema[name].shape or ()):
                raise Code.FIELD_TYPE.error(
                    f"{reader.path}: ragged: field {name!r} is not one of the selected arrays of varying shape"
                )
        self._kinds = {name: schema[name] for name in names if schema[name].nbytes is None or name == self._label}
        for name, kind in self._kinds.items():
            if kind.name == "image":
                raise Code.FIELD_TYPE.error(
                    f"{reader.path}: field {name!r} holds encoded images: say images={{{name!r}: "
                    "transforms.CenterCrop(224)} or another geometry to have them decoded, or select other fields"
                )
        self._merged = {name: way for name, way in self._ragged.items() if way != "list"}

    @property
    def names(self) -> tuple[str, ...]:
        """The fields."""
        return tuple(self._kinds)

    def read_many(self, rows: NDArray[np.int64]) -> dict[str, Any] | None:
        """Return values of several batches, to be split; None if they are read batch by batch."""
        if self._merged:
            return None
        try:
            return self.read(rows)
        except FastRecordError:
            return None

    def read(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the values of a batch.

        Args:
            rows: Record numbers over all files, int64 (B,).

        Raises:
            FastRecordError: a value cannot be read.
        """
        plain = [name for name in self._kinds if name not in self._merged and name != self._label]
        found = dict(zip(plain, self._dataset.values(rows, plain), strict=True)) if plain else {}
        made = {name: as_tensors(values, self._kinds[name]) for name, values in found.items()}
        for name, way in self._merged.items():
            made[name] = self._pad(name, rows) if way == "pad" else self._pack(name, rows)
        if self._label is not None:
            made[self._label] = torch.from_numpy(self._dataset.labels(rows))
        return made

    def failures(self, rows: NDArray[np.int64]) -> list[tuple[int, Exception]]:
        """Return the positions of rows with a value that cannot be read, and the errors."""
        failures: list[tuple[int, Exception]] = []
        for place in range(len(rows)):
            try:
                self.read(rows[place : place + 1])
            except FastRecordError as error:
                failures.append((place, error))
        return failures

    def _parts(self, name: str, rows: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], Any]]:
        """Return the arrays of each file, with their positions in the batch."""
        dataset = self._dataset
        return [
            (places, dataset.readers[shard].read_batch(records, [name], verify=dataset.verify, copy=True)[name])
            for shard, places, records in dataset.selection.shards.split(rows)
        ]

    def _pad(self, name: str, rows: NDArray[np.int64]) -> Any:
        parts = [(places, arrays.padded()) for places, arrays in self._parts(name, rows)]
        if len(parts) == 1:
            return as_tensors(parts[0][1], self._kinds[name])
        shape = np.max([array.shape[1:] for _, array in parts], axis=0)
        whole = np.zeros((len(rows), *shape), parts[0][1].dtype)
        for places, array in parts:
            index: tuple[Any, ...] = (places, *(slice(length) for length in array.shape[1:]))
            whole[index] = array
        return as_tensors(whole, self._kinds[name])

    def _pack(self, name: str, rows: NDArray[np.int64]) -> Any:
        parts = [(places, *arrays.packed()) for places, arrays in self._parts(name, rows)]
        if len(parts) == 1:
            _, values, offsets = parts[0]
            return as_tensors(values, self._kinds[name]), torch.from_numpy(offsets)
        lengths = np.zeros(len(rows), np.int64)
        for places, _, offsets in parts:
            lengths[places] = np.diff(offsets)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        rest = {values.shape[1:] for _, values, _ in parts if len(values)} or {parts[0][1].shape[1:]}
        if len(rest) > 1:
            raise Code.RAGGED.error(
                f"field {name!r}: arrays that differ beyond their first dimension can not be packed"
            )
        whole = np.empty((int(offsets[-1]), *rest.pop()), parts[0][1].dtype)
        for places, values, own in parts:
            # The destination of each of the file's arrays, as the distance from its source.
            shift = np.repeat(offsets[places] - own[:-1], np.diff(own))
            whole[np.arange(len(values)) + shift] = values
        return as_tensors(whole, self._kinds[name]), torch.from_numpy(offsets)
