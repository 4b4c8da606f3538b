"""Zarr, versions 2 and 3 (https://zarr-specs.readthedocs.io), and N5 (https://github.com/saalfeldlab/n5).

The arrays of a group that have one first length are fields, their rows records, and attributes
metadata. Zarr is read by the package zarr. For N5 it has no reader any more, so this file has one:
blocks are files with a header, their numbers are big-endian, and dimensions are in reversed order,
so that the last one of N5 counts the records. Chunks that are missing are the fill value.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Setting, Source, library
from fastrecord.interchange.arrays import ArraySource, Column, Shard, described, listed
from fastrecord.interchange.infer import SAMPLE
from fastrecord.interchange.paths import several
from fastrecord.schema.infer import common_type

# Chunks are decompressed whole.
_LARGEST_CHUNK = 256 << 20
_LARGEST_METADATA = 16 << 20
_DEPTH = 8
_SETTINGS: Mapping[str, Setting] = {
    "group": Setting("read the arrays of this group, such as train; by default of the whole folder"),
    "arrays": Setting("read these arrays, named with commas between them; by default all"),
}


class Zarr(Format):
    """Folders of zarr."""

    name = "zarr"
    title = "Zarr"
    settings = _SETTINGS

    def recognise(self, found: Found) -> str | None:
        """Look for the files that describe groups and arrays."""
        signs = [name for name in ("zarr.json", ".zgroup", ".zarray") if name in found.names]
        return f"it is a folder with {signs[0]}" if signs else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open folders."""
        return _open(source, settings, _open_zarr)


class N5(Format):
    """Folders of N5."""

    name = "n5"
    title = "N5"
    settings = _SETTINGS

    def recognise(self, found: Found) -> str | None:
        """Look for attributes.json with N5's version, or an array's dimensions."""
        if "attributes.json" not in found.names:
            return None
        try:
            attributes = _attributes(found.path)
        except FastRecordError:
            return None
        if "n5" in attributes:
            return "its attributes.json has a version of N5"
        return "its attributes.json describes an array of N5" if _is_array(attributes) else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open folders."""
        return _open(source, settings, _open_n5)


def _open(
    source: str | Sequence[str], settings: Mapping[str, str], open_one: Callable[[str, str], Shard]
) -> ArraySource:
    paths = several(source)
    for path in paths:
        os.stat(path)
    group = settings.get("group", "").strip("/")
    return ArraySource.of(paths, lambda path: open_one(path, group), listed(settings, "arrays"))


def _check_chunk(path: str, name: str, chunk: Sequence[int], itemsize: int) -> None:
    size = math.prod(chunk) * itemsize
    if size > _LARGEST_CHUNK:
        raise Code.SOURCE.error(f"{path}: array {name!r} has chunks of {size >> 20:,} MiB: write it with smaller ones")


# Zarr


def _open_zarr(path: str, group: str) -> Shard:
    zarr = library("zarr", "zarr", "Zarr")
    try:
        with warnings.catch_warnings():
            # About data types whose description may change.
            warnings.simplefilter("ignore")
            root = zarr.open(path, mode="r", path=group or None)
            if isinstance(root, zarr.Array):
                found = {os.path.basename(group or os.path.normpath(path)).removesuffix(".zarr") or "data": root}
            else:
                members = sorted(root.members(max_depth=_DEPTH))
                found = {name: each for name, each in members if isinstance(each, zarr.Array)}
            own = [] if isinstance(root, zarr.Array) else list(root.attrs.items())
            inner = {name: list(each.attrs.items()) for name, each in found.items()}
            columns = {name: _zarr_column(path, name, each) for name, each in found.items() if each.shape}
    except (FastRecordError, KeyboardInterrupt):
        raise
    except Exception as err:
        # zarr and its codecs raise what the files lead them to.
        raise Code.SOURCE.error(
            f"{path}: {group or 'it'} is not whole, or cannot be read ({type(err).__name__}: {err}): copy it again, "
            "or name another group with --set group=..."
        ) from err
    return Shard(path, columns, described(own, inner))


def _zarr_column(path: str, name: str, held: Any) -> Column | FastRecordError:
    if _has_pickles(held.metadata.to_dict()):
        raise Code.PICKLE.error(f"{path}: the chunks of array {name!r} are pickles, which are not run: write it again")
    count, dtype, origin = held.shape[0], held.dtype, f"array {name}"
    _check_chunk(path, name, held.chunks, max(dtype.itemsize, 1))
    if dtype.kind in "OTUS" and len(held.shape) == 1:
        values = [""] if dtype.kind in "UT" else _zarr_values(held, 0, min(count, SAMPLE)) or [b""]
        kind = common_type(values)
        if kind is not None and kind.name in ("string", "bytes", "image"):
            return Column(kind, origin, count, dtype.itemsize, partial(_zarr_values, held), held.chunks[0])
    return Column.numbers(path, origin, held, partial(_zarr_numbers, held), held.chunks[0])


def _zarr_rows(held: Any, start: int, end: int) -> Any:
    try:
        return held[start:end]
    except KeyboardInterrupt:
        raise
    except Exception as err:
        # Codecs have exceptions of their own.
        raise ValueError(f"a chunk of {held.path or 'the array'} cannot be read ({type(err).__name__}: {err})") from err


def _zarr_numbers(held: Any, start: int, end: int) -> Any:
    return np.ascontiguousarray(_zarr_rows(held, start, end), held.dtype.newbyteorder("="))


def _zarr_values(held: Any, start: int, end: int) -> list[Any]:
    return [
        value.tobytes() if isinstance(value, np.ndarray) else value for value in _zarr_rows(held, start, end).tolist()
    ]


def _has_pickles(metadata: Any, depth: int = 0) -> bool:
    if isinstance(metadata, Mapping):
        return any(_has_pickles(value, depth + 1) for key, value in metadata.items() if key != "attributes")
    if isinstance(metadata, (list, tuple)):
        return any(_has_pickles(value, depth + 1) for value in metadata)
    if isinstance(metadata, str):
        return "pickle" in metadata.lower()
    config = getattr(metadata, "get_config", None) or getattr(metadata, "to_dict", None)
    return depth < _DEPTH and config is not None and _has_pickles(config(), depth + 1)


# N5

_TYPES = {name: np.dtype(name).newbyteorder(">") for name in (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
)}  # fmt: skip
_OWN = ("n5", "dimensions", "blockSize", "dataType", "compression", "compressionType")
_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiiI")


def _open_n5(path: str, group: str) -> Shard:
    root = os.path.join(path, group)
    columns: dict[str, Column | FastRecordError] = {}
    inner: dict[str, Iterable[tuple[str, Any]]] = {}
    own: list[tuple[str, Any]] = []
    for folder, attributes in _walk(root, group):
        name = os.path.relpath(folder, root)
        rest = [(key, value) for key, value in attributes.items() if key not in _OWN]
        if not _is_array(attributes):
            own += rest if name == "." else []
            continue
        name = os.path.basename(os.path.normpath(root)).removesuffix(".n5") if name == "." else name
        inner[name] = rest
        try:
            held = _N5Array(folder, attributes, path, name)
        except FastRecordError as err:
            columns[name] = err
            continue
        columns[name] = Column.numbers(path, f"array {name}", held, held.rows, held.block[0])
    return Shard(path, columns, described(own, inner))


def _walk(root: str, group: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the groups and arrays below a folder, with their attributes."""
    if not os.path.isdir(root):
        raise Code.SOURCE.error(f"{root}: there is no group {group!r}")
    todo = [(root, 0)]
    while todo:
        folder, depth = todo.pop()
        attributes = _attributes(folder)
        yield folder, attributes
        if not _is_array(attributes) and depth < _DEPTH:
            with os.scandir(folder) as entries:
                names = sorted((each.name for each in entries if each.is_dir()), reverse=True)
            todo += [(os.path.join(folder, name), depth + 1) for name in names]


def _attributes(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, "attributes.json")
    if not os.path.isfile(path):
        return {}
    if os.path.getsize(path) > _LARGEST_METADATA:
        raise Code.SOURCE.error(f"{path}: it is too large")
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except (ValueError, RecursionError) as err:
        raise Code.SOURCE.error(f"{path}: it is damaged ({err}): copy it again") from err
    return found if isinstance(found, dict) else {}


def _is_array(attributes: Mapping[str, Any]) -> bool:
    return "dimensions" in attributes and "dataType" in attributes


class _N5Array:
    """An array of N5."""

    def __init__(self, folder: str, attributes: Mapping[str, Any], path: str, name: str) -> None:
        self._folder, self._name = folder, name
        where = os.path.join(folder, "attributes.json")
        dimensions: Any = attributes["dimensions"]
        block: Any = attributes.get("blockSize")
        numbers = str(attributes["dataType"])
        for each in (dimensions, block):
            good = isinstance(each, list) and 0 < len(each) <= 32 and all(type(dim) is int for dim in each)
            if not good or not all(0 <= dim < 1 << 48 for dim in each) or len(each) != len(dimensions):
                raise Code.SOURCE.error(f"{where}: its dimensions or blockSize are damaged: {str(each)[:80]}")
        if numbers not in _TYPES or 0 in block:
            raise Code.SOURCE.error(
                f"{path}: array {name!r} has values of type {numbers!r}, which a field cannot hold: name the other "
                "ones with --set arrays=..."
            )
        self.shape, self.block = tuple(dimensions[::-1]), tuple(block[::-1])
        self.dtype = _TYPES[numbers]
        _check_chunk(path, name, block, self.dtype.itemsize)
        kind = attributes.get("compression") or {"type": attributes.get("compressionType", "raw")}
        self._compression = kind if isinstance(kind, dict) else {"type": str(kind)}
        if self._compression.get("type") not in _DECODERS:
            raise Code.SOURCE.error(
                f"{path}: array {name!r} is compressed by {self._compression.get('type')!r}: the kinds that are known "
                f"are {', '.join(_DECODERS)}"
            )

    def rows(self, start: int, end: int) -> Any:
        """Return rows, in the byte order of this machine."""
        rows = np.zeros((end - start, *self.shape[1:]), self.dtype.newbyteorder("="))
        if not rows.size:
            return rows
        first = range(start // self.block[0], (end - 1) // self.block[0] + 1)
        rest = [range(-(-dim // size)) for dim, size in zip(self.shape[1:], self.block[1:], strict=True)]
        for place in product(first, *rest):
            block = self._block(place)
            if block is None:
                continue
            at = [index * size for index, size in zip(place, self.block, strict=True)]
            low, high = max(start, at[0]), min(end, at[0] + block.shape[0])
            target = tuple(slice(a, a + size) for a, size in zip(at[1:], block.shape[1:], strict=True))
            if low < high:
                rows[(slice(low - start, high - start), *target)] = block[low - at[0] : high - at[0]]
        return rows

    def _block(self, place: Sequence[int]) -> Any:
        """Return a block; None if there is no file for it."""
        path = os.path.join(self._folder, *map(str, reversed(place)))
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > 2 * _LARGEST_CHUNK:
                    raise ValueError(f"{path}: {size:,} bytes are more than a block has")
                data = file.read(size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as err:
            raise ValueError(f"{path}: {err.strerror}") from err
        dims = len(self.shape)
        try:
            mode, count = struct.unpack_from(">HH", data)
            shape = struct.unpack_from(f">{count}I", data, 4)[::-1] if count == dims else ()
            begin = 4 + 4 * dims + (4 if mode == 1 else 0)
            edges = [
                min(size, dim - index * size) for size, dim, index in zip(self.block, self.shape, place, strict=True)
            ]
            if (
                mode > 1
                or len(shape) != dims
                or any(a < b or a > c for a, b, c in zip(shape, edges, self.block, strict=True))
            ):
                raise ValueError(f"its header has the mode {mode} and the shape {shape}")
            size = math.prod(shape) * self.dtype.itemsize
            raw = _DECODERS[self._compression["type"]](memoryview(data)[begin:], size, self._compression)
            if len(raw) != size:
                raise ValueError(f"it has {len(raw):,} bytes instead of {size:,}")
            block = np.frombuffer(raw, self.dtype).reshape(shape)
        except FastRecordError:
            raise
        except (struct.error, zlib.error, lzma.LZMAError, OSError, ValueError, EOFError, RuntimeError) as err:
            raise ValueError(f"{path}: it is damaged ({err})") from err
        return block[tuple(slice(edge) for edge in edges)]


def _stream(make: Callable[[Mapping[str, Any]], Any], data: memoryview, size: int, options: Mapping[str, Any]) -> bytes:
    # One byte more, so that too long data show.
    stream = make(options)
    found: bytes = stream.decompress(data, size + 1)
    if not stream.eof:
        raise ValueError("its compressed data are cut short, or too long")
    return found


def _lz4(data: memoryview, size: int, _options: Mapping[str, Any]) -> bytes:
    """Decompress what LZ4BlockOutputStream of Java writes; z5 writes a block alone."""
    lz4 = library("lz4.block", "n5", "N5 compressed by lz4")
    parts, at, total = [], 0, 0
    try:
        if data[:8] != _LZ4_MAGIC:
            return bytes(lz4.decompress(data, uncompressed_size=size))
        while at < len(data) and total < size:
            magic, token, packed, whole, _ = _LZ4_HEADER.unpack_from(data, at)
            at += _LZ4_HEADER.size
            if magic != _LZ4_MAGIC or packed < 0 or whole < 0 or total + whole > size or packed > len(data) - at:
                raise ValueError("its lz4 stream is damaged")
            part = data[at : at + packed]
            parts.append(bytes(part) if token >> 4 == 1 else lz4.decompress(part, uncompressed_size=whole))
            at += packed
            total += whole
    except lz4.LZ4BlockError as err:
        raise ValueError(str(err)) from err
    return b"".join(parts)


def _numcodecs(name: str, data: memoryview, size: int, _options: Mapping[str, Any]) -> bytes:
    module = library(f"numcodecs.{name}", "n5", f"N5 compressed by {name}")
    # The size that the data claim must not decide about memory.
    if name == "blosc" and (len(data) < 16 or int.from_bytes(data[4:8], "little") != size):
        raise ValueError("its size differs")
    if name == "blosc" and int.from_bytes(data[12:16], "little") != len(data):
        raise ValueError("its compressed data are cut short, or too long")
    out = np.empty(size, np.uint8)
    (module.Blosc if name == "blosc" else module.Zstd)().decode(data, out=out)
    return out.tobytes()


_DECODERS: Mapping[str, Callable[[memoryview, int, Mapping[str, Any]], bytes | memoryview]] = {
    "raw": lambda data, _size, _options: data,
    "gzip": partial(_stream, lambda options: zlib.decompressobj(15 if options.get("useZlib") else 31)),
    "bzip2": partial(_stream, lambda _options: bz2.BZ2Decompressor()),
    "xz": partial(_stream, lambda _options: lzma.LZMADecompressor()),
    "lz4": _lz4,
    "blosc": partial(_numcodecs, "blosc"),
    "zstd": partial(_numcodecs, "zstd"),
}
