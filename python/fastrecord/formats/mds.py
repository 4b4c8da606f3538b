"""MosaicML's MDS: folders with index.json and shard.*.mds, as `streaming.MDSWriter` writes them.

The format: https://docs.mosaicml.com/projects/streaming/ (dataset format, encodings). The parser and
the writer are ours: the package `mosaicml-streaming` opens a file for each record, keeps whole
shards in memory, and needs an old numpy. Pickles are read as plain data, and never run.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.files.chunks import (
    Block,
    ChunkFile,
    ChunkSource,
    Part,
    each,
    items,
    numbers,
    offset_blocks,
    picture,
    text,
)
from fastrecord.interchange.files.contents import to_bytes
from fastrecord.interchange.files.unpickle import pickled
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.paths import expand, several
from fastrecord.interchange.source import Source
from fastrecord.interchange.stored import inside, is_folder, names_in, open_file
from fastrecord.schema import FieldType, Schema, array, list_
from fastrecord.store.address import Url

_INDEX = "index.json"
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}
_SCALARS = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
# The dtypes of arrays that say their dtype themselves.
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SHARD_BYTES = 64 << 20
_LARGEST = (1 << 32) - 1


def _open(folders: Sequence[str]) -> Source:
    files: list[ChunkFile] = []
    columns: list[tuple[str, str, int | None]] | None = None
    card = None
    for folder in folders:
        path = inside(folder, _INDEX)
        try:
            with open_file(path) as file:
                index = json.loads(file.read())
            shards = index["shards"]
            # A web server does not list its files.
            names = names_in(folder) if not Url(folder).is_web else None
            card = card or Card.from_json(json.dumps(index.get(CARD)))
            for shard in shards:
                own = list(
                    zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True)
                )  # fmt: skip
                if shard["format"] != "mds" or shard["version"] != 2:
                    raise ValueError(f"version {shard['version']} of the format {shard['format']}")
                if columns is not None and own != columns:
                    raise Code.MIXED_FIELDS.error(
                        f"{folder}/{shard['raw_data']['basename']}: its columns are {own}, but {columns} in the shards "
                        "before it: import shards with other columns on their own"
                    )
                columns = own
                files.append(_file(folder, shard, names))
        except (KeyError, TypeError, ValueError) as err:
            raise Code.SOURCE.error(
                f"{path}: not an index of MDS shards: {type(err).__name__}: {err}: name another folder"
            ) from err
    if columns is None:
        raise Code.SOURCE.error(f"{folders[0]}/{_INDEX}: it names no shards: name another folder")
    try:
        parts = [_part(name, encoding, size) for name, encoding, size in columns]
    except (ValueError, TypeError, AttributeError) as err:
        raise Code.SOURCE.error(f"{folders[0]}/{_INDEX}: a column that cannot be read: {err}: write it again") from err
    if card is None:
        return ChunkSource(files, parts, {})
    parts = [_exported(part, card.schema[part.name]) if part.name in card.schema else part for part in parts]
    return ChunkSource(files, parts, card.metadata, own=True)


def _file(folder: str, shard: Mapping[str, Any], names: Container[str] | None) -> ChunkFile:
    raw, packed = shard["raw_data"], shard["zip_data"]
    codec = ""
    name, size, count = raw["basename"], raw["bytes"], shard["samples"]
    if not isinstance(count, int) or not isinstance(size, int) or count < 0:
        raise ValueError(f"a shard of {count!r} records and {size!r} bytes")
    if packed is not None and (names is None or name not in names):
        kind = str(shard["compression"]).partition(":")[0]
        name, codec = packed["basename"], _CODECS.get(kind, "")
        if not codec:
            raise ValueError(f"{name}: unknown compression {kind!r}: write the shards without compression")
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"the shard {name!r} is not in this folder")
    path = inside(folder, name)
    if names is not None and name not in names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return ChunkFile(path, count, partial(offset_blocks, codec=codec, size=size))


def _part(name: str, encoding: str, size: int | None) -> Part:
    """Return how a column is read. A column of an encoding that is not known has bytes."""
    kind, _, more = encoding.partition(":")
    origin = f"column of {encoding}"
    if kind in _SCALARS or kind == "int":
        dtype = "int64" if kind == "int" else kind
        return Part(name, origin, numbers(dtype), FieldType(dtype), np.dtype(dtype).itemsize)
    if kind == "ndarray":
        return _array(name, origin, more)
    found: dict[str, tuple[Callable[[memoryview], Any], FieldType | None]] = {
        "str": (text, FieldType("string")),
        "str_decimal": (text, FieldType("string")),
        "str_int": (lambda data: int(text(data)), FieldType("int64")),
        "str_float": (lambda data: float(text(data)), FieldType("float64")),
        "json": (lambda data: json.loads(text(data)), FieldType("json")),
        "pil": (picture, None),
        "pkl": (pickled, None),
        "list[jpeg]": (partial(items, head=4), list_(FieldType("image"))),
        "list[png]": (partial(items, head=4), list_(FieldType("image"))),
    }
    if kind in found:
        read, field = found[kind]
        return Part(name, origin, each(read), field, size or None, pictures=read is picture)
    images = kind in ("jpeg", "png", "jpeg_array", "jpegarray")
    return Part(name, origin, Block.views, FieldType("image") if images else None, size or None)


def _array(name: str, origin: str, more: str) -> Part:
    dtype, _, dims = more.partition(":")
    if dtype and dtype not in _DTYPES.values():
        raise ValueError(f"arrays of {dtype!r}")
    if not dims:
        return Part(name, origin, each(lambda data: _any_array(data, dtype)))
    shape = tuple(int(dim) for dim in dims.split(","))
    if not dtype or min(shape) < 1:
        return Part(name, origin, each(lambda data: _shaped(data, dtype, shape)))
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=object))
    return Part(
        name, origin, lambda block: block.matrix(size).view(kind).reshape(-1, *shape), array(dtype, shape), size
    )


def _any_array(data: memoryview, dtype: str) -> Any:
    """Return an array that says its shape, and its dtype if that is ""."""
    if not dtype:
        dtype, data = _dtype(data)
    head = data[0] if len(data) else 0
    ndim, width = head >> 2, 1 << (head & 3)
    if not ndim or len(data) < 1 + ndim * width:
        raise ValueError("the head of the array is damaged")
    shape = np.frombuffer(data[1 : 1 + ndim * width], f"<u{width}").tolist()
    return _shaped(data[1 + ndim * width :], dtype, shape)


def _shaped(data: memoryview, dtype: str, shape: Sequence[int]) -> Any:
    if not dtype:
        dtype, data = _dtype(data)
    if len(data) != np.dtype(dtype).itemsize * int(np.prod(shape, dtype=object)):
        raise ValueError(f"an array of {len(data)} bytes, though its shape is {tuple(shape)}")
    return np.frombuffer(data, dtype).reshape(shape)


def _dtype(data: memoryview) -> tuple[str, memoryview]:
    number = data[0] if len(data) else 0
    if number not in _DTYPES:
        raise ValueError(f"an array of the unknown dtype {number}")
    return _DTYPES[number], data[1:]


def _exported(part: Part, written: FieldType) -> Part:
    """Return how to read a column that an export wrote for a field of type `written`."""
    values = part.values
    if written.dtype == "bool":
        part.values = lambda block: values(block) != 0
    if written.name == "array" and written.dtype == "bool" and None in (written.shape or ()):
        part.values = lambda block: [value != 0 for value in values(block)]
    if written.item is not None and written.item.name == "array":
        part.values = lambda block: [list(value) for value in values(block)]
    part.type = written
    return part


def _encoding(kind: FieldType) -> str | None:
    """Return the encoding of a field's values; None if there is none.

    Whatever the encoding of images is called, readers decode any kind of image.
    """
    simple = {"image": "jpeg", "bytes": "bytes", "string": "str", "json": "json", "int64": "int", "bool": "uint8"}
    if kind.name in simple:
        return simple[kind.name]
    if kind.item is not None:
        inner = _encoding(kind.item)
        if kind.item.name == "array" and None not in (kind.item.shape or (None,)):
            return f"ndarray:{kind.item.dtype}" if kind.item.dtype in _SCALARS else None
        return "json" if inner in (*_SCALARS, "int", "str") else None
    dtype = "uint8" if kind.dtype == "bool" else kind.dtype
    if dtype not in _SCALARS or kind.shape is None:
        return None
    if not kind.shape:
        return dtype
    if None in kind.shape:
        return f"ndarray:{dtype}"
    return None if 0 in kind.shape else f"ndarray:{dtype}:{','.join(str(dim) for dim in kind.shape)}"


class _Destination(Destination):
    """Writes shards. One shard is in memory until it is complete, because its head has all offsets."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:
        shard_size, schema = int(settings.get("shard_size", _SHARD_BYTES)), card.schema
        if not 0 < shard_size <= _LARGEST:
            raise ValueError(f"shard_size={shard_size}: shards of MDS have 1 to {_LARGEST} bytes")
        os.mkdir(path)
        self._path = path
        self._schema = schema
        self._card = card
        self._limit = shard_size
        encodings = {name: _encoding(kind) or "" for name, kind in schema.items()}
        parts = [_part(name, encoding, None) for name, encoding in encodings.items()]
        self._sizes = {part.name: part.size for part in parts}
        self._config = {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": shard_size,
            "column_names": list(encodings),
            "column_encodings": list(encodings.values()),
            "column_sizes": list(self._sizes.values()),
        }
        self._head = json.dumps(self._config, sort_keys=True).encode()
        self._shards: list[dict[str, Any]] = []
        self._begin()

    def _begin(self) -> None:
        self._records: list[bytes] = []
        self._bytes = 8 + len(self._head)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """See `Destination.write`."""
        values, sizes = [], []
        for name, kind in self._schema.items():
            values.append(_encoded(columns[name], kind))
            if self._sizes[name] is None:
                sizes.append([len(value) for value in values[-1]])
        # What does not fit is cut here and found by the sum below.
        heads = np.array(sizes, np.int64).T.astype("<u4")
        for row, record in enumerate(zip(*values, strict=True)):
            data = b"".join((heads[row].tobytes() if len(sizes) else b"", *record))
            if len(data) + 12 + len(self._head) > _LARGEST:
                raise Code.CANNOT_HOLD.error(f"record {start + row}: {len(data)} bytes; MDS holds less than 4 GiB")
            if self._records and self._bytes + len(data) + 4 > self._limit:
                self._flush()
            self._records.append(data)
            self._bytes += len(data) + 4

    def close(self) -> None:
        """See `Destination.close`."""
        if self._records or not self._shards:
            self._flush()
        index = {"version": 2, "shards": self._shards, CARD: json.loads(self._card.to_json())}
        with open(os.path.join(self._path, _INDEX), "x", encoding="utf-8") as file:
            json.dump(index, file, sort_keys=True)

    def abort(self) -> None:
        """See `Destination.abort`."""
        self._records.clear()

    def _flush(self) -> None:
        name = f"shard.{len(self._shards):05d}.mds"
        first = 4 + 4 * (len(self._records) + 1) + len(self._head)
        offsets = np.cumsum([first, *(len(record) for record in self._records)], dtype=np.int64)
        with open(os.path.join(self._path, name), "xb") as file:
            file.write(len(self._records).to_bytes(4, "little") + offsets.astype("<u4").tobytes() + self._head)
            file.writelines(self._records)
        raw = {"basename": name, "bytes": int(offsets[-1]), "hashes": {}}
        self._shards.append({**self._config, "samples": len(self._records), "raw_data": raw, "zip_data": None})
        self._begin()


def _encoded(values: Sequence[Any], kind: FieldType) -> list[Any]:
    """Return the bytes of values of a field."""
    if kind.name in ("image", "bytes", "string", "json"):
        return [to_bytes(value, kind) for value in values]
    if kind.item is not None and kind.item.name == "array":
        return [_stacked(value, kind.item) for value in values]
    if kind.name == "list":
        return [json.dumps(value, ensure_ascii=False).encode() for value in values]
    if kind.shape is not None and None in kind.shape:
        return [_with_shape(np.ascontiguousarray(value)) for value in values]
    rows = np.ascontiguousarray(values, kind.dtype)
    return [row.tobytes() for row in rows]


def _stacked(items: Sequence[Any], kind: FieldType) -> bytes:
    return _with_shape(np.array(items, kind.dtype).reshape(len(items), *(kind.shape or ())))


def _with_shape(value: NDArray[Any]) -> bytes:
    """Return an array with its shape before it; the sizes in the smallest integers that hold them."""
    code = next(code for code in range(4) if max(value.shape) < 1 << (8 << code))
    return bytes([value.ndim << 2 | code]) + np.array(value.shape, f"<u{1 << code}").tobytes() + value.tobytes()


class MdsFormat(Format):
    """See the module."""

    name = "mds"
    destination = _Destination
    title = "MosaicML MDS"
    shards = False
    stored = True
    settings: Mapping[str, Setting] = {"shard_size": Setting("size of a shard of an export in bytes: 64 MiB")}

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        if _INDEX in found.names and any(name.startswith("shard.") and ".mds" in name for name in found.names):
            return f"the folder holds {_INDEX} and shard.*.mds"
        if os.path.basename(found.path) == _INDEX and b'"mds"' in found.head and b'"shards"' in found.head:
            return "it is the index of MDS shards"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        del settings
        paths = [each for path in several(source) for each in ([path] if is_folder(path) else expand(path))]
        return _open([path if is_folder(path) else os.path.dirname(path) or "." for path in paths])

    def refuse(self, schema: Schema) -> Refusal:
        """See `Format.refuse`."""
        return {name: f"MDS has no {kind}" for name, kind in schema.items() if _encoding(kind) is None}
