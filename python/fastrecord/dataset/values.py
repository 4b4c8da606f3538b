"""Field values of a batch from any number of files, stacked if possible.

Does not decode images or number labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastrecord.dataset.shards import Shards
from fastrecord.schema import FieldType

if TYPE_CHECKING:  # commands that only look into files do without it
    import torch


def is_number(kind: FieldType) -> bool:
    """Return whether values of a type are single Python numbers."""
    return kind.dtype == kind.name


def read_values(
    shards: Shards, rows: NDArray[np.int64], fields: Sequence[str], *, verify: bool | Literal["once"] | None = None
) -> dict[str, Any]:
    """Return fields of records as arrays (N, ...), or as lists of N values.

    Fields of numbers, and of arrays of one shape, are arrays. Arrays own their memory and may be
    written. bfloat16 comes as uint16 bits.

    Args:
        shards: The files.
        rows: Numbers over all files, int64 (N,).
        fields: Names.
        verify: When to check the CRC of each payload; None: as the files were opened.

    Raises:
        KeyError: no such field.
        CorruptFileError: a checksum differs.
    """
    names = list(fields)

    def read(shard: int, records: NDArray[np.int64]) -> list[Any]:
        batch = shards.readers[shard].read_batch(records, names, verify=verify, copy=True)
        return [batch[name] if isinstance(batch[name], np.ndarray) else owned(list(batch[name])) for name in names]

    return dict(zip(names, gather(shards, rows, read), strict=True))


def gather(
    shards: Shards, rows: NDArray[np.int64], read: Callable[[int, NDArray[np.int64]], Sequence[Any]]
) -> Sequence[Any]:
    """Return columns of records of several files, each in the order of the rows.

    Args:
        shards: The files.
        rows: Numbers over all files, int64 (N,).
        read: (file, its records) -> columns: arrays (M, ...) or lists of M values.
    """
    parts = list(shards.split(rows)) or [(0, rows, rows)]
    if len(parts) == 1:
        return read(parts[0][0], parts[0][2])
    whole: list[Any] = []
    for shard, slots, records in parts:
        found = read(shard, records)
        whole = whole or [_room(values, len(rows)) for values in found]
        for column, values in zip(whole, found, strict=True):
            if isinstance(values, np.ndarray):
                column[slots] = values
            else:
                for slot, value in zip(slots.tolist(), values, strict=True):
                    column[slot] = value
    return whole


def _room(values: Any, rows: int) -> Any:
    return np.empty((rows, *values.shape[1:]), values.dtype) if isinstance(values, np.ndarray) else [None] * rows


def owned(value: Any) -> Any:
    """Return a value that torch workers can send and tensors can wrap.

    Memoryviews and read-only arrays are copied.
    """
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    return [owned(item) for item in value] if isinstance(value, list) else value


def as_tensors(value: Any, kind: FieldType) -> Any:
    """Return arrays (also in lists) as tensors over the same memory; other values unchanged."""
    if isinstance(value, list):
        return [as_tensors(item, kind) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    import torch

    while kind.item is not None:
        kind = kind.item
    if kind.dtype == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def pick(tensor: torch.Tensor, places: NDArray[np.int64]) -> torch.Tensor:
    """Return a copy of some rows of a tensor.

    On the CPU numpy copies: torch's threads hang in a process forked after torch used them.
    """
    import torch

    if tensor.device.type != "cpu":
        return tensor[torch.from_numpy(places).to(tensor.device)]
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        # numpy has neither bfloat16 nor floats of 8 bits.
        bits = torch.int16 if tensor.dtype.itemsize == 2 else torch.uint8
        return pick(tensor.view(bits), places).view(tensor.dtype)
    return torch.from_numpy(tensor.numpy()[places])
