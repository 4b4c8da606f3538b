"""Distinct records: a value is a function of file generation, record number and field."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr

SIDE = 24
_BASES = 16


class WrongDataError(AssertionError):
    """The read value differs from the written one."""


def _base(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((SIDE, SIDE)).save(buffer, "JPEG")
    return buffer.getvalue()


# The pixels identify an image; a unique comment identifies its bytes.
BASES = [_base(number) for number in range(_BASES)]


def _image(draw: Random) -> bytes:
    base = BASES[draw.randrange(_BASES)]
    return base[:2] + b"\xff\xfe\x00\x12" + draw.randbytes(16) + base[2:]


def _data(draw: Random) -> bytes:
    # Most are small, some empty, few as large as photographs.
    return draw.randbytes(draw.choice((0, 1, draw.randrange(300), draw.randrange(300), draw.randrange(5000), 90_000)))


def _packed(draw: Random) -> bytes:
    return draw.randbytes(9) * draw.randrange(400)


def _words(draw: Random) -> list[str]:
    return [draw.randbytes(draw.randrange(6)).hex() for _ in range(draw.randrange(5))]


def _array(dtype: str, *shape: int) -> Callable[[Random], np.ndarray[Any, Any]]:
    """Return a function that draws arrays; dimension -n draws a length up to n."""

    def draw_array(draw: Random) -> np.ndarray[Any, Any]:
        dims = [dim if dim > 0 else draw.randrange(-dim) for dim in shape]
        count = int(np.prod(dims))
        return np.frombuffer(draw.randbytes(2 * count), np.int16).astype(dtype).reshape(dims)

    return draw_array


# Field -> its type, and a function that draws a value.
FIELDS: dict[str, tuple[fr.FieldType, Callable[[Random], Any]]] = {
    "image": (fr.image(), _image),
    "label": (fr.FieldType("int64"), lambda draw: draw.getrandbits(62)),
    "key": (fr.string(), lambda draw: draw.randbytes(12).hex()),
    "data": (fr.bytes_(), _data),
    "packed": (fr.bytes_("zstd"), _packed),
    "note": (fr.json("lz4"), lambda draw: {"words": _words(draw), "share": draw.random(), "nothing": None}),
    "point": (fr.array("float32", (3,)), _array("float32", 3)),
    "pixels": (fr.array("uint8", (16, 16, 3)), _array("uint8", 16, 16, 3)),
    "wave": (fr.array("float32", (None,)), _array("float32", -2000)),
    "grid": (fr.array("int16", (None, None), "lz4"), _array("int16", -20, -30)),
    "tags": (fr.list_(fr.string()), _words),
    "counts": (fr.list_("int32"), lambda draw: [draw.randrange(100) for _ in range(draw.randrange(8))]),
    "flag": (fr.FieldType("bool"), lambda draw: draw.random() < 0.5),
    "weight": (fr.FieldType("float64"), lambda draw: draw.random()),
}
SCHEMA = fr.Schema({name: kind for name, (kind, _) in FIELDS.items()})
# Fields that are added later; their number modulo this length selects the type.
_LATER = ("label", "key", "data", "point")
ARRAY_FIELDS = tuple(name for name in FIELDS if name != "image")


def field_type(name: str) -> fr.FieldType:
    """Return the type of a field: one of `FIELDS`, or "later<k>"."""
    return FIELDS[_kind(name)][0]


def _kind(name: str) -> str:
    return _LATER[int(name.removeprefix("later")) % len(_LATER)] if name.startswith("later") else name


def value(generation: int, number: int, name: str) -> Any:
    """Return the value of a field in record `number` of a generation."""
    return FIELDS[_kind(name)][1](Random(f"{generation}/{number}/{name}"))


def record(generation: int, number: int, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of some fields of a record."""
    return {name: value(generation, number, name) for name in names}


def pixels(generation: int, number: int) -> np.ndarray[Any, Any]:
    """Return what the record's image decodes to, uint8 (SIDE, SIDE, 3)."""
    return fr.decode_image(BASES[Random(f"{generation}/{number}/image").randrange(_BASES)])


def same(expected: Any, found: Any) -> bool:
    """Return whether a value from a record, a batch or a tensor equals the written one."""
    if isinstance(expected, bytes):
        return bytes(found) == expected
    if isinstance(expected, np.ndarray):
        array = np.asarray(found)
        return array.dtype == expected.dtype and np.array_equal(array, expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, expected, found))
    return bool(found == expected)


def compare(generation: int, numbers: Iterable[int], name: str, found: Iterable[Any], where: str) -> None:
    """Compare the values of a field, read from some records.

    Raises:
        WrongDataError: a value differs; the message names the record and the way of reading.
    """
    for number, got in zip(numbers, found, strict=True):
        if not same(value(generation, number, name), got):
            raise WrongDataError(f"generation {generation}, record {number}, {name}, by {where}: {got!r:.200}")


class Commits:
    """Record counts at which a generation is committed; also a pure function."""

    def __init__(self, generation: int) -> None:
        self._draw = Random(f"commits {generation}")
        self._ends = [0]

    def next_end(self, count: int) -> int:
        """Return the end of the commit with record `count`."""
        while self._ends[-1] <= count:
            size = self._draw.choice((1, self._draw.randrange(1, 8), self._draw.randrange(1, 60), 200))
            self._ends.append(self._ends[-1] + size)
        return self._ends[bisect_right(self._ends, count)]

    def is_end(self, count: int) -> bool:
        """Return whether a commit ends at this record count."""
        return count == 0 or self.next_end(count - 1) == count
