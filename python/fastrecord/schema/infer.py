"""`infer_schema`: a schema for an existing record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastrecord._core import image_size
from fastrecord.errors import Code
from fastrecord.schema import FieldType, Schema, array, list_

_PLAIN = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def infer_schema(sample: Mapping[str, Any]) -> Schema:
    """Return a schema that fits the record; `Writer.from_sample` documents the types.

    Raises:
        SchemaError: a value's type cannot be inferred; names the field.
        TypeError: the record is not a mapping.
    """
    if not isinstance(sample, Mapping):
        raise TypeError(f"a record is a mapping of field names to values, not {type(sample).__name__}")
    fields = {}
    for name, value in sample.items():
        try:
            fields[name] = _infer(value)
        except (TypeError, ValueError) as err:
            raise Code.SCHEMA.error(f"field {name!r}: {err}: give a schema") from err
    return Schema(fields)


def _infer(value: Any) -> FieldType:
    plain = _infer_plain(value)
    if plain is not None:
        return plain
    if isinstance(value, dict):
        json.dumps(value, allow_nan=False)
        return FieldType("json")
    if isinstance(value, list | tuple):
        return _infer_list(value)
    raise TypeError(f"no type is known for a value of {type(value).__name__}")


def _infer_plain(value: Any) -> FieldType | None:
    if type(value) in _PLAIN:
        return FieldType(_PLAIN[type(value)])
    if isinstance(value, str):
        return FieldType("string")
    if isinstance(value, bytes | bytearray | memoryview):
        return FieldType("bytes" if image_size(value) is None else "image")
    if isinstance(value, np.generic):
        return FieldType(array(value.dtype, ()).dtype or "")
    if isinstance(value, np.ndarray) or hasattr(value, "__torch_function__"):
        return array(value.dtype, tuple(value.shape))
    return None


def _infer_list(values: list[Any] | tuple[Any, ...]) -> FieldType:
    if not values:
        raise TypeError("an empty list does not show the type of its items")
    items = [_infer_plain(value) for value in values]
    kinds = {item for item in items if item is not None}
    if None not in items and len(kinds) == 1:
        return list_(kinds.pop())
    arrays = [item for item in items if item is not None and item.name == "array"]
    if len(arrays) == len(items) and len({item.dtype for item in arrays}) == 1:
        shapes = [item.shape or () for item in arrays]
        if len({len(shape) for shape in shapes}) == 1:
            shape = tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*shapes, strict=True))
            return list_(array(arrays[0].dtype, shape))
    json.dumps(values, allow_nan=False)
    return FieldType("json")
