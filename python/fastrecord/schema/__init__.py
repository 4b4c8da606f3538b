"""Fields and their types: `FieldType` and `Schema`, which describe every record of a file.

Imports only the core.
"""

from __future__ import annotations

import json as jsonlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastrecord.schema.compression import Compression

_NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
# Size of each scalar type in bytes: the names end with their bits.
SIZES = {name: int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 8) // 8 for name in _NUMBERS}
_UNDERSCORED = ("bytes", "list")
_PLAIN = ["image", "bytes", "string", "json", *SIZES]
_ARRAY = re.compile(r"array\(\s*\"?(\w+)\"?\s*,\s*\(([^()]*)\)\s*\)")
_LIST = re.compile(r"list_?\((.*)\)")


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of one field, which a type function such as `array("float32", (3,))` returns.

    Numbers have a name alone, such as "int64": one of bool, int8 to int64, uint8 to uint64, float16,
    bfloat16, float32, float64, complex64 and complex128. Integers refuse values out of range. Floats are
    rounded to the nearest one, and refuse values that are too large; numpy gets the bits of a bfloat16 as
    uint16.

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

    @classmethod
    def of(cls, kind: Any) -> FieldType:
        """Return the type that is meant by a type, by its text, or by a dtype of numpy or torch.

        Args:
            kind: Such as `image()`, "int64", "array(float32, (3, None))", "list(string)", `numpy.float32`.

        Raises:
            ValueError: the text names no type; says which texts do.
            TypeError: it is something else.
        """
        if isinstance(kind, cls):
            return kind
        if not isinstance(kind, str):
            return cls(_dtype_name(kind))
        text = kind.strip()
        if text in _PLAIN:
            return cls(text)
        if found := _ARRAY.fullmatch(text):
            dims = [dim.strip() for dim in found[2].split(",") if dim.strip()]
            if all(dim.isdecimal() or dim in ("None", "?") for dim in dims):
                return array(found[1], tuple(int(dim) if dim.isdecimal() else None for dim in dims))
        if found := _LIST.fullmatch(text):
            return list_(found[1])
        raise ValueError(
            f"{text!r} is no type: types are {', '.join(_PLAIN)}, array(float32, (3, None)) and list(int64)"
        )

    @property
    def nbytes(self) -> int | None:
        """Size of each value in bytes for scalars and arrays of fixed shape; None for others."""
        if self.dtype is None or self.shape is None or None in self.shape:
            return None
        return SIZES[self.dtype] * math.prod(dim for dim in self.shape if dim is not None)

    def __repr__(self) -> str:
        """Return the type as Python code."""
        if self.name in SIZES and self.compression is None:
            return repr(self.name)
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


def list_(item: Any, compression: Compression | str | None = None) -> FieldType:
    """Return the type of a list of any length; lists cannot be nested.

    Args:
        item: The type of all items, as for `Schema`.
        compression: How the lists are compressed.

    Raises:
        TypeError, ValueError: `item` is not a field type, or is a list, or is compressed.
    """
    item = FieldType.of(item)
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
    if dtype is None:  # numpy's default
        raise TypeError("None is no type")
    import numpy as np

    name = str(np.dtype(dtype).newbyteorder("=").name)
    if name not in SIZES:
        raise TypeError(f"values of {np.dtype(dtype)}, where numbers are {', '.join(SIZES)}")
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

    `Schema(image=fastrecord.image(), label="int64")` is short for names that are Python's.

    Args:
        fields: Name -> type; the order of the mapping is the order of the fields. A type is a `FieldType`
            (`image()`, `array("float32", (3,))`), its text ("int64", "string"), or a dtype of numpy or torch
            for a number (`numpy.float32`).
        more: Further fields.

    Raises:
        TypeError, ValueError: a name is not a str, or a type is none; names the field.
        SchemaError: raised by `Writer` for empty schemas and for names or types that the format
            does not support.
    """

    def __init__(self, fields: Mapping[str, Any] = MappingProxyType({}), /, **more: Any) -> None:
        self._fields: dict[str, FieldType] = {}
        for name, kind in (*fields.items(), *more.items()):
            if not isinstance(name, str):
                raise TypeError(f"field names are str, not {type(name).__name__}: {name!r}")
            try:
                self._fields[name] = FieldType.of(kind)
            except (TypeError, ValueError) as err:
                raise type(err)(f"field {name!r}: {err}") from err

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

    def _to_json(self) -> str:
        return jsonlib.dumps(self._to_rows())

    @classmethod
    def _from_json(cls, text: str) -> Schema:
        return cls._from_rows(jsonlib.loads(text))

    def _to_rows(self) -> list[dict[str, Any]]:
        return [{"name": name} | kind._to_row() for name, kind in self._fields.items()]

    @classmethod
    def _from_rows(cls, rows: list[dict[str, Any]]) -> Schema:
        return cls({row["name"]: FieldType._from_row(row) for row in rows})
