"""idx, the files of MNIST and data sets like it.

Format: "the IDX file format" on the page of MNIST (http://yann.lecun.com/exdb/mnist/): two zeros, a
byte for the type, a byte for the number of dimensions, the dimensions as big-endian u32, and the
values, big-endian. Images and labels that belong together have names such as
train-images-idx3-ubyte and train-labels-idx1-ubyte, and are read together; .gz files as well.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Source
from fastrecord.interchange.arrays import ArraySource, Column, Shard, number_type
from fastrecord.interchange.files.blocks import Blocks
from fastrecord.interchange.paths import expand, several
from fastrecord.interchange.source import DamageError, EndError
from fastrecord.schema import FieldType

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(r".*[-._]idx[1-9](-\w+)?(\.gz)?")
_DIMENSIONS = re.compile(r"idx\d")
_LARGEST_ROW = 1 << 30
_WAY_OUT = "copy or download this file again"


class Idx(Format):
    """idx files."""

    name = "idx"
    title = "idx (MNIST)"

    def recognise(self, found: Found) -> str | None:
        """Return why something is an idx file: its header fits its size."""
        if found.is_folder:
            names = [name for name in found.names if _NAME.fullmatch(name)]
            fits = names and self.recognise(Found.at(os.path.join(found.path, names[0])))
            return f"the folder holds {len(names):,} idx files, such as {names[0]}" if fits else None
        packed = found.head[:2] == b"\x1f\x8b"
        try:
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(found.head, 64) if packed else found.head
        except zlib.error:
            return None
        shape = _shape(head)
        if shape is None:
            return None
        size = 4 + 4 * len(shape) + math.prod(shape) * np.dtype(_TYPES[head[2]]).itemsize
        # The size of a compressed file says nothing, and a file of this name may be cut short.
        if _NAME.fullmatch(os.path.basename(found.path)) or (not packed and os.path.getsize(found.path) == size):
            return f"it begins as an idx file of {' x '.join(map(str, shape))} values"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:  # noqa: ARG002
        """Open files; the images or labels that belong to one come with it."""
        paths = expand([_only_set(each) if os.path.isdir(each) else each for each in several(source)])
        pairs = list(dict.fromkeys(tuple(sorted([path, *_partners(path)])) for path in paths))
        return ArraySource(map(_shard, pairs))


def _shape(head: bytes | memoryview) -> tuple[int, ...] | None:
    """Return the dimensions in the header of an idx file; None if it is none."""
    count = head[3] if len(head) >= 4 else 0
    if not 1 <= count <= 8 or head[0] or head[1] or head[2] not in _TYPES or len(head) < 4 + 4 * count:
        return None
    return tuple(np.frombuffer(head, ">u4", count, 4).tolist())


def _set_name(path: str) -> str:
    """Return what the names of images and labels of one set have in common."""
    name = os.path.basename(path).removesuffix(".gz")
    return _DIMENSIONS.sub("idx", re.sub("images|labels", "*", name, count=1))


def _partners(path: str) -> list[str]:
    """Return the labels that belong to images, or the images that belong to labels."""
    folder, name = os.path.split(path)
    other = "labels" if "images" in name else "images" if "labels" in name else ""
    names = [
        each for each in os.listdir(folder or ".") if other and other in each and _set_name(each) == _set_name(name)
    ]
    # The same files may be there twice, compressed and not.
    names.sort(key=lambda each: (each.endswith(".gz") != name.endswith(".gz"), each))
    return [os.path.join(folder, each) for each in names[:1]]


def _only_set(folder: str) -> str:
    """Return a file of the only set of images and labels in a folder."""
    names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    sets = {_set_name(name): name for name in reversed(names)}
    if len(sets) != 1:
        some = ", ".join(list(sets.values())[::-1][:5]) or "none"
        raise Code.SOURCE.error(f"{folder}: the folder holds {len(sets)} sets of idx files ({some}): name one file")
    return os.path.join(folder, *sets.values())


class _Rows:
    """The rows of one idx file, read in order.

    Attributes:
        path: The file.
        shape: Its dimensions.
        dtype: The type of its values, with byte order.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            self._module = "gzip" if file.read(2) == b"\x1f\x8b" else ""
        self._blocks = Blocks(path, self._module)
        self._at = 0
        try:
            self._blocks.fill(64)
            head = self._blocks.ahead[:64]
            shape = _shape(head)
            if shape is None:
                raise Code.SOURCE.error(
                    f"{path}: its header is not the one of an idx file: {bytes(head[:8])!r}: {_WAY_OUT}"
                )
            self.shape, self.dtype = shape, np.dtype(_TYPES[head[2]])
            self._start = 4 + 4 * len(shape)
            self.row_bytes = math.prod(shape[1:]) * self.dtype.itemsize
            if not 0 < self.row_bytes <= _LARGEST_ROW or not shape[0]:
                raise Code.SOURCE.error(
                    f"{path}: record 0: {' x '.join(map(str, shape))} values are no records: {_WAY_OUT}"
                )
            size = self._start + shape[0] * self.row_bytes
            if not self._module and os.path.getsize(path) > size:
                raise Code.SOURCE.error(
                    f"{path}: it has {os.path.getsize(path):,} bytes, where its header says {size:,}: {_WAY_OUT}"
                )
        except DamageError as err:
            self.close()
            raise Code.SOURCE.error(f"{path}: record 0: {err}: {_WAY_OUT}") from err
        except BaseException:
            self.close()
            raise
        self._blocks.skip(self._start)

    def read(self, start: int, end: int) -> Any:
        """Return rows start to end, as an array with the machine's byte order."""
        if start < self._at:
            self.close()
            self._blocks, self._at = Blocks(self.path, self._module), 0
            self._blocks.skip(self._start)
        size = (end - start) * self.row_bytes
        try:
            self._blocks.skip((start - self._at) * self.row_bytes)
            self._at = start
            if not self._blocks.fill(size):
                raise EndError(f"the file ends within it: {_WAY_OUT}, then continue with `--resume`")
        except DamageError as err:
            raise EndError(f"{err}: {_WAY_OUT}, then continue with `--resume`") from err
        self._at = end
        rows = np.frombuffer(self._blocks.take(size), self.dtype).reshape(end - start, *self.shape[1:])
        return rows.astype(self.dtype.newbyteorder("="), copy=False)

    def close(self) -> None:
        self._blocks.close()


def _shard(paths: Sequence[str]) -> Shard:
    """Return images, and labels if there are any."""
    files: list[_Rows] = []
    try:
        files.extend(_Rows(path) for path in paths)
        if len({file.shape[0] for file in files}) > 1:
            first, other = files
            raise Code.MIXED_FIELDS.error(
                f"{first.path} has {first.shape[0]:,} records, and {other.path} has {other.shape[0]:,}: {_WAY_OUT}"
            )
    except BaseException:
        for file in files:
            file.close()
        raise
    columns = {}
    for file in files:
        base = os.path.basename(file.path)
        name = "image" if "images" in base else "label" if "labels" in base else "data"
        kind = number_type(file.dtype, file.shape[1:]) or FieldType("bytes")
        read = file.read
        if name == "label" and kind.shape == () and file.dtype.kind in "iu":
            # Labels are int64 everywhere.
            kind = FieldType("int64")

            def read(start: int, end: int, file: _Rows = file) -> Any:
                return file.read(start, end).astype(np.int64)

        columns[name] = Column(kind, f"values of {base}", file.shape[0], file.row_bytes, read)

    def close() -> None:
        for file in files:
            file.close()

    return Shard(files[0].path, columns, close=close)
