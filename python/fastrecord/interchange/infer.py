"""`infer_fields`: the types of a source that does not declare them, from its first records.

What most of the first values are is the type: a few others are bad records, which are named, and do
not change the type of all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError, image_size
from fastrecord.errors import Code
from fastrecord.interchange.source import SourceField, T
from fastrecord.schema import FieldType, array, list_

# Values of the first records that decide.
SAMPLE = 64
_IMAGE = FieldType("image")
# Last parts of names that labels have.
_LABELS = frozenset(("label", "labels", "class", "cls", "target", "targets", "y"))
_LABEL_TYPES = frozenset(
    ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "string")
)  # fmt: skip
_KEYS = ("__key__",)


def first_few(items: Iterator[T], count: int = SAMPLE) -> list[T]:
    """Return the first items, fewer if an error comes after some: reading meets it again."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)
            if len(found) == count:
                break
    except FastRecordError:
        if not found:
            raise
    return found


def renamed(
    fields: Sequence[SourceField], labels: Sequence[str] = (), keys: Sequence[str] = _KEYS
) -> list[SourceField]:
    """Return fields with the names that they get by default: the one image, label and key, and none with dots.

    Args:
        fields: The fields of a source.
        labels: The ones that are labels; empty: what their names say.
        keys: Names of fields of keys.
    """
    types = {each.name: each.type for each in fields}
    last = {name: re.split(r"[/.]", name)[-1].lower() for name, kind in types.items() if kind.name in _LABEL_TYPES}
    labels = labels or [name for name in last if name in _LABELS] or [name for name in last if last[name] in _LABELS]
    names = {
        "image": [name for name, kind in types.items() if kind.name == "image"],
        "label": labels,
        "key": [name for name in keys if name in types and types[name].name in ("string", "bytes")],
    }
    renames = {name: name.replace(".", "_") for name in types if "." in name}
    renames |= {found[0]: new for new, found in names.items() if len(found) == 1 and new not in types}
    return [replace(each, rename=renames.get(each.name)) for each in fields]


def most(answers: Iterable[bool]) -> bool:
    """Return whether more than half of the answers are true."""
    found = list(answers)
    return 2 * sum(found) > len(found)


def most_images(values: Sequence[Any]) -> bool:
    """Return whether more than half of the values, which are bytes, are images."""
    return most(image_size(value) is not None for value in values)


def usual_type(values: Sequence[Any]) -> FieldType | None:
    """Return `common_type` of all values, else of those of one kind if they are more than half.

    Args:
        values: At least one value.
    """
    kind = common_type(values)
    if kind is not None:
        return kind
    groups: dict[Any, list[Any]] = {}
    for value in values:
        name = _kind(value)
        of_array = (str(value.dtype), value.ndim) if name == "array" else ()
        groups.setdefault(("number" if name in ("int", "float") else name, *of_array), []).append(value)
    largest = max(groups.values(), key=len)
    return common_type(largest) if 2 * len(largest) > len(values) else None


def common_type(values: Sequence[Any]) -> FieldType | None:
    """Return the type that fits all values, or None if they are of different kinds.

    Numbers of numpy keep their dtype; int -> int64 (uint64 if needed), float and int -> float64,
    bool, str -> string, bytes-like -> image if most are images, else bytes; arrays of one dtype and
    number of dimensions -> array, with None for dimensions that differ; dict -> json; lists -> lists
    of one type, else json.

    Args:
        values: At least one value.
    """
    dtypes = {value.dtype for value in values if isinstance(value, np.generic)}
    if len(dtypes) == 1 and all(isinstance(value, np.generic) for value in values):
        return FieldType(array(dtypes.pop(), ()).dtype or "")
    kinds = {_kind(value) for value in values}
    if kinds <= {"int", "float"}:
        if "float" in kinds:
            return FieldType("float64")
        return FieldType("uint64" if max(values) > np.iinfo(np.int64).max else "int64")
    if len(kinds) != 1:
        return FieldType("json") if kinds <= {"list", "json", "none"} else None
    kind = kinds.pop()
    if kind == "bytes":
        return _IMAGE if most_images(values) else FieldType("bytes")
    if kind == "array":
        return _array_type([value if _is_bfloat16(value) else np.asarray(value) for value in values])
    if kind == "list":
        return _list_type(values)
    return {"bool": FieldType("bool"), "str": FieldType("string"), "json": FieldType("json")}.get(kind)


def infer_fields(samples: Mapping[str, Sequence[Any]], origins: Mapping[str, str], where: str) -> list[SourceField]:
    """Return the fields of a source from values of its first records.

    Args:
        samples: Name of a field in the source -> its values in the first records, at least one.
        origins: What each field is in the source, for people.
        where: The source, for errors.

    Raises:
        FastRecordError: not even half of a field's values are of one type.
    """
    fields = []
    for name, values in samples.items():
        kind = usual_type(values)
        if kind is None:
            found = sorted({type(value).__name__ for value in values})
            raise Code.MIXED_FIELDS.error(
                f"{where}: field {name!r}: its first {len(values)} values are of several types, {', '.join(found)}: "
                f"leave it out by naming the other fields with --map, or give one type with --type {name}=TYPE"
            )
        fields.append(SourceField(name, kind, origins.get(name, "")))
    return renamed(fields)


def _kind(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int"
    if isinstance(value, (float, np.floating)):
        return "float"
    if isinstance(value, str):
        return "str"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    if isinstance(value, np.ndarray) or hasattr(value, "__torch_function__"):
        return "array"
    if isinstance(value, (list, tuple)):
        return "list"
    if value is None:
        return "none"
    return "json" if isinstance(value, dict) else type(value).__name__


def _is_bfloat16(value: Any) -> bool:
    return str(value.dtype) == "torch.bfloat16"  # which numpy lacks


def _array_type(values: Sequence[Any]) -> FieldType | None:
    if len({(value.dtype, value.ndim) for value in values}) != 1:
        return None
    dtype = "bfloat16" if _is_bfloat16(values[0]) else values[0].dtype
    if values[0].ndim == 0:
        return FieldType(array(dtype, ()).dtype or "")
    shape = tuple(dims[0] if len(set(dims)) == 1 else None for dims in zip(*(v.shape for v in values), strict=True))
    return array(dtype, shape)


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
