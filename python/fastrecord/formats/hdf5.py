"""HDF5 (https://docs.hdfgroup.org/hdf5/): data sets with one first length, by the package h5py.

Each data set is a field, named by its path: numbers and arrays by their first axis; variable-length
uint8 and opaque values are bytes, or images if they all are; other variable-length values are arrays
(None,); the members of a compound type are fields of their own. Attributes become metadata.

What is written: variable-length uint8 for images and bytes, variable-length UTF-8 for strings and
JSON, variable-length numbers for lists of numbers and arrays whose shape varies, with the shapes of
arrays of several dimensions in `__shapes__/NAME`; bfloat16 as uint16. The scalar `__fastrecord__`
says what the fields are.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange.arrays import ArraySource, Column, Part, Shard, described, listed, not_held, number_type
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.files.contents import flat_numbers, of_stored, stored_dtype
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import SAMPLE
from fastrecord.interchange.libraries import library
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import Source, value_bytes
from fastrecord.schema import FieldType, Schema, array
from fastrecord.schema.infer import common_type

_MAGIC = b"\x89HDF\r\n\x1a\n"
_SHAPES = "__shapes__"
# Chunks are read and decompressed whole.
_LARGEST_CHUNK = 256 << 20
_CACHE = 32 << 20
# Tables of the library that are written in the end, about.
_TABLES = 1 << 20
_WHAT = "HDF5"
# In a heap of values: its number, 6 bytes of counts, its size.
_OBJECT = struct.Struct("<H6xQ")


# Reading


class Hdf5Source(ArraySource):
    """Records of one or several HDF5 files."""

    what = "data set", "datasets"


class _File:
    """One file that is open for reading."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._h5py = library("h5py", "hdf5", _WHAT)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._data: Any = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b""
        # Address of a heap of values -> whether it never ends.
        self._heaps: dict[int, bool] = {}
        # Data set -> what was read last: first record, end, values.
        self._blocks: dict[str, tuple[int, int, Any]] = {}
        # Data set and number of a chunk -> why it cannot be read.
        self._broken: dict[tuple[str, int], str] = {}
        try:
            self.file = self._h5py.File(path, "r", rdcc_nbytes=_CACHE)
        except OSError as err:
            raise self._error(str(err), "copy it again") from err

    def _error(self, reason: str, way_out: str) -> FastRecordError:
        return Code.SOURCE.error(f"{self.path}: {reason}: {way_out}")

    def shard(self, group: str, chosen: Sequence[str]) -> Shard:
        """Return the data sets of a group as arrays."""
        try:
            root = self.file[group]
            found: dict[str, Any] = {}
            root.visititems(lambda name, each: found.setdefault(name, each) and None)
            if not all(isinstance(name, str) for name in found):
                raise ValueError("a name is not UTF-8")
            left_out = self._left_out(root, found)
            inner = {name: _attributes(each) for name, each in found.items() if not name.startswith("__")}
            metadata = described(_attributes(root), inner)
            card = self._card() if group == "/" else None
        except (OSError, RuntimeError, KeyError, ValueError) as err:
            raise self._error(
                f"{group} cannot be read: {err}", "copy it again, or name another one with --set group=PATH"
            ) from err
        datasets = {name: each for name, each in found.items() if isinstance(each, self._h5py.Dataset)}
        for name in chosen:
            if name not in datasets:
                raise self._error(f"it has no data set {name!r}", f"it has {', '.join(datasets) or 'nothing'}")
        columns: dict[str, Column | FastRecordError] = {}
        for name in chosen or datasets:
            if datasets[name].ndim and not name.startswith((CARD, _SHAPES)):
                try:
                    columns |= self._columns(name, datasets[name], card.schema.get(name) if card is not None else None)
                except (OSError, RuntimeError, KeyError, ValueError, TypeError) as err:
                    way = "copy the file again, or --set datasets=..."
                    raise self._error(f"{name!r} cannot be read: {err}", way) from err
        if not columns:
            raise self._error("it holds no data sets with records", "name a group with --set group=PATH")
        if card is None:
            return Shard(self.path, columns, metadata, self.file.close, left_out=left_out)
        columns = {name: columns[name] for name in dict.fromkeys([*card.schema, *columns]) if name in columns}
        return Shard(self.path, columns, card.metadata, self.file.close, own=True, left_out=left_out)

    def _left_out(self, root: Any, found: Mapping[str, Any]) -> list[str]:
        """Return what is not read: links to other places, and what is neither a group nor an array."""
        links: dict[str, Any] = {}
        root.visititems_links(lambda name, link: links.setdefault(name, link) and None)
        names = []
        for name, link in sorted(links.items()):
            if isinstance(link, self._h5py.ExternalLink):
                names.append(f"{name} (a link into another file, {link.filename})")
            elif isinstance(link, self._h5py.SoftLink):
                names.append(f"{name} (a link to {link.path})")
            elif name not in found:
                names.append(f"{name} (another name of what is read already)")
            elif not isinstance(found[name], self._h5py.Group) and not name.startswith((CARD, _SHAPES)):
                each = found[name]
                if not isinstance(each, self._h5py.Dataset):
                    names.append(f"{name} (a named type)")
                elif not each.ndim:
                    names.append(f"{name} (a single value, not one for each record)")
        return names

    def _card(self) -> Card | None:
        held = self.file.get(CARD)
        return Card.from_json(held[()]) if isinstance(held, self._h5py.Dataset) and held.ndim == 0 else None

    def _check(self, name: str, dataset: Any) -> None:
        """Refuse what reads other files, or needs too much memory or a filter that is not there."""
        if dataset.external:
            raise self._error(
                f"the data of {name!r} are in another file, {dataset.external[0][0]!r}", "copy them in with h5repack"
            )
        size = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
        if dataset.chunks and size > _LARGEST_CHUNK:
            raise self._error(
                f"{name!r} has chunks of {size >> 20:,} MiB", f"make smaller ones: h5repack -l {name}:CHUNK=..."
            )
        plist = dataset.id.get_create_plist()
        for at in range(plist.get_nfilters()):
            code, _, _, title = plist.get_filter(at)
            with suppress(ImportError):
                if not self._h5py.h5z.filter_avail(code):
                    import_module("hdf5plugin")  # which registers more filters
            if not self._h5py.h5z.filter_avail(code):
                raise self._error(
                    f"{name!r} is compressed by the filter {code} ({title.decode('utf-8', 'replace')}), which is not "
                    "installed",
                    "`pip install hdf5plugin`",
                )

    def _columns(self, name: str, dataset: Any, kept: FieldType | None) -> dict[str, Column | FastRecordError]:
        """Return the fields that a data set is."""
        self._check(name, dataset)
        return {
            name if part.name is None else f"{name}/{part.name}": self._column(name, dataset, part, kept)
            for part in Part.of(f"data set {name}", dataset)
        }

    def _column(self, path: str, dataset: Any, part: Part, kept: FieldType | None) -> Column | FastRecordError:
        dtype, shape = part.dtype, part.shape[1:]

        def read(start: int, end: int) -> Any:
            block = self._block(path, dataset, start, end)
            return block if part.name is None else block[part.name]

        shapes = self.file.get(f"{_SHAPES}/{path}") if kept is not None else None
        varying = self._h5py.check_string_dtype(dtype) is not None or self._h5py.check_vlen_dtype(dtype) is not None
        row = 16 + self._mean(dataset) if varying else math.prod(shape) * dtype.itemsize
        chunk = dataset.chunks[0] if dataset.chunks and not varying else 1
        kind, convert = self._conversion(dtype, shape, kept)
        if convert is None:
            return not_held(self.path, part.origin, dtype, shape, "datasets")
        if kind is None:
            kind = self._bytes_type(dataset, part.name)

        def values(start: int, end: int) -> Any:
            found = convert(read(start, end))
            if shapes is not None:
                found = [_shaped(value, own) for value, own in zip(found, shapes[start:end], strict=True)]
            return found

        return Column(kept or kind, part.origin, len(dataset), row, values, chunk)

    def _conversion(
        self, dtype: Any, shape: tuple[int, ...], kept: FieldType | None
    ) -> tuple[FieldType | None, Callable[[Any], Any] | None]:
        """Return the type of values, None for bytes and images, and what makes them; None if nothing can."""
        if self._h5py.check_string_dtype(dtype) is not None and shape == ():
            if kept is not None and kept.name == "json":
                return kept, lambda block: [json.loads(_text(each)) for each in block]
            return FieldType("string"), lambda block: [_text(each) for each in block]
        inner = self._h5py.check_vlen_dtype(dtype)
        if inner is not None and shape == () and inner.kind in "biufc":
            if inner == np.uint8 and (kept is None or kept.name in ("image", "bytes")):
                return kept, lambda block: [np.ascontiguousarray(each).data for each in block]
            if kept is not None:
                return kept, lambda block: [of_stored(each, kept) for each in block]
            return array(inner, (None,)), list
        if dtype.kind == "V" and not dtype.names and shape == ():
            return None, lambda block: [each.tobytes() for each in block]
        number = number_type(dtype, shape)
        return number, np.ascontiguousarray if number is not None else None

    def _bytes_type(self, dataset: Any, member: str | None) -> FieldType:
        count = min(len(dataset), SAMPLE)
        try:
            long = self._too_long(dataset, 0, count)
            good = [dataset[at] for at in range(count) if at not in long] if long else dataset[:count]
            values = [np.asarray(each if member is None else each[member]).tobytes() for each in good]
        except OSError:
            values = []
        return (common_type(values) if values else None) or FieldType("bytes")

    def _block(self, path: str, dataset: Any, start: int, end: int) -> Any:
        """Return records of a data set; members of a compound type come from one reading."""
        if path in self._blocks and self._blocks[path][:2] == (start, end):
            return self._blocks[path][2]
        chunk = dataset.chunks[0] if dataset.chunks else 1
        first, last = start // chunk, (end - 1) // chunk
        if first == last and (path, first) in self._broken:
            raise ValueError(self._broken[path, first])
        if self._too_long(dataset, start, end):
            raise ValueError("its length is larger than the file, or its heap is damaged")
        try:
            block = dataset[start:end]
        except (OSError, RuntimeError, ValueError) as err:
            if first == last and not dataset.dtype.hasobject:
                self._broken[path, first] = str(err)
            raise ValueError(str(err)) from err
        if dataset.dtype.names:
            self._blocks[path] = start, end, block
        return block

    def _too_long(self, dataset: Any, start: int, end: int) -> list[int]:
        """Return the records whose values are longer than the file, or in a heap that never ends.

        Only damage makes them. The library makes room for a value before it looks whether it is there,
        and never returns from such a heap.
        """
        inner, string = self._h5py.check_vlen_dtype(dataset.dtype), self._h5py.check_string_dtype(dataset.dtype)
        plist = dataset.id.get_create_plist()
        if dataset.ndim != 1 or plist.get_nfilters() or (inner is None and (string is None or string.length)):
            return []
        # Each is a length of 4 bytes, the address of a heap, and a number of 4 bytes.
        address, length = self.file.id.get_create_plist().get_sizes()
        size = 8 + address
        raw = self._references(dataset, start, end, size)
        counts = np.ndarray(len(raw) // size, "<u4", raw, 0, (size,)).astype(np.int64)
        bad = counts > len(self._data) // getattr(inner, "itemsize", 1)
        if (address, length) == (8, 8):
            heaps, heap_of = np.unique(np.ndarray(len(counts), "<u8", raw, 4, (size,)), return_inverse=True)
            bad |= np.array([self._endless(heap) for heap in heaps.tolist()], bool)[heap_of]
        return [start + at for at in np.flatnonzero(bad).tolist()]

    def _endless(self, at: int) -> bool:
        """Return whether a heap has free space of no size, which the library would walk for ever."""
        if at in self._heaps:
            return self._heaps[at]
        found, data = False, self._data
        if 0 < at < len(data) - 16 and data[at : at + 4] == b"GCOL":
            end = min(at + int.from_bytes(data[at + 8 : at + 16], "little"), len(data))
            place = at + 16
            while place + 16 <= end and not found:
                index, size = _OBJECT.unpack_from(data, place)
                found = index == 0 and size < 16
                place += size if index == 0 else 16 + -(-size // 8) * 8
        self._heaps[at] = found
        return found

    def _references(self, dataset: Any, start: int, end: int, size: int) -> bytes:
        if not dataset.chunks:
            offset = dataset.id.get_offset()
            return b"" if offset is None else bytes(self._data[offset + start * size : offset + end * size])
        chunk, parts = dataset.chunks[0], []
        for at in range(start // chunk * chunk, end, chunk):
            data = b""
            with suppress(OSError, RuntimeError, ValueError):  # a chunk that was never written
                data = dataset.id.read_direct_chunk((at,))[1]
            parts.append(data.ljust(chunk * size, b"\0")[: chunk * size])
        return b"".join(parts)[start % chunk * size :][: (end - start) * size]

    def _mean(self, dataset: Any) -> int:
        """Return the size of the first values on average."""
        count = min(len(dataset), 8)
        with suppress(OSError):
            if not self._too_long(dataset, 0, count):
                values = dataset[:count].reshape(-1)
                return sum(len(each) * getattr(each, "itemsize", 1) for each in values) // max(len(values), 1)
        return 1 << 16


def _open(path: str, group: str, chosen: Sequence[str]) -> Shard:
    file = _File(path)
    try:
        return file.shard(group, chosen)
    except BaseException:
        file.file.close()
        raise


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _shaped(value: Any, shape: Any) -> Any:
    return value.reshape(shape) if value.size == math.prod(shape.tolist()) else value


def _attributes(item: Any) -> Iterator[tuple[str, Any]]:
    for name in item.attrs:
        with suppress(OSError, TypeError, ValueError, RuntimeError):
            yield name, item.attrs[name]


# Writing


class Hdf5Destination(Destination):
    """A new HDF5 file."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        self._h5py = library("h5py", "hdf5", _WHAT)
        self._schema, self._card = card.schema, card.to_json()
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._path = path
        self._written = 0
        self._file = self._h5py.File(path, "x")
        self._file.create_dataset(CARD, data=self._card, dtype=self._h5py.string_dtype())
        self._datasets = {name: self._dataset(name, kind) for name, kind in self._schema.items()}
        self._shapes = {
            name: self._empty(f"{_SHAPES}/{name}", np.dtype("int64"), (len(kind.shape or ()),))
            for name, kind in self._schema.items()
            if kind.nbytes is None and len(kind.shape or ()) > 1
        }
        # A chunk of each data set may wait for its end, besides the library's own tables.
        every = [*self._datasets.values(), *self._shapes.values()]
        self._cached = sum(math.prod(each.chunks) * each.dtype.itemsize for each in every) + _TABLES

    def _dataset(self, name: str, kind: FieldType) -> Any:
        if kind.name in ("string", "json"):
            return self._empty(name, self._h5py.string_dtype())
        if kind.name in ("image", "bytes"):
            return self._empty(name, self._h5py.vlen_dtype(np.uint8))
        if kind.nbytes is None:
            return self._empty(name, self._h5py.vlen_dtype(stored_dtype(kind.item or kind)))
        return self._empty(name, stored_dtype(kind), tuple(dim or 0 for dim in kind.shape or ()))

    def _empty(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Any:
        size = max(dtype.itemsize * math.prod(shape), 1)
        rows = min(max((1 << 20) // size, 1), 1024 if dtype.hasobject else 1 << 16)
        return self._file.create_dataset(
            name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(rows, *(max(dim, 1) for dim in shape))
        )

    def _need(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Raise an error if the disk is about to be full: the library crashes when it meets that itself."""
        nbytes = sum(
            getattr(values, "nbytes", 0) or sum(value_bytes(value) for value in values) for values in columns.values()
        )
        room = os.statvfs(os.path.dirname(self._path))
        if room.f_bavail * room.f_frsize < nbytes + self._cached:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append records."""
        self._need(columns)
        count = len(next(iter(columns.values())))
        end = self._written + count
        for name, dataset in self._datasets.items():
            kind, values = self._schema[name], columns[name]
            dataset.resize(end, 0)
            if name in self._shapes:
                self._shapes[name].resize(end, 0)
                self._shapes[name][self._written : end] = [value.shape for value in values]
            try:
                self._put(dataset, kind, values, end - count, count)
            except ValueError as err:
                number, value = next(
                    (start + at, each)
                    for at, each in enumerate(values)
                    if "\0" in (each if kind.name == "string" else "\0")
                )
                raise Code.CANNOT_HOLD.error(
                    f"record {number:,}, field {name!r}: HDF5 cannot hold {str(value)[:40]!r} ({err})",
                    way_out=f"--drop {name}",
                ) from err
        self._written = end

    def _put(self, dataset: Any, kind: FieldType, values: Sequence[Any], start: int, count: int) -> None:
        if kind.nbytes is not None:
            dataset[start : start + count] = np.asarray(values, stored_dtype(kind))
        elif kind.name == "json":
            dataset[start : start + count] = [json.dumps(value, allow_nan=False) for value in values]
        elif kind.name == "string":
            dataset[start : start + count] = values
        else:
            # An assignment would stack values of the same length, and copy all of them twice.
            block = np.empty(count, dataset.dtype)
            numbers = kind.name not in ("image", "bytes")
            for at, value in enumerate(values):
                block[at] = flat_numbers(value, kind) if numbers else np.frombuffer(value, np.uint8)
            space = dataset.id.get_space()
            space.select_hyperslab((start,), (count,))
            dataset.id.write(self._h5py.h5s.create_simple((count,)), space, block)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def abort(self) -> None:
        """Close the file."""
        self._file.close()


class Hdf5(Format):
    """HDF5 files."""

    name = "hdf5"
    destination = Hdf5Destination
    title = _WHAT
    suffixes = (".h5", ".hdf5", ".he5", ".hdf")
    settings: Mapping[str, Setting] = {
        "group": Setting("read the data sets of this group, such as /train; by default of the whole file"),
        "datasets": Setting("read these data sets, named with commas between them; by default all"),
    }

    def recognise(self, found: Found) -> str | None:
        """Look for HDF5's signature, at the places where it may be."""
        if found.is_folder:
            return None
        ends = any(found.head[at : at + 8] == _MAGIC for at in (0, 512, 1024, 2048))
        return "it begins with HDF5's signature" if ends else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files."""
        group, chosen = settings.get("group", "/"), listed(settings, "datasets")
        return Hdf5Source(_open(path, group, chosen) for path in expand(source, self.suffixes))

    def refuse(self, schema: Schema) -> Refusal:
        """Refuse lists of anything but numbers, and names that are no paths."""
        refused = {}
        for name, kind in schema.items():
            parts = name.split("/")
            if kind.item is not None and kind.item.shape != ():
                refused[name] = f"HDF5 has no lists of {kind.item.name}"
            elif 0 in (kind.shape or ()):
                refused[name] = "HDF5 has no arrays without numbers that grow"
            elif "" in parts or "." in parts or name in (CARD, _SHAPES) or parts[0] == _SHAPES or "\0" in name:
                refused[name] = "it is not a path in HDF5"
            elif any(other.startswith(f"{name}/") for other in schema):
                refused[name] = "it is also a group of other fields"
        return refused
