"""LitData's chunks: folders with index.json and chunk-*.bin, as `litdata.optimize` writes them.

The format: https://github.com/Lightning-AI/litDATA (README, and the comments in its writer): chunks
as `interchange.files.chunks` describes them, each leaf of a record in the form of its serializer; rows of
plain data as an Arrow IPC file at the end of a chunk. The parser is ours: `litdata` reads one record
at a time, and decodes images. Pickles are read as plain data, and never run.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange.files.arrow import ArrowSource, IpcFile, opened
from fastrecord.interchange.files.chunks import (
    FRAMED,
    Block,
    ChunkFile,
    ChunkSource,
    Part,
    each,
    framed_blocks,
    items,
    numbers,
    offset_blocks,
    picture,
    sample_blocks,
    text,
)
from fastrecord.interchange.files.unpickle import pickled
from fastrecord.interchange.format import Format, Found
from fastrecord.interchange.infer import renamed
from fastrecord.interchange.paths import only
from fastrecord.interchange.source import Source
from fastrecord.schema import FieldType, list_

_INDEX = "index.json"
_ROWS = b"LDARW01\0"
_DEEPEST = 50
# The numbers of dtypes in numpy's and torch's arrays.
_NUMPY = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)  # fmt: skip
_TORCH = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128", "float16",
    "float16", "", "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16",
)  # fmt: skip


class LitDataFormat(Format):
    """See the module."""

    name = "litdata"
    title = "LitData chunks"

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        chunks = any(name.startswith("chunk-") and name.endswith(".bin") for name in found.names)
        return f"the folder holds {_INDEX} and chunk-*.bin" if chunks and _INDEX in found.names else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        del settings
        folder = only(source, "folders of LitData")
        folder = folder if os.path.isdir(folder) else os.path.dirname(folder) or "."
        path = os.path.join(folder, _INDEX)
        try:
            with open(path, encoding="utf-8") as file:
                index = json.load(file)
            return _open(folder, index["config"], index["chunks"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
            raise Code.SOURCE.error(
                f"{path}: not an index of LitData: {type(err).__name__}: {err}: write it again, or name another folder"
            ) from err


def _open(folder: str, config: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]) -> Source:
    loader = config.get("item_loader") or "PyTreeLoader"
    if config.get("encryption"):
        raise ValueError("its chunks are encrypted: write them without encryption")
    if loader not in ("PyTreeLoader", "TokensLoader"):
        raise ValueError(f"its chunks are for the {loader}: write them with the PyTreeLoader")
    if not listed:
        raise ValueError("it names no chunks")
    files, rows = [], 0
    for chunk in listed:
        name, count = chunk["filename"], chunk["chunk_size"]
        if os.path.basename(name) != name or not isinstance(count, int) or count < 0:
            raise ValueError(f"a chunk of {count!r} records in {name!r}")
        file = _file(os.path.join(folder, name), count, config)
        rows += isinstance(file, IpcFile)
        files.append(file)
    if rows:
        if rows != len(files):
            raise ValueError("some of its chunks have rows of Arrow, and others do not: import them on their own")
        return ArrowSource([file for file in files if isinstance(file, IpcFile)], {})
    names = list(_names(json.loads(config["data_spec"])[1], ()))
    forms = config["data_format"]
    parts = [_part("_".join(name) or "item", form) for name, form in zip(names, forms, strict=True)]
    if len({part.name for part in parts}) != len(parts):
        raise ValueError(f"two of its leaves have one name: {', '.join(part.name for part in parts)}")
    chunks = [file for file in files if not isinstance(file, IpcFile)]
    source = ChunkSource(chunks, parts, {}, headless=loader == "TokensLoader")
    fields = source.fields
    whole = [each.name for each in fields if each.type.name == "int64"]
    if all(each.name.isdecimal() for each in fields) and any(each.rename == "image" for each in fields):
        source.fields = renamed(fields, whole)  # in tuples, the only int64 is the label
    return source


def _file(path: str, count: int, config: Mapping[str, Any]) -> ChunkFile | IpcFile:
    """Return a chunk, by what lies in it."""
    codec = str(config.get("compression") or "").partition(":")[0]
    if codec not in ("", "zstd"):
        raise ValueError(f"its chunks are compressed with {codec}: write them with zstd, or without compression")
    with open(path, "rb") as file:
        head = file.read(12)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - 12, 0))
        tail = file.read(12)
    if head.startswith(FRAMED):
        return ChunkFile(path, count, framed_blocks)
    first, length = 4 + 4 * (count + 1), int.from_bytes(tail[:4], "little")
    if tail.endswith(_ROWS) and length + first + 12 == size:  # nothing lies between offsets and rows
        return opened(path, partial(IpcFile, part=(first, length)))
    if codec and config.get("compression_level") == "sample":
        return ChunkFile(path, count, sample_blocks)
    codec = codec if f".{codec}" in os.path.basename(path) else ""
    return ChunkFile(path, count, partial(offset_blocks, codec=codec))


def _names(spec: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the leaves of a tree that torch describes."""
    if len(path) > _DEEPEST:
        raise ValueError("its data_spec is too deep")
    children = spec["children_spec"]
    if spec["type"] is None:
        yield path
        return
    keys = json.loads(spec["context"]) if "ict" in spec["type"] else None
    keys = keys if isinstance(keys, list) else range(len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _names(child, (*path, str(key)))


def _part(name: str, form: str) -> Part:
    """Return how a leaf is read. A leaf of a serializer that is not known has bytes."""
    kind, _, more = form.partition(":")
    origin = f"leaf of {form}"
    scalars = {"int": "int64", "float": "float64"}
    if kind == "bool":
        return Part(name, origin, lambda block: block.matrix(1)[:, 0] != 0, FieldType("bool"))
    if kind in scalars:
        return Part(name, origin, numbers(scalars[kind]), FieldType(scalars[kind]))
    if kind in ("no_header_tensor", "no_header_numpy"):
        dtype = _dtype(_TORCH if kind == "no_header_tensor" else _NUMPY, int(more))
        return Part(name, origin, each(lambda data: _flat(data, dtype)))
    found: dict[str, tuple[Callable[[memoryview], Any], FieldType | None]] = {
        "str": (text, FieldType("string")),
        "text": (text, FieldType("string")),
        "json": (_nested, FieldType("json")),
        "pil": (picture, None),
        "pickle": (pickled, None),
        "jpeg_array": (items, list_(FieldType("image"))),
        "tensor": (lambda data: _array(data, ">u4", _TORCH), None),
        "numpy": (lambda data: _array(data, "<u4", _NUMPY), None),
    }
    if kind in found:
        read, field = found[kind]
        return Part(name, origin, each(read), field, pictures=read is picture)
    return Part(name, origin, Block.views, FieldType("image") if kind == "jpeg" else None)


def _dtype(names: Sequence[str], number: int) -> str:
    name = names[number] if 0 <= number < len(names) else ""
    if not name:
        raise ValueError(f"an array of the unknown dtype {number}")
    return name


def _flat(data: memoryview, dtype: str) -> Any:
    if len(data) % np.dtype(dtype).itemsize:
        raise ValueError(f"{len(data)} bytes are not a number of {dtype}")
    return np.frombuffer(data, dtype)


def _array(data: memoryview, integers: str, dtypes: Sequence[str]) -> Any:
    """Return an array: dtype, number of dimensions, shape, values."""
    if len(data) < 8:
        raise ValueError("the head of the array is damaged")
    number, ndim = np.frombuffer(data[:8], integers).tolist()
    if ndim > 32 or len(data) < 8 + 4 * ndim:
        raise ValueError("the head of the array is damaged")
    shape = np.frombuffer(data[8 : 8 + 4 * ndim], integers).tolist()
    values = _flat(data[8 + 4 * ndim :], _dtype(dtypes, number))
    if len(values) != int(np.prod(shape, dtype=object)):
        raise ValueError(f"an array of {len(values)} values, though its shape is {tuple(shape)}")
    return values.reshape(shape)


def _nested(data: memoryview) -> Any:
    """Return a value of the serializer "json": JSON, or tagged values."""
    if not len(data) or data[0] > 32:
        return json.loads(text(data))
    value, _ = _tagged(data, 0, 0)
    return value


def _tagged(data: memoryview, at: int, depth: int) -> tuple[Any, int]:
    """Return a tagged value at a place, and where it ends.

    Tags: 0 JSON, 1 strings, 2 int64s, 3 float64s, 4 bools, 5 dict, 6 records with the same keys,
    7 string, 8 int64, 9 float64, 10 bool, 11 None; in records, 16 None and 17 to 20 as 7 to 10.
    """
    try:
        tag = data[at]
        if depth > _DEEPEST or tag > 20 or 11 < tag < 16:
            raise ValueError(f"the unknown tag {tag}")
        if tag in (11, 16):
            return None, at + 1
        if tag in (7, 17):
            return _string(data, at + 1)
        if tag in (8, 18):
            return struct.unpack_from("<q", data, at + 1)[0], at + 9
        if tag in (9, 19):
            return struct.unpack_from("<d", data, at + 1)[0], at + 9
        if tag in (10, 20):
            return data[at + 1] != 0, at + 2
        count = struct.unpack_from("<I", data, at + 1)[0]
        at += 5
        if count > len(data) - at and (tag != 6 or count):
            raise ValueError(f"{count} items in {len(data)} bytes")
        if tag == 0:
            return json.loads(text(data[at : at + count])), at + count
        if tag in (2, 3, 4):
            dtype = np.dtype(("<i8", "<f8", "?")[tag - 2])
            return np.frombuffer(data, dtype, count, at).tolist(), at + count * dtype.itemsize
        if tag == 1:
            items = []
            for _ in range(count):
                item, at = _string(data, at)
                items.append(item)
            return items, at
        if tag == 5:
            found = {}
            for _ in range(count):
                key, at = _string(data, at)
                found[key], at = _tagged(data, at, depth + 1)
            return found, at
        return _records(data, at, count, depth)
    except (IndexError, struct.error) as err:
        raise ValueError(f"the value is cut short: {err}") from err


def _records(data: memoryview, at: int, count: int, depth: int) -> tuple[Any, int]:
    width = struct.unpack_from("<I", data, at)[0]
    at += 4
    if width * max(count, 1) > len(data) - at:
        raise ValueError(f"{count} records of {width} values in {len(data)} bytes")
    keys, rows = [], []
    for _ in range(width):
        key, at = _string(data, at)
        keys.append(key)
    for _ in range(count):
        row = {}
        for key in keys:
            row[key], at = _tagged(data, at, depth + 1)
        rows.append(row)
    return rows, at


def _string(data: memoryview, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<I", data, at)[0]
    if size > len(data) - at - 4:
        raise ValueError("the value is cut short")
    return text(data[at + 4 : at + 4 + size]), at + 4 + size
