"""FFCV's .beton files, version 2.

The format: https://docs.ffcv.io/ and the types in its source. Little-endian: a head; for each field
its type, its name of at most 16 bytes and its arguments; a table with one row per record; pages with
the data; a table of allocations (record, place, size). The parser is ours: the package needs a
compiler and OpenCV to be installed, and decodes images.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastrecord.errors import Code
from fastrecord.interchange.arrays import ArraySource, Column, Shard
from fastrecord.interchange.format import Format, Found
from fastrecord.interchange.paths import only
from fastrecord.interchange.source import EndError, Source
from fastrecord.schema import FieldType, array

_HEAD = np.dtype(
    [("version", "<u2"), ("fields", "<u2"), ("page", "<u4"), ("records", "<u8"), ("allocations", "<u8")]
)  # fmt: skip
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "u1", 1024)])
_ALLOCATION = np.dtype([("record", "<u8"), ("place", "<u8"), ("size", "<u8")])
_IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
_BYTES = np.dtype([("place", "<u8"), ("size", "<u8")])
_JPEG, _RAW = 0, 1
_KINDS = ("float", "int", "image", "bytes", "array", "json", "array")
_ROWS = {"float": "<f8", "int": "<i8", "image": _IMAGE, "bytes": _BYTES, "json": _BYTES, "array": "<u8"}
# Values that lie closer than this are read together.
_GAP = 16 << 10
_SCAN = 1 << 16


class BetonFormat(Format):
    """See the module."""

    name = "beton"
    title = "FFCV .beton"
    suffixes = (".beton",)

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        if len(found.head) < _HEAD.itemsize or found.is_folder:
            return None
        head = np.frombuffer(found.head, _HEAD, 1)[0]
        size = os.path.getsize(found.path)
        page = int(head["page"])
        good = head["version"] == 2 and 0 < head["fields"] < 1000 and page >= 1 << 21 and page & (page - 1) == 0
        return "it begins with the head of FFCV's files" if good and head["allocations"] <= size else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        del settings
        path = only(source, "files of FFCV")
        with ExitStack() as stack:
            try:
                file = _File(stack.enter_context(open(path, "rb", buffering=0)))
            except ValueError as err:
                raise Code.SOURCE.error(f"{path}: {err}: get the file again") from err
            return ArraySource([Shard(path, file.columns(), close=stack.pop_all().close)])


@dataclass(slots=True)
class _Field:
    name: str
    kind: str
    type: FieldType
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()


class _File:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        head = np.frombuffer(self._read(0, _HEAD.itemsize), _HEAD)[0]
        if head["version"] != 2:
            raise ValueError(f"version {head['version']} of .beton, not 2; write it again with FFCV 1.0")
        self._end = int(head["allocations"])
        if not self._end:
            raise ValueError("its writer did not finish it")
        if self._end > self._size:
            raise ValueError(f"it is cut short: its table of allocations is at byte {self._end} of {self._size}")
        fields = np.frombuffer(self._read(_HEAD.itemsize, int(head["fields"]) * _FIELD.itemsize), _FIELD)
        self._fields = [_field(each) for each in fields]
        names = [each.name for each in self._fields]
        if len(set(names)) != len(names):
            raise ValueError(f"two fields have one name: {', '.join(names)}")
        self._row = np.dtype([(each.name, _ROWS[each.kind]) for each in self._fields], align=True)
        self._first = _HEAD.itemsize + fields.nbytes
        self._count = int(head["records"])
        if self._first + self._count * self._row.itemsize > self._size:
            raise ValueError(f"it is cut short: it has no room for {self._count} records")
        table = np.frombuffer(self._read(self._end, (self._size - self._end) // 24 * 24), _ALLOCATION)
        stored = sum(each.kind not in ("int", "float") for each in self._fields)
        if len(table) < self._count * stored:
            raise ValueError(f"it is cut short: its table has {len(table)} allocations, not {self._count * stored}")
        places, sizes = table["place"].astype(np.int64), table["size"].astype(np.int64)
        if (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            places, sizes = places[order], sizes[order]
        self._places, self._sizes = places, sizes
        self._find_images()
        self._mean = self._size // max(self._count, 1) // max(stored, 1)

    def columns(self) -> dict[str, Column]:
        """Return the fields."""
        return {
            each.name: Column(each.type, f"field of {each.kind}", self._count, self._mean, partial(self._column, each))
            for each in self._fields
        }

    def _find_images(self) -> None:
        """Give fields of raw pixels their type; a field with both becomes images, raw ones as PNG."""
        images = [each for each in self._fields if each.kind == "image"]
        found: dict[str, set[tuple[int, int, int]]] = {each.name: set() for each in images}
        for start in range(0, self._count if images else 0, _SCAN):
            rows = self._rows(start, min(start + _SCAN, self._count))
            for name, seen in found.items():
                every = rows[name]
                raw = every["mode"] != _JPEG
                if (~raw).any():
                    seen.add((_JPEG, 0, 0))
                if raw.any() and len(seen) < 3:
                    sizes = np.unique(np.stack([every["height"][raw], every["width"][raw]], 1), axis=0)[:2]
                    seen |= {(_RAW, height, width) for height, width in sizes.tolist()}
        for each in images:
            seen = found[each.name]
            if seen and all(mode == _RAW for mode, _, _ in seen):
                ((_, height, width), *others) = seen
                each.type = array("uint8", (None, None, 3) if others else (height, width, 3))

    def _column(self, field: _Field, start: int, end: int) -> Any:
        """Return values of a field."""
        rows = self._rows(start, end)[field.name]
        if field.kind in ("int", "float"):
            return rows.copy()
        places, sizes, known = self._spans(field, rows)
        lost = ~(known & (places >= 0) & (places + sizes <= self._end))
        if lost.any():
            raise ValueError(f"its data are not in the file, at byte {places[lost][0]}")
        heads = rows.tolist() if field.kind == "image" else [()] * len(rows)
        return [_value(field, head, view) for head, view in zip(heads, self._values(places, sizes), strict=True)]

    def _spans(self, field: _Field, rows: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return where values lie, their sizes, and whether both are known."""
        place = rows if field.kind == "array" else rows["place"]
        places = np.minimum(place, np.uint64(1 << 62)).astype(np.int64)
        known = np.ones(len(rows), np.bool_)
        if field.kind == "array":
            assert field.dtype is not None  # noqa: S101 - arrays have one
            return places, np.full(len(rows), field.dtype.itemsize * int(np.prod(field.shape)), np.int64), known
        if field.kind != "image":
            sizes = np.minimum(rows["size"], np.uint64(1 << 62)).astype(np.int64)
            return places, np.where(sizes <= self._size, sizes, 0), sizes <= self._size
        # The size of an image is in the table of allocations only.
        at = np.searchsorted(self._places, places)
        at[at == len(self._places)] = 0
        known = self._places[at] == places if len(self._places) else np.zeros(len(rows), np.bool_)
        sizes = np.where(known, self._sizes[at], 0) if len(self._places) else np.zeros(len(rows), np.int64)
        known &= (sizes >= 0) & (sizes <= self._size)
        return places, np.where(known, sizes, 0), known

    def _values(self, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[memoryview]:
        """Read values, those that lie together at once."""
        found = [memoryview(b"")] * len(places)
        order = np.argsort(places, kind="stable")
        order = order[sizes[order] > 0]
        if not len(order):
            return found
        starts, ends = places[order], np.maximum.accumulate(places[order] + sizes[order])
        cuts = np.flatnonzero(starts[1:] > ends[:-1] + _GAP) + 1
        for group in np.split(np.arange(len(order)), cuts):
            begin = int(starts[group[0]])
            memory = memoryview(self._read(begin, int(ends[group[-1]]) - begin))
            rows = order[group]
            for row, at, size in zip(rows.tolist(), (places[rows] - begin).tolist(), sizes[rows].tolist(), strict=True):
                found[row] = memory[at : at + size]
        return found

    def _rows(self, start: int, stop: int) -> Any:
        size = self._row.itemsize
        return np.frombuffer(self._read(self._first + start * size, (stop - start) * size), self._row)

    def _read(self, place: int, size: int) -> bytes:
        if place + size > self._size:
            raise ValueError(f"it is cut short: {self._size} bytes, but {size} are read at byte {place}")
        data = os.pread(self._file.fileno(), size, place)
        while len(data) < size:
            more = os.pread(self._file.fileno(), size - len(data), place + len(data))
            if not more:
                raise EndError("the file became shorter while it was read: get it again")
            data += more
        return data


def _field(row: Any) -> _Field:
    """Return a field by its description."""
    name = bytes(row["name"]).partition(b"\0")[0].decode("ascii")
    number = int(row["type"])
    if number >= len(_KINDS):
        raise ValueError(f"the field {name!r} is of a type of its own ({number}); write it as bytes with FFCV")
    kind = _KINDS[number]
    types = {"float": "float64", "int": "int64"}
    if kind != "array":
        return _Field(name, kind, FieldType(types.get(kind, kind)))
    arguments = row["arguments"].tobytes()
    shape = [int(dim) for dim in np.frombuffer(arguments, "<u8", 32)]
    while shape and not shape[-1]:
        shape.pop()
    length = int(np.frombuffer(arguments, "<u8", 1, 256)[0])
    described = json.loads(arguments[264 : 264 + min(length, 760)])
    if not isinstance(described, list) or len(described) != 1 or not isinstance(described[0][1], str):
        raise ValueError(f"the field {name!r} has arrays with several values in an item")
    try:
        dtype = np.dtype(described[0][1])
        return _Field(name, kind, array(dtype, shape), dtype, tuple(shape))
    except TypeError as err:
        raise ValueError(f"the field {name!r} has {err}") from err


def _value(field: _Field, head: Sequence[int], data: memoryview) -> Any:
    if field.kind == "bytes":
        return data
    if field.kind == "json":
        return json.loads(bytes(data).partition(b"\0")[0])
    if field.kind == "array":
        return np.frombuffer(data, field.dtype).reshape(field.shape)
    mode, width, height, _ = head
    if mode == _JPEG:
        return data
    if mode != _RAW or len(data) != height * width * 3:
        raise ValueError(f"an image of the mode {mode}, {width} x {height}, with {len(data)} bytes")
    pixels = np.frombuffer(data, np.uint8).reshape(height, width, 3)
    if field.type.name == "array":
        return pixels
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
