"""`common_type`: the type that fits some values; and `infer_schema`, for an existing record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastrecord._core import image_size
from fastrecord.errors import Code
from fastrecord.schema import FieldType, Schema, array, list_

# What a value is, and its classes.
_CLASSES: dict[str, tuple[type, ...]] = {
    "bool": (bool, np.bool_),
    "int": (int, np.integer),
    "float": (float, np.floating),
    "complex": (complex, np.complexfloating),
    "str": (str,),
    "bytes": (bytes, bytearray, memoryview),
    "array": (np.ndarray,),
    "list": (list, tuple),
    "json": (dict,),
}
# What values are -> the type of a field of them.
_KINDS = {"bool": "bool", "complex": "complex128", "str": "string", "json": "json"}


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
            if isinstance(value, (list, tuple)) and not value:
                raise TypeError("an empty list does not show the type of its items")
            kind = common_type([value])
            if kind is None:
                raise TypeError(f"no type is known for a value of {type(value).__name__}")
            if kind.name == "json":
                json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as err:
            raise Code.SCHEMA.error(f"field {name!r}: {err}: give a schema") from err
        fields[name] = kind
    return Schema(fields)


def common_type(values: Sequence[Any]) -> FieldType | None:
    """Return the type that fits all values, or None if they are of different kinds.

    Numbers of numpy keep their dtype; int -> int64 (uint64 if needed), float and int -> float64,
    bool, complex -> complex128, str -> string, bytes-like -> image if most are images, else bytes;
    arrays of one dtype and number of dimensions -> array, with None for dimensions that differ;
    dict -> json; lists -> lists of one type, else json.

    Args:
        values: At least one value.
    """
    numbers = [value for value in values if isinstance(value, (np.number, np.bool_))]
    dtypes = {value.dtype for value in numbers}
    if len(dtypes) == 1 and len(numbers) == len(values):
        return FieldType(array(dtypes.pop(), ()).dtype or "")
    kinds = {kind_of(value) for value in values}
    if kinds <= {"int", "float"}:
        if "float" in kinds:
            return FieldType("float64")
        return FieldType("uint64" if max(values) > np.iinfo(np.int64).max else "int64")
    if len(kinds) != 1:
        return FieldType("json") if kinds <= {"list", "json", "none"} else None
    kind = kinds.pop()
    if kind == "bytes":
        images = sum(image_size(value) is not None for value in values)
        return FieldType("image" if 2 * images > len(values) else "bytes")
    if kind == "array":
        return _array_type(values)
    if kind == "list":
        return _list_type(values)
    return FieldType(_KINDS[kind]) if kind in _KINDS else None


def kind_of(value: Any) -> str:
    """Return what a value is, as for `common_type`: "int", "bytes", "array" ... or the name of its class."""
    if value is None:
        return "none"
    for name, kinds in _CLASSES.items():
        if isinstance(value, kinds):
            return name
    return "array" if hasattr(value, "__torch_function__") else type(value).__name__


def _array_type(values: Sequence[Any]) -> FieldType | None:
    if len({(str(value.dtype).removeprefix("torch."), len(value.shape)) for value in values}) != 1:
        return None
    shape = tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*(v.shape for v in values), strict=True))
    kind = array(values[0].dtype, shape)
    return kind if shape else FieldType(kind.dtype or "")


def _list_type(values: Sequence[Sequence[Any]]) -> FieldType | None:
    items = [item for value in values for item in value]
    if items:
        item = common_type(items)
        if item is not None and item.name not in ("json", "list"):
            return list_(item)
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return FieldType("json")
