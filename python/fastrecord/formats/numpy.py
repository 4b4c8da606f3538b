"""NumPy's .npy and .npz files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

Rows along the first axis are records; each array is a field. A folder of .npy files has a field for
each file, several files are shards. Arrays of Python objects are pickles, and are refused.

What is written: an array for each field whose values have one shape. For other fields, NAME has all
values after each other (bytes, UTF-8 or numbers), NAME.offsets (int64, one more than records) where
they begin, and NAME.shapes the shapes of arrays of several dimensions. What the fields are is in
`__fastrecord__.npy`, as JSON in uint8.
"""

from __future__ import annotations

import math
import os
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange import Card, Destination, Format, Found, Refusal, Setting, Source
from fastrecord.interchange.arrays import ArraySource, Column, Part, Shard, listed
from fastrecord.interchange.card import CARD
from fastrecord.interchange.files.contents import (
    NPY_MAGIC,
    flat_numbers,
    from_bytes,
    npy_header,
    npy_start,
    of_stored,
    stored_dtype,
    to_bytes,
)
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import EndError
from fastrecord.schema import FieldType, Schema

# An array in columns that is compressed has to be read whole.
_LARGEST = 256 << 20
_OFFSETS, _SHAPES = ".offsets", ".shapes"
_HEADER = 256


# Reading


class _Bytes:
    """The bytes of an array, from a file, or from a member of an archive, which goes back by beginning again."""

    def __init__(self, path: str, archive: zipfile.ZipFile | None = None, member: str = "") -> None:
        self.compressed = archive is not None
        if archive is not None:
            self._file: Any = archive.open(member)
            self.size = archive.getinfo(member).file_size
        else:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - open as long as the source
            self.size = os.fstat(self._file.fileno()).st_size

    def read(self, at: int, size: int) -> bytes:
        """Return bytes.

        Raises:
            EndError: the file ends before, or the archive is damaged.
        """
        if at + size > self.size:
            raise EndError(f"the file is cut short: it has {self.size:,} bytes: copy it again")
        try:
            self._file.seek(at)
            data: bytes = self._file.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as err:
            raise EndError(f"the archive is damaged: {err}: copy it again") from err
        if len(data) < size:
            raise EndError("the file is cut short: copy it again")
        return data

    def close(self) -> None:
        self._file.close()


class _Array:
    """An .npy file, whose rows are read by their numbers."""

    def __init__(self, data: _Bytes, where: str) -> None:
        self._data = data
        self.dtype, self.shape, self._columns_first, self._start = _header(data, where)
        self._row = math.prod(self.shape[1:]) * self.dtype.itemsize
        self._whole: Any = None

    def rows(self, start: int, end: int) -> Any:
        """Return rows start to end.

        Raises:
            EndError: the file is cut short or damaged.
        """
        shape = (end - start, *self.shape[1:])
        if not self._columns_first:
            data = self._data.read(self._start + start * self._row, (end - start) * self._row)
            return np.frombuffer(data, self.dtype).reshape(shape) if data else np.zeros(shape, self.dtype)
        if self._data.compressed:
            if self._whole is None:
                size = self.shape[0] * self._row
                if size > _LARGEST:
                    raise EndError(f"the array is stored in columns, and has {size:,} bytes: save it in C order")
                data = self._data.read(self._start, size)
                self._whole = np.frombuffer(data, self.dtype).reshape(self.shape, order="F")
            return np.ascontiguousarray(self._whole[start:end])
        # Columns: the numbers of these rows lie together for each place in a row.
        size = self.dtype.itemsize
        parts = [
            self._data.read(self._start + (place * self.shape[0] + start) * size, (end - start) * size)
            for place in range(math.prod(self.shape[1:]))
        ]
        block = np.frombuffer(b"".join(parts), self.dtype).reshape(*self.shape[:0:-1], end - start)
        return np.ascontiguousarray(block.T)


def _header(data: _Bytes, where: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Return dtype, shape, whether columns come first, and where the numbers begin."""
    try:
        start = npy_start(bytes(data.read(0, min(12, data.size))), data.size)
        dtype, shape, columns_first = npy_header(bytes(data.read(0, start)))
    except ValueError as err:
        raise Code.SOURCE.error(f"{where}: {err}: copy it again") from err
    if dtype.hasobject:
        raise Code.PICKLE.error(f"{where}: it holds Python objects, which are pickles and are not loaded: save numbers")
    return dtype, shape, columns_first, start


def _open(path: str) -> Shard:
    with open(path, "rb") as file:
        head = file.read(6)
    with ExitStack() as stack:
        if head == NPY_MAGIC or not head.startswith(b"PK"):
            data = stack.enter_context(closing(_Bytes(path)))
            return _shard(path, {_stem(path): _Array(data, path)}, stack)
        found: dict[str, _Bytes] = {}
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            for name in archive.namelist():
                if name.endswith(".npy"):
                    found[name] = stack.enter_context(closing(_Bytes(path, archive, name)))
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as err:
            raise Code.SOURCE.error(f"{path}: {err}: copy the file again") from err
        arrays = {name.removesuffix(".npy"): _Array(data, f"{path}: {name}") for name, data in found.items()}
        return _shard(path, arrays, stack)


def _open_folder(folder: str, names: Sequence[str]) -> Shard:
    with ExitStack() as stack:
        arrays = {}
        for name in names:
            path = os.path.join(folder, name)
            arrays[_stem(path)] = _Array(stack.enter_context(closing(_Bytes(path))), path)
        return _shard(folder, arrays, stack)


def _stem(path: str) -> str:
    return os.path.basename(path).removesuffix(".npy") or "data"


def _shard(path: str, arrays: dict[str, _Array], stack: ExitStack) -> Shard:
    kept = arrays.pop(CARD, None)
    card = None
    if kept is not None and kept.dtype == np.uint8 and len(kept.shape) == 1:
        try:
            card = Card.from_json(kept.rows(0, kept.shape[0]).tobytes())
        except EndError as err:
            raise Code.SOURCE.error(f"{path}: {CARD}: {err}") from err
    if card is not None:
        columns = {name: _own_column(path, name, kind, arrays) for name, kind in card.schema.items()}
        return Shard(path, columns, card.metadata, stack.pop_all().close, own=True)
    found = {
        part.name or name: _column(path, each, part)
        for name, each in arrays.items()
        if each.shape
        for part in Part.of(f"array {name}", each)
    }
    return Shard(path, found, {}, stack.pop_all().close)


def _column(path: str, each: _Array, part: Part) -> Column | FastRecordError:
    def pick(start: int, end: int) -> Any:
        rows = each.rows(start, end)
        return rows if part.name is None else np.ascontiguousarray(rows[part.name])

    def texts(start: int, end: int) -> list[str]:
        return [value.decode() if isinstance(value, bytes) else value for value in pick(start, end).tolist()]

    if part.dtype.kind in "SU" and len(part.shape) == 1:
        return Column(FieldType("string"), part.origin, part.shape[0], part.dtype.itemsize, texts)
    return Column.numbers(path, part.origin, part, pick)


def _own_column(path: str, name: str, kind: FieldType, arrays: Mapping[str, _Array]) -> Column:
    """Return a field that `NumpyDestination` has written."""
    origin = f"array {name}"
    if name not in arrays or (kind.nbytes is None and name + _OFFSETS not in arrays):
        raise Code.SOURCE.error(f"{path}: the array {name!r} is missing: copy all files again")
    values = arrays[name]
    if kind.nbytes is not None:
        return Column(kind, origin, values.shape[0], kind.nbytes, values.rows)
    offsets, shapes = arrays[name + _OFFSETS], arrays.get(name + _SHAPES)
    count = offsets.shape[0] - 1
    make = from_bytes(kind)
    mean = values.shape[0] * values.dtype.itemsize // max(count, 1)

    def read(start: int, end: int) -> list[Any]:
        places = offsets.rows(start, end + 1).tolist()
        if any(first > second for first, second in pairwise(places)) or places[0] < 0:
            raise EndError(f"{name}{_OFFSETS} is damaged")
        block = values.rows(places[0], places[-1])
        parts = [block[first - places[0] : second - places[0]] for first, second in pairwise(places)]
        if shapes is not None:
            dims = shapes.rows(start, end).tolist()
            return [part.reshape(shape) for part, shape in zip(parts, dims, strict=True)]
        numbers = kind.dtype is not None or kind.item is not None
        return [of_stored(part, kind) if numbers else make(part.data) for part in parts]

    return Column(kind, origin, count, max(mean, 1), read)


# Writing


class _Growing:
    """An .npy file whose number of rows is known at its end."""

    def __init__(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - open as long as the destination
        self._dtype, self._shape = dtype, shape
        self.count = 0
        self._file.write(bytes(_HEADER))

    def append(self, rows: Any) -> None:
        rows = np.ascontiguousarray(rows, self._dtype)
        self._file.write(rows.reshape(-1).view(np.uint8).data)
        self.count += len(rows)

    def append_bytes(self, value: Any) -> None:
        self._file.write(value)
        self.count += len(value)

    def close(self) -> None:
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.count, *self._shape)}
        text = repr(header).encode("latin1").ljust(_HEADER - 11) + b"\n"
        self._file.seek(0)
        self._file.write(NPY_MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text)
        self._file.close()

    def abort(self) -> None:
        with suppress(OSError):  # a full disk does not take what is left of the buffer
            self._file.close()


class NumpyDestination(Destination):
    """A new .npz file, .npy file, or folder of .npy files."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        self._schema = schema = card.schema
        self._card = card.to_json().encode()
        if path.endswith(".npy") and (len(schema) > 1 or next(iter(schema.values())).nbytes is None):
            raise Code.CANNOT_HOLD.error(
                f"{os.path.basename(path)}: an .npy file holds one field of numbers or of arrays of one shape",
                way_out="write an .npz file, a folder, or --drop the other fields",
            )
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._path = path
        self._single = path.endswith(".npy")
        # The arrays of an archive follow each other, so they grow beside it first.
        self._folder = f"{path}.parts" if path.endswith(".npz") else path
        if not self._single:
            os.mkdir(self._folder)
        self._files: dict[str, _Growing] = {}
        for name, kind in self._schema.items():
            if kind.nbytes is not None:
                self._create(name, stored_dtype(kind), tuple(dim or 0 for dim in kind.shape or ()))
                continue
            numbers = kind.item is not None or kind.name == "array"
            self._create(name, stored_dtype(kind.item or kind) if numbers else np.dtype(np.uint8), ())
            self._create(name + _OFFSETS, np.dtype("<i8"), ())
            self._files[name + _OFFSETS].append([0])
            if len(kind.shape or ()) > 1:
                self._create(name + _SHAPES, np.dtype("<i8"), (len(kind.shape or ()),))

    def _create(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        path = self._path if self._single else os.path.join(self._folder, f"{name}.npy")
        self._files[name] = _Growing(path, dtype, shape)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:  # noqa: ARG002
        """Append records."""
        for name, kind in self._schema.items():
            file, values = self._files[name], columns[name]
            if kind.nbytes is not None:
                file.append(values)
                continue
            ends = []
            for value in values:
                if kind.item is not None or kind.name == "array":
                    file.append(flat_numbers(value, kind))
                else:
                    file.append_bytes(to_bytes(value, kind))
                ends.append(file.count)
            self._files[name + _OFFSETS].append(ends)
            if name + _SHAPES in self._files:
                self._files[name + _SHAPES].append([value.shape for value in values])

    def close(self) -> None:
        """Finish the files, and put them into the archive."""
        if not self._single:
            self._create(CARD, np.dtype(np.uint8), ())
            self._files[CARD].append_bytes(self._card)
        for file in self._files.values():
            file.close()
        if self._folder == self._path:
            return
        with zipfile.ZipFile(self._path, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name in self._files:
                archive.write(os.path.join(self._folder, f"{name}.npy"), f"{name}.npy")
        shutil.rmtree(self._folder)

    def abort(self) -> None:
        """Close the files, and remove the ones beside an archive."""
        for file in self._files.values():
            file.abort()
        if self._folder != self._path:
            shutil.rmtree(self._folder, ignore_errors=True)


class Numpy(Format):
    """Files of NumPy arrays."""

    name = "numpy"
    destination = NumpyDestination
    title = "NumPy"
    suffixes = (".npz", ".npy")
    settings: Mapping[str, Setting] = {
        "arrays": Setting("read these arrays, named with commas between them; by default all")
    }

    def recognise(self, found: Found) -> str | None:
        """Look for NumPy's magic string, and for .npy files in zip archives and folders."""
        if found.is_folder:
            arrays = [name for name in found.names if name.endswith(".npy")]
            whole = arrays and all(name.endswith((".npy", ".json", ".txt", ".md")) for name in found.names)
            return "it is a folder of .npy files" if whole else None
        if found.head.startswith(NPY_MAGIC):
            return "it begins as an .npy file"
        if found.head.startswith(b"PK") and found.suffix == ".npz":
            return "it is a zip archive called .npz"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files, or a folder of .npy files."""
        chosen = listed(settings, "arrays")
        if isinstance(source, str) and os.path.isdir(source) and Found.at(source).names:
            names = [name for name in sorted(os.listdir(source)) if name.endswith(".npy")]
            if names:
                return ArraySource([_open_folder(source, names)], chosen)
        return ArraySource(map(_open, expand(source, self.suffixes)), chosen)

    def refuse(self, schema: Schema) -> Refusal:
        """Refuse lists of anything but numbers, and names that cannot be file names."""
        refused = {}
        for name, kind in schema.items():
            if kind.item is not None and kind.item.shape != ():
                refused[name] = f"NumPy's files have no lists of {kind.item.name}"
            elif "/" in name or "\0" in name or name in (".", "..", CARD) or name.endswith((_OFFSETS, _SHAPES)):
                refused[name] = "it cannot be the name of a file"
        return refused
