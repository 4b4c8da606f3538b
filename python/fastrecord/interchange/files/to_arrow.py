"""`arrow_array`: the values of a field as an Arrow array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.interchange.destination import Views
from fastrecord.interchange.files.arrow import arrow
from fastrecord.schema import FieldType

_MAX_VALUE = (1 << 31) - 1


class CannotHoldError(Exception):
    """Arrow cannot hold a value.

    Attributes:
        row: Its place among the values.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def arrow_type(kind: FieldType, *, structs: bool = False) -> Any:
    """Return the Arrow type for a field: lists for arrays, text for JSON.

    Args:
        kind: The field's type.
        structs: Whether images are structs of bytes and path, as in Hugging Face's datasets.
    """
    pa = arrow()
    if kind.name == "image":
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if structs else pa.binary()
    if kind.name == "bytes":
        return pa.binary()
    if kind.name in ("string", "json"):
        return pa.string()
    if kind.item is not None:
        return pa.list_(arrow_type(kind.item, structs=structs))
    found = pa.bool_() if kind.dtype == "bool" else pa.from_numpy_dtype(np.dtype(kind.dtype))
    for size in reversed(kind.shape or ()):
        found = pa.list_(found) if size is None else pa.list_(found, size)
    return found


def arrow_array(values: Sequence[Any], kind: FieldType, *, structs: bool = False) -> Any:
    """Return values of a field as an Arrow array of the type `arrow_type`.

    Args:
        values: As `Destination.write` takes them.
        kind: The field's type.
        structs: As for `arrow_type`.

    Raises:
        CannotHoldError: a value does not fit.
    """
    pa = arrow()
    if kind.name in ("image", "bytes"):
        views = list(values)
        for row, view in enumerate(views):
            if len(view) > _MAX_VALUE:
                raise CannotHoldError(row, f"{len(view)} bytes, but a value in Parquet has at most {_MAX_VALUE}")
        # pa.array would keep each view, and the memory behind it, for good.
        if isinstance(values, Views):
            whole, ends = pa.py_buffer(values.whole), values.ends.astype(np.int32)
        else:
            whole, ends = pa.py_buffer(b"".join(views)), np.cumsum([0, *map(len, views)], dtype=np.int32)
        found = pa.Array.from_buffers(pa.binary(), len(views), [None, pa.py_buffer(ends), whole])
        if kind.name == "image" and structs:
            return pa.StructArray.from_arrays([found, pa.nulls(len(found), pa.string())], ["bytes", "path"])
        return found
    if kind.name == "string":
        return pa.array(list(values), pa.string())
    if kind.name == "json":
        return pa.array([json.dumps(value, ensure_ascii=False) for value in values], pa.string())
    if kind.item is not None:
        ends = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
        items = list(chain.from_iterable(values))
        inner = arrow_array(items, kind.item, structs=structs)
        return pa.ListArray.from_arrays(pa.array(ends), inner)
    if not kind.shape:
        return pa.array(np.asarray(values, kind.dtype))
    return nested_lists(values, kind.dtype, kind.shape)


def nested_lists(values: Any, dtype: Any, shape: Sequence[int | None]) -> Any:
    """Return arrays as nested lists.

    Args:
        values: An array (N, ...), or N arrays.
        dtype: Their dtype.
        shape: Their shape, with None for dimensions that differ.

    Raises:
        CannotHoldError: an array has no items in a dimension whose size lists do not keep.
    """
    pa = arrow()
    if isinstance(values, np.ndarray):
        flat: NDArray[Any] = values.reshape(-1)
        shapes = np.broadcast_to(np.array(values.shape[1:], np.int64), (len(values), len(shape)))
    else:
        arrays = [np.asarray(value, dtype) for value in values]
        flat = np.concatenate([np.empty(0, dtype), *(each.reshape(-1) for each in arrays)])
        shapes = np.array([each.shape for each in arrays], np.int64).reshape(len(arrays), len(shape))
    first = 0 if None in shape[1:] else 1
    empty = (shapes[:, first:] == 0).any(axis=1)
    if empty.any():
        row = int(np.argmax(empty))
        own = tuple(shapes[row].tolist())
        raise CannotHoldError(row, f"an array of shape {own}: lists in Parquet forget a shape that has no items")
    found = pa.array(flat)
    for axis in reversed(range(len(shape))):
        size = shape[axis]
        if size is None:
            lengths = np.repeat(shapes[:, axis], np.prod(shapes[:, :axis], axis=1))
            found = pa.ListArray.from_arrays(pa.array(np.cumsum([0, *lengths], dtype=np.int32)), found)
        else:
            found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
