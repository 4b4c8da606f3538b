"""Ray's tensors in Arrow tables, to and from arrays that `interchange` knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray, ArrowVariableShapedTensorType

from fastrecord.interchange.files.to_arrow import nested_lists

_RAGGED = "Array2D"  # a feature of Hugging Face's datasets, of any number of dimensions here


def without_tensors(table: Any) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """Return a table whose tensors are Arrow's own, or nested lists if their shapes differ.

    Args:
        table: A block of Ray, `pyarrow.Table`.

    Returns:
        The table; and for each column of nested lists what `ArrowSource` needs to read them as
        arrays.
    """
    features: dict[str, Mapping[str, Any]] = {}
    for at, field in enumerate(table.schema):
        if not isinstance(field.type, pa.BaseExtensionType) or isinstance(field.type, pa.FixedShapeTensorType):
            continue
        if not field.type.extension_name.startswith("ray.data.arrow_"):
            continue
        chunks = [chunk for chunk in table.column(at).chunks if len(chunk)]
        if not chunks:
            continue
        parts = [np.asarray(each) for chunk in chunks for each in chunk.to_numpy(zero_copy_only=False)]
        shapes = {part.shape for part in parts}
        if len(shapes) == 1 and "variable" not in field.type.extension_name:
            flat = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(np.stack(parts)))
        else:
            flat = nested_lists(parts, parts[0].dtype, [None] * parts[0].ndim)
            features[field.name] = {"_type": _RAGGED, "shape": [None] * parts[0].ndim}
        table = table.set_column(at, field.name, flat)
    return table, features


def stacked(values: NDArray[Any]) -> Any:
    """Return arrays of one shape, (N, ...), as a column of Ray's tensors."""
    if not len(values):
        kind = ArrowTensorArray.from_numpy(np.zeros((1, *values.shape[1:]), values.dtype)).type
        return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
    return ArrowTensorArray.from_numpy(np.ascontiguousarray(values))


def ragged(values: Sequence[NDArray[Any]], dtype: Any, ndim: int) -> Any:
    """Return arrays of different shapes as a column of Ray's tensors.

    Args:
        values: The arrays.
        dtype: Their dtype.
        ndim: Their number of dimensions.
    """
    if not len(values):
        kind = ArrowVariableShapedTensorType(pa.from_numpy_dtype(np.dtype(dtype)), ndim)
        return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
    return ArrowVariableShapedTensorArray.from_numpy(list(values))
