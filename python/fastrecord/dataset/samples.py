"""Samples and batches of selected fields: a dict field -> value.

Opens no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import CorruptFileError, Reader
from fastrecord.dataset.collate import FieldBatch
from fastrecord.dataset.decode import decode_native, decode_pil, place
from fastrecord.dataset.values import as_tensors, is_number, read_values, sample_value
from fastrecord.errors import Code, extended
from fastrecord.schema.roles import key_suffix

if TYPE_CHECKING:
    from fastrecord.dataset.dataset import FastRecordDataset


def check_selection(fields: Sequence[str]) -> tuple[str, ...]:
    """Check and return the names of selected fields.

    Raises:
        TypeError: not a sequence of names.
        ValueError: no names, or a name comes twice.
    """
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
        kind = f"write ({fields!r},)" if isinstance(fields, str) else f"not {fields!r}"
        raise TypeError(f"fields is a sequence of names: {kind}")
    names = tuple(fields)
    if not names:
        raise ValueError("fields names no field")
    if len(set(names)) != len(names):
        raise ValueError(f"fields names {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names


def field_sample(dataset: FastRecordDataset, shard: int, record: int) -> dict[str, Any]:
    """Return one sample.

    Raises:
        CorruptFileError: a checksum differs.
        DecodeError: the image format is not supported.
        SchemaError: a label has no class.
    """
    reader, schema = dataset.selection.shards.readers[shard], dataset.selection.shards.schema
    sample: dict[str, Any] = {}
    for name in dataset.selection.fields or ():
        if schema[name].name == "image" and dataset.decode is not None:
            sample[name] = _images(dataset, reader, np.array([record]), name)[0]
            continue
        if name == dataset.selection.mapped_label:
            sample[name] = dataset.selection.labels.of_file(shard, np.array([record]), verify=dataset.verify)[0].item()
            continue
        try:
            sample[name] = sample_value(reader, record, name, schema[name], verify=dataset.verify)
        except CorruptFileError as error:
            raise CorruptFileError(extended(error, key_suffix(reader, record))) from None
    return sample


def field_batch(dataset: FastRecordDataset, rows: NDArray[np.int64]) -> FieldBatch:
    """Return the samples of a batch.

    Args:
        dataset: A data set in fields mode.
        rows: Record numbers over all files, int64 (N,).

    Raises:
        CorruptFileError: a checksum differs.
        DecodeError: the image format is not supported.
        SchemaError: a label has no class.
    """
    names = dataset.selection.fields or ()
    shards = dataset.selection.shards
    schema = shards.schema
    images = [name for name in names if schema[name].name == "image" and dataset.decode is not None]
    label = dataset.selection.mapped_label
    plain = [name for name in names if name not in images and name != label]
    values = read_values(shards, rows, plain, verify=dataset.verify) if plain else {}
    if label is not None:
        values[label] = dataset.selection.labels.of(rows, verify=dataset.verify)
    for name in images:
        values[name] = [None] * len(rows)
        for shard, positions, records in shards.split(rows):
            found = _images(dataset, shards.readers[shard], records, name)
            for position, image in zip(positions.tolist(), found, strict=True):
                values[name][position] = image
    columns = {name: as_tensors(values[name], schema[name]) for name in names}
    numbers = frozenset(name for name in names if is_number(schema[name]) or name == label)
    return FieldBatch(columns, numbers, len(rows))


def _images(dataset: FastRecordDataset, reader: Reader, records: NDArray[np.int64], field: str) -> Sequence[Any]:
    """Return images of one file: PIL images, or tensors (3, H, W)."""
    if dataset.decode == "native":
        found: list[torch.Tensor] = decode_native(
            reader, records, field, verify=dataset.verify, sixteen_bit=dataset.sixteen_bit
        )
        return found
    return [_picture(dataset, reader, record, field) for record in records.tolist()]


def _picture(dataset: FastRecordDataset, reader: Reader, record: int, field: str) -> Any:
    try:
        payload = reader.get(record, field, verify=dataset.verify, copy=True)
    except CorruptFileError as error:
        raise CorruptFileError(extended(error, key_suffix(reader, record))) from None
    if payload is None:
        raise Code.NO_IMAGE.error(f"{place(reader, record, field)}: the record has no image")
    return decode_pil(payload, reader, record, field)
