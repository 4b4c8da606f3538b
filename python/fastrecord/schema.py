"""Fields and their types: what every record of a file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of one field. Make one with `image()`, `bytes_()`, `string()`, `int64()` or `float64()`."""

    name: str

    def __repr__(self) -> str:
        return f"{'bytes_' if self.name == 'bytes' else self.name}()"


def image() -> FieldType:
    """Return the type of an encoded image (JPEG, PNG, ...), kept byte for byte, with width and height as index columns.

    Values: bytes-like. Read as a read-only memoryview; `column("image.width")` and `column("image.height")` are
    uint32 (N,).
    """
    return FieldType("image")


def bytes_() -> FieldType:
    """Return the type of any bytes. Values: bytes-like; read as a read-only memoryview."""
    return FieldType("bytes")


def string() -> FieldType:
    """Return the type of a str, stored as UTF-8."""
    return FieldType("string")


def int64() -> FieldType:
    """Return the type of a 64-bit signed integer. Values outside of [-2**63, 2**63) are refused."""
    return FieldType("int64")


def float64() -> FieldType:
    """Return the type of a 64-bit IEEE float."""
    return FieldType("float64")


class Schema(Mapping[str, FieldType]):
    """The ordered, named and typed fields of a file; a read-only mapping of name to type.

    Args:
        fields: Name -> type; the order of the mapping is the order of the fields.

    Raises:
        TypeError: a name is no str, or a type was not made by one of the type functions.
        SchemaError: raised by `Writer` for empty schemas and for names or types that the format does not know.
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
        return json.dumps([{"name": name, "type": kind.name} for name, kind in self._fields.items()])

    @classmethod
    def _from_json(cls, text: str) -> Schema:
        rows: list[dict[str, Any]] = json.loads(text)
        return cls({row["name"]: FieldType(row["type"]) for row in rows})
