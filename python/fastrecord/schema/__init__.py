"""Fields and their types: `FieldType` and `Schema`, which describe every record of a file.

Imports only the core.
"""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastrecord.schema.compression import Compression

# Size of each scalar type in bytes.
SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
_UNDERSCORED = ("bool", "bytes", "list")


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of one field; create it with a type function such as `array("float32", (3,))`.

    Attributes:
        name: "image", "bytes", "string", "json", "array", "list", or the name of a scalar type,
            such as "int64".
        dtype: The element type of scalars and arrays: numpy's name, or "bfloat16". None for others.
        shape: The shape of arrays, with None for dimensions that vary from record to record; () for
            scalars. None for others.
        item: The type of a list's items. None for others.
        compression: How the values are compressed; None without compression.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    item: FieldType | None = None
    compression: Compression | None = None

    def __post_init__(self) -> None:
        if self.name in SIZES:
            object.__setattr__(self, "dtype", self.name)
            object.__setattr__(self, "shape", ())

    @property
    def nbytes(self) -> int | None:
        """Size of each value in bytes for scalars and arrays of fixed shape; None for others."""
        if self.dtype is None or self.shape is None or None in self.shape:
            return None
        return SIZES[self.dtype] * math.prod(dim for dim in self.shape if dim is not None)

    def __repr__(self) -> str:
        """Return the type as Python code."""
        arguments = []
        if self.name == "array":
            arguments = [f'"{self.dtype}"', repr(self.shape)]
        elif self.item is not None:
            arguments = [repr(self.item)]
        if self.compression is not None:
            arguments.append(f"compression={self.compression!r}")
        return f"{self.name}{'_' if self.name in _UNDERSCORED else ''}({', '.join(arguments)})"

    def __str__(self) -> str:
        """Return the type as in messages and `fastrecord info`: array(uint8, (32, 32, 3))."""
        if self.name == "array":
            return f"array({self.dtype}, {self.shape})"
        return self.name if self.item is None else f"{self.name}({self.item})"

    def _to_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"type": self.name}
        if self.name == "array":
            row |= {"dtype": self.dtype, "shape": None if self.shape is None else list(self.shape)}
        if self.item is not None:
            row["item"] = self.item._to_row()
        if self.compression is not None:
            row["compression"] = self.compression._to_row()
        return row

    @classmethod
    def _from_row(cls, row: dict[str, Any]) -> FieldType:
        shape, item, compression = row.get("shape"), row.get("item"), row.get("compression")
        return cls(
            row["type"],
            row.get("dtype"),
            None if shape is None else tuple(shape),
            None if item is None else cls._from_row(item),
            None if compression is None else Compression._from_row(compression),
        )


def image() -> FieldType:
    """Return the type of an encoded image (JPEG, PNG, ...), stored byte for byte.

    Values are bytes-like. They are read as a read-only memoryview. The index columns
    `column("image.width")` and `column("image.height")` are uint32 (N,).
    """
    return FieldType("image")


def bytes_(compression: Compression | str | None = None) -> FieldType:
    """Return the type of arbitrary bytes. Values: bytes-like; read as a read-only memoryview."""
    return FieldType("bytes", compression=Compression.of(compression))


def string(compression: Compression | str | None = None) -> FieldType:
    """Return the type of a str, stored as UTF-8."""
    return FieldType("string", compression=Compression.of(compression))


def json(compression: Compression | str | None = None) -> FieldType:
    """Return the type of JSON values: dict, list, str, int, float, bool, None.

    NaN and inf are refused.
    """
    return FieldType("json", compression=Compression.of(compression))


def bool_() -> FieldType:
    """Return the type of a bool."""
    return FieldType("bool")


def int8() -> FieldType:
    """Return the type of an 8-bit signed integer.

    Like all integers, it refuses values out of range.
    """
    return FieldType("int8")


def int16() -> FieldType:
    """Return the type of a 16-bit signed integer."""
    return FieldType("int16")


def int32() -> FieldType:
    """Return the type of a 32-bit signed integer."""
    return FieldType("int32")


def int64() -> FieldType:
    """Return the type of a 64-bit signed integer. Values outside [-2**63, 2**63) are refused."""
    return FieldType("int64")


def uint8() -> FieldType:
    """Return the type of an 8-bit unsigned integer."""
    return FieldType("uint8")


def uint16() -> FieldType:
    """Return the type of a 16-bit unsigned integer."""
    return FieldType("uint16")


def uint32() -> FieldType:
    """Return the type of a 32-bit unsigned integer."""
    return FieldType("uint32")


def uint64() -> FieldType:
    """Return the type of a 64-bit unsigned integer."""
    return FieldType("uint64")


def float16() -> FieldType:
    """Return the type of a 16-bit IEEE float.

    Values are rounded to the nearest float; values that are too large are refused.
    """
    return FieldType("float16")


def bfloat16() -> FieldType:
    """Return the type of a bfloat16, the upper half of a float32. numpy gets its bits as uint16."""
    return FieldType("bfloat16")


def float32() -> FieldType:
    """Return the type of a 32-bit IEEE float.

    Values are rounded to the nearest float; values that are too large are refused.
    """
    return FieldType("float32")


def float64() -> FieldType:
    """Return the type of a 64-bit IEEE float."""
    return FieldType("float64")


def complex64() -> FieldType:
    """Return the type of a complex number of two float32."""
    return FieldType("complex64")


def complex128() -> FieldType:
    """Return the type of a complex number of two float64."""
    return FieldType("complex128")


def array(dtype: Any, shape: Sequence[int | None], compression: Compression | str | None = None) -> FieldType:
    """Return the type of an array of numbers.

    Args:
        dtype: An argument of `numpy.dtype()` (numbers or bool, in any byte order: files are
            little-endian), a torch.dtype, or "bfloat16".
        shape: The dimensions, with None for dimensions that vary from record to record. () is a
            single number.
        compression: How the values are compressed. Arrays of at most 64 bytes are stored in an
            index column, uncompressed.

    Values are numpy arrays or CPU tensors of this dtype and shape. They are read as read-only numpy
    arrays; batches of a fixed shape are one array (N, *shape).

    Raises:
        TypeError: a dtype of objects, text, dates or several fields; or a shape that is not a
            sequence of integers and None.
        ValueError: a negative dimension.
    """
    return FieldType("array", _dtype_name(dtype), _shape(shape), compression=Compression.of(compression))


def list_(item: FieldType, compression: Compression | str | None = None) -> FieldType:
    """Return the type of a list of any length with items of one type; lists cannot be nested.

    Raises:
        TypeError: `item` is not a field type, or is a list, or is compressed (compress the list).
    """
    if not isinstance(item, FieldType):
        raise TypeError(f"item is fastrecord.int64() or another type, not {item!r}")
    if item.name == "list":
        raise TypeError("item is not a list: lists cannot hold lists")
    if item.compression is not None:
        raise TypeError("compress the list, not its items")
    return FieldType("list", item=item, compression=Compression.of(compression))


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, FieldType) and dtype.name in SIZES:
        return dtype.name
    text = str(dtype)
    if text.startswith("torch.") and text[6:] in SIZES:
        return text[6:]
    if text == "bfloat16":
        return text
    import numpy as np

    name = str(np.dtype(dtype).newbyteorder("=").name)
    if name not in SIZES:
        raise TypeError(f"an array of {np.dtype(dtype)}: arrays are of {', '.join(SIZES)}")
    return name


def _shape(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    from operator import index

    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence):
        raise TypeError(f"shape is a sequence of integers and None, not {shape!r}")
    dims = tuple(None if dim is None else index(dim) for dim in shape)
    for dim in dims:
        if dim is not None and dim < 0:
            raise ValueError(f"shape {dims}: a dimension is not negative (None varies)")
    return dims


class Schema(Mapping[str, FieldType]):
    """The ordered, named and typed fields of a file; a read-only mapping of name to type.

    Args:
        fields: Name -> type; the order of the mapping is the order of the fields.

    Raises:
        TypeError: a name is not a str, or a type was not created by a type function.
        SchemaError: raised by `Writer` for empty schemas and for names or types that the format
            does not support.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        for name, kind in fields.items():
            if not isinstance(name, str):
                raise TypeError(f"field names are str, not {type(name).__name__}: {name!r}")
            if not isinstance(kind, FieldType):
                raise TypeError(f"field {name!r}: write fastrecord.int64() or another type function, not {kind!r}")
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> FieldType:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        """Compare names, types and order."""
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self._fields.items()) == list(other._fields.items())

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __repr__(self) -> str:
        return f"Schema({self._fields!r})"

    def __getstate__(self) -> dict[str, FieldType]:
        return self._fields

    def __setstate__(self, state: dict[str, FieldType]) -> None:
        self._fields = state

    def _to_json(self) -> str:
        return jsonlib.dumps([{"name": name} | kind._to_row() for name, kind in self._fields.items()])

    @classmethod
    def _from_json(cls, text: str) -> Schema:
        rows: list[dict[str, Any]] = jsonlib.loads(text)
        return cls({row["name"]: FieldType._from_row(row) for row in rows})
