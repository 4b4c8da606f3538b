"""Files of records that begin with a table of offsets, as MosaicML's and LitData's do.

Layout, little-endian: uint32 N; uint32 offsets[N + 1], counted from the start of the file; the
records. A record has several parts: uint32 sizes of the parts whose size varies, then the parts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastrecord.interchange.infer import SAMPLE, renamed, type_of
from fastrecord.interchange.libraries import library
from fastrecord.interchange.source import ROWS, ROWS_BYTES, CountedSource, DamageError, Rows, SourceField, converted
from fastrecord.interchange.stored import open_file, size_of
from fastrecord.schema import FieldType, array

_Ints: TypeAlias = NDArray[np.int64]
# Values of at most so many bytes are gathered by indices, larger ones by copying each.
_SMALL = 64
FRAMED = b"LDFZ01\0\0"
_FRAME = np.dtype([("first", "<u4"), ("records", "<u4"), ("place", "<u8"), ("packed", "<u4"), ("size", "<u4")])
# Uncompressed bytes per byte of a compressed file that cannot be read in portions.
_GROWTH = 64


@dataclass(slots=True)
class Block:
    """Some records of a file, one after another.

    Attributes:
        memory: Their bytes.
        starts: Where each one begins in `memory`, int64 (N,).
        ends: Where each one ends, int64 (N,).
    """

    memory: memoryview
    starts: _Ints
    ends: _Ints

    def views(self) -> list[memoryview]:
        """Return the bytes of each one."""
        memory = self.memory
        return [memory[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def matrix(self, size: int) -> NDArray[np.uint8]:
        """Return values of one size, uint8 (N, size).

        Raises:
            ValueError: one has another size.
        """
        sizes = self.ends - self.starts
        if (sizes != size).any():
            raise ValueError(f"{sizes[sizes != size][0]} bytes instead of {size}")
        flat = np.frombuffer(self.memory, np.uint8)
        if size <= _SMALL:
            gathered: NDArray[np.uint8] = flat[self.starts[:, None] + np.arange(size)]
            return gathered
        found = np.empty((len(self.starts), size), np.uint8)
        for row, start in enumerate(self.starts.tolist()):
            found[row] = flat[start : start + size]
        return found


@dataclass(slots=True)
class ChunkFile:
    """A file of records.

    Attributes:
        path: Its path.
        count: The number of its records, as an index says.
        read: Takes path, count and the number of the first record that is wanted; yields blocks of
            about `ROWS_BYTES`. Raises `ValueError` if the rest cannot be read.
    """

    path: str
    count: int
    read: Callable[[str, int, int], Iterator[Block]]


def offset_blocks(path: str, count: int, start: int, *, codec: str = "", size: int = 0) -> Iterator[Block]:
    """Read a file as the module describes it.

    Args:
        path: Its path.
        count: The number of its records.
        start: Number of the first one that is wanted.
        codec: What compresses it: "zstd", "gzip", "bz2", "brotli", "snappy"; "" without compression.
        size: Its size in bytes without compression, as an index says.
    """
    if start >= count:
        return
    with open_file(path) as file:
        whole = size_of(file)
        stream = _stream(file, codec, size)
        offsets = _offsets(stream, count)
        _skip(stream, 4 * (count + 2), int(offsets[start]))
        yield from _cut(stream, offsets, range(start, count), int(offsets[-1]) if codec else whole)


def _cut(stream: Any, offsets: _Ints, records: range, end: int) -> Iterator[Block]:
    """Yield records in blocks, from a stream that is at the first one; nothing lies beyond `end`."""
    at = records.start
    while at < records.stop:
        limit = int(offsets[at]) + ROWS_BYTES
        stop = min(max(int(np.searchsorted(offsets, limit, "right")) - 1, at + 1), at + ROWS, records.stop)
        stop = min(stop, int(np.searchsorted(offsets, end, "right")) - 1)
        if stop <= at:
            raise ValueError("it lies beyond the end of the file")
        memory = _read(stream, int(offsets[stop] - offsets[at]))
        places = offsets[at : stop + 1] - offsets[at]
        yield Block(memoryview(memory), places[:-1], places[1:])
        at = stop


def framed_blocks(path: str, count: int, start: int) -> Iterator[Block]:
    """Read a file of LitData with frames of zstd: a head, offsets as if uncompressed, a table of frames.

    Layout: "LDFZ01", two zeros, uint16 version, uint16 flags, uint32 N, uint32 records per frame,
    uint32 number of frames; uint32 offsets[N + 1]; frames, each as uint32 first record, uint32
    records, uint64 place, uint32 compressed size, uint32 size.
    """
    pa = library("pyarrow", "parquet", "a file compressed with zstd")
    with open_file(path) as file:
        end = size_of(file)
        head = _read(file, 24)
        version, found, frames = head[8], int.from_bytes(head[12:16], "little"), int.from_bytes(head[20:24], "little")
        if not head.startswith(FRAMED) or version != 1 or found != count or 4 * count + 24 * frames > end:
            raise ValueError(f"its head is damaged, or it has {found} records instead of {count}")
        offsets = np.frombuffer(_read(file, 4 * (count + 1)), "<u4").astype(np.int64)
        table = np.frombuffer(_read(file, 24 * frames), _FRAME).tolist()
        if (np.diff(offsets) < 0).any():
            raise ValueError("its table of offsets is damaged")
        at = 0
        for first, records, place, packed, size in table:
            if first != at or at + records > count or size != offsets[at + records] - offsets[at] or packed > end:
                raise ValueError("its table of frames is damaged")
            at += records
            if at <= start:
                continue
            file.seek(place)
            stream = pa.CompressedInputStream(pa.BufferReader(_read(file, packed)), "zstd")
            begin = max(start, first)
            _skip(stream, int(offsets[first]), int(offsets[begin]))
            yield from _cut(stream, offsets, range(begin, at), int(offsets[at]))
        if at != count:
            raise ValueError("its table of frames is damaged")


def sample_blocks(path: str, count: int, start: int) -> Iterator[Block]:
    """Read a file in which each record is compressed with zstd on its own."""
    pa = library("pyarrow", "parquet", "a file compressed with zstd")
    for block in offset_blocks(path, count, start):
        parts: list[bytes] = []
        size, views = 0, block.views()
        for number, view in enumerate(views):
            try:
                parts.append(pa.CompressedInputStream(pa.BufferReader(view), "zstd").read())
            except OSError as err:
                if parts:
                    yield _joined(parts)
                raise ValueError(str(err)) from err
            size += len(parts[-1])
            if size >= ROWS_BYTES or number + 1 == len(views):
                yield _joined(parts)
                parts, size = [], 0


def _joined(parts: Sequence[bytes]) -> Block:
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    return Block(memoryview(b"".join(parts)), ends[:-1], ends[1:])


def _stream(file: Any, codec: str, size: int) -> Any:
    """Return something with `read(n)` for the bytes without compression."""
    if not codec:
        return file
    pa = library("pyarrow", "parquet", f"a file compressed with {codec}")
    if codec != "snappy":
        return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    data = file.read()
    if size > _GROWTH * len(data) + 1024:
        raise ValueError(f"{size} bytes cannot come of {len(data)} compressed ones")
    try:
        return io.BytesIO(pa.decompress(data, size, codec="snappy", asbytes=True))
    except OSError as err:
        raise ValueError(str(err)) from err


def _read(stream: Any, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        try:
            part = stream.read(min(size, ROWS_BYTES))
        except OSError as err:  # pyarrow raises it for damage, then without errno
            raise (err if err.errno else ValueError(str(err))) from err
        if not part:
            raise ValueError(f"the file ends {size} bytes before its end")
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _skip(stream: Any, at: int, to: int) -> None:
    if isinstance(stream, io.RawIOBase):
        stream.seek(to)
        return
    while at < to:
        at += len(_read(stream, min(to - at, ROWS_BYTES)))


def _offsets(stream: Any, count: int) -> _Ints:
    found = int.from_bytes(_read(stream, 4), "little")
    if found != count:
        raise ValueError(f"it says that it has {found} records, but the index says {count}")
    offsets = np.frombuffer(_read(stream, 4 * (count + 1)), "<u4").astype(np.int64)
    if offsets[0] < 4 * (count + 2) or (np.diff(offsets) < 0).any():
        raise ValueError("its table of offsets is damaged")
    return offsets


@dataclass(slots=True)
class Part:
    """A part of each record: a value of one field.

    Attributes:
        name: The field's name.
        origin: What it is, for people.
        values: Block of the parts -> one value each. Raises `ValueError` for a value that it cannot
            read, and may do so for many values because of one.
        type: The field's type; None: the first values decide.
        size: The size of each in bytes if the records do not say it.
        pictures: Whether they are arrays of any height and width.
    """

    name: str
    origin: str
    values: Callable[[Block], Any]
    type: FieldType | None = None
    size: int | None = None
    pictures: bool = False


class ChunkSource(CountedSource):
    """Records in files.

    Args:
        files: The files, in order.
        parts: The parts of each record.
        metadata: Entries for the metadata of a .frec file.
        own: Whether the parts have the names that a .frec file had.
        headless: Whether a record has one part and says no size.
    """

    def __init__(
        self,
        files: Sequence[ChunkFile],
        parts: Sequence[Part],
        metadata: Mapping[str, Any],
        *,
        own: bool = False,
        headless: bool = False,
    ) -> None:
        super().__init__([file.path for file in files], [file.count for file in files])
        self._files = {file.path: file for file in files}
        self._headless = headless
        self._parts = parts
        self.metadata = metadata
        self.classes = metadata.get("classes")
        self._find_types()
        fields = [SourceField(part.name, part.type or FieldType("bytes"), part.origin) for part in parts]
        self.fields = fields if own else renamed(fields)

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        for at, block in self.runs(start, self._blocks):
            yield from self._rows(block, at, names)

    def _blocks(self, path: str, skip: int) -> Iterator[tuple[int, Block | None]]:
        yield skip, None
        try:
            file = self._files[path]
            for block in file.read(path, file.count, skip):
                yield len(block.starts), block
        except ValueError as err:
            raise DamageError(str(err)) from err

    def _rows(self, block: Block, start: int, names: Sequence[str]) -> Iterator[Rows]:
        places, good = self._divide(block)
        bad = {start + row: "the sizes of its parts are not its own size" for row in np.flatnonzero(~good).tolist()}
        readers = {
            part.name: partial(_values, part, block.memory, *places[part.name])
            for name in names
            for part in self._parts
            if part.name == name
        }
        return converted(start, len(block.starts), readers, bad)

    def _divide(self, block: Block) -> tuple[dict[str, tuple[_Ints, _Ints]], NDArray[np.bool_]]:
        """Return where each part of each record lies, and which records are well divided."""
        if self._headless:
            return {self._parts[0].name: (block.starts, block.ends)}, np.ones(len(block.starts), np.bool_)
        varying = [part.name for part in self._parts if part.size is None]
        head = 4 * len(varying)
        good = block.ends - block.starts >= head
        begins = np.where(good, block.starts, 0)
        sizes: dict[str, Any] = {part.name: part.size for part in self._parts}
        if varying and good.any():
            heads = np.zeros((len(good), head), np.uint8)
            heads[good] = Block(block.memory, begins[good], begins[good] + head).matrix(head)
            sizes |= dict(zip(varying, heads.view("<u4").astype(np.int64).T, strict=True))
        places = {}
        at = begins + head
        for part in self._parts:
            end = at + sizes[part.name] if sizes[part.name] is not None else at
            places[part.name] = (at, end)
            at = end
        return places, good & (at == block.ends)

    def _find_types(self) -> None:
        """Give a type to parts whose first values decide."""
        names = [part.name for part in self._parts if part.type is None]
        if not names:
            return
        _, block = next(self.runs(0, self._blocks), (0, None))
        if block is None:
            return
        part_of = {part.name: part for part in self._parts}
        first = Block(block.memory, block.starts[:SAMPLE], block.ends[:SAMPLE])
        for name in names:  # each on its own: what one cannot hold says nothing of the others
            values = [value for rows in self._rows(first, 0, [name]) for value in rows.columns[name]]
            kind = type_of(values, name, self.paths[0]) if values else FieldType("json")
            if part_of[name].pictures and kind.shape is not None:
                kind = array(kind.dtype, (None, None, *kind.shape[2:]))
            part_of[name].type = kind


def _values(part: Part, memory: memoryview, starts: _Ints, ends: _Ints, first: int, end: int) -> Any:
    return part.values(Block(memory, starts[first:end], ends[first:end]))


def picture(data: memoryview) -> NDArray[np.uint8]:
    """Return a raw picture of Pillow, as both formats store it: width, height, length of mode, mode, pixels.

    Raises:
        ValueError: it is damaged, or its mode is not one of 8 bits per channel.
    """
    width, height, length = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
    mode = bytes(data[12 : 12 + min(length, 16)]).decode("ascii", "replace")
    channels = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "CMYK": 4}.get(mode)
    pixels = data[12 + length :]
    if channels is None or len(pixels) != width * height * channels:
        raise ValueError(f"not a picture of 8 bits per channel: mode {mode!r}, {width} x {height}, {len(data)} bytes")
    flat = np.frombuffer(pixels, np.uint8)
    return flat.reshape((height, width) if channels == 1 else (height, width, channels))


def items(data: memoryview, head: int = 0) -> list[memoryview]:
    """Return the items of a list: `head` bytes, uint32 count, sizes; the items.

    Raises:
        ValueError: the sizes are not the list's own size.
    """
    begin = head + 4 + 4 * int.from_bytes(data[head : head + 4], "little")
    if len(data) < begin:
        raise ValueError("the head of the list is damaged")
    ends = np.cumsum([begin, *np.frombuffer(data[head + 4 : begin], "<u4")], dtype=np.int64).tolist()
    if ends[-1] != len(data):
        raise ValueError("the sizes of the list's items are not its own size")
    return [data[start:end] for start, end in pairwise(ends)]


def text(data: memoryview) -> str:
    """Return UTF-8 as text."""
    return str(data, "utf-8")


def each(read: Callable[[memoryview], Any]) -> Callable[[Block], Any]:
    """Return how to read the values of a block, given how to read one."""
    return lambda block: [read(view) for view in block.views()]


def numbers(dtype: str) -> Callable[[Block], Any]:
    """Return how numbers are read."""
    kind = np.dtype(dtype)
    return lambda block: block.matrix(kind.itemsize).view(kind)[:, 0]
