"""LMDB: a file of keys and values (https://www.symas.com/mdb), in the layouts that people use.

A file is read by `interchange.files.lmdb_pages` and written by the package lmdb. The layouts of values:

- image, bytes: the value itself.
- tuple: a pickle of (image, label), as the converter of Efficient-PyTorch writes it, with pickles of
  all keys in `__keys__` and of their number in `__len__`.
- pyobject: a pickle of something else: a dict has a field for each key, a tuple or list for each
  position.
- In place of a pickle, tuple and pyobject may be what `pyarrow.serialize` wrote until pyarrow 11:
  four counts (int32), an Arrow stream of one record with a union of all types, and tensors. Older
  converters of Efficient-PyTorch wrote it, and pytorch-load-faster, which frames it by lz4.
- datum: Caffe's `Datum` (caffe.proto).
- fastrecord: ours, for all fields. The value of a record is, little-endian and without gaps: the
  fields of fixed size in the order of the schema, then for each other field the length of its
  payload (uint32), then these payloads. A payload is the text in UTF-8, the JSON, or the bytes; of
  an array its dimensions (uint64 each) and its numbers; of a list the number of items (uint32),
  the payload's length of each item (uint32), and the payloads. The schema is in `__fastrecord__`,
  the keys are the numbers of the records with ten digits.
"""

from __future__ import annotations

import math
import os
import pickle
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.files.chunks import items
from fastrecord.interchange.files.contents import flat_numbers, from_bytes, of_stored, stored_dtype, to_bytes
from fastrecord.interchange.files.lmdb_pages import MAGIC, MAGIC_AT, Entry, Pages, PagesError, Span, Tree
from fastrecord.interchange.files.unpickle import pickled
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import first_few, infer_fields, most_images
from fastrecord.interchange.libraries import library
from fastrecord.interchange.paths import expand, several
from fastrecord.interchange.source import (
    ROWS,
    ROWS_BYTES,
    Bad,
    CountedSource,
    Rows,
    Source,
    SourceField,
    converted,
    gather,
)
from fastrecord.schema import FieldType, Schema

KEY = "__key__"
_PAYLOADS = ("image", "bytes", "string", "json")
_KEYS, _LENGTH = b"__keys__", b"__len__"
_SPECIAL = (CARD.encode(), _KEYS, _LENGTH)
_DATA = "data.mdb"
_LZ4 = b"\x04\x22\x4d\x18"
_LARGEST = 1 << 30
_LAYOUTS = ("auto", "image", "tuple", "datum", "pyobject", "bytes", "fastrecord")
_LONGEST_KEY = 511
_SAMPLE_BYTES = 64 << 20
_FIRST_ROOM = 64 << 20
_LABELS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_ORIGINS = {
    "image": "values, which are images",
    "bytes": "values",
    "tuple": "pickled tuples (image, label) in the values",
    "pyobject": "pickled objects in the values",
    "datum": "Caffe's Datum in the values",
    "fastrecord": "values that fastrecord has written",
}

# The numbers that pyarrow.serialize has for types: none, bool, int, text, floats; and others.
_SCALARS = (0, 1, 2, 3, 5, 6, 7, 8)
_BYTES, _LIST, _DICT, _TUPLE, _ARRAY = 4, 10, 11, 12, 15
_COUNTS = struct.Struct("<4i")
_ALIGNED = 64
_VIEWED = 1 << 12
_DEPTH = 32

_Values = dict[str, Any]
# Keys and values of records that follow each other.
_Run = tuple[list[bytes], list[memoryview]]


def _files(source: str | Sequence[str]) -> list[str]:
    """Return the files of one or several environments."""
    files = []
    for each in several(source):
        whole = os.path.join(each, _DATA)
        found = [whole] if os.path.isfile(whole) else expand(each, () if not os.path.isdir(each) else Lmdb.suffixes)
        files += [os.path.join(path, _DATA) if os.path.isdir(path) else path for path in found]
    return files


# Reading


class _Shard:
    """One file: its records in their own order.

    That is the order of `__keys__`, or of the numbers if the keys are 0, 1, 2, ..., else of the keys.
    """

    def __init__(self, path: str, database: str | None) -> None:
        self.pages = Pages(path, database)
        found = {key: self.pages.find(key) for key in _SPECIAL}
        self.special = {key: value for key, (_, value) in found.items() if isinstance(value, memoryview)}
        # Numbers of the special entries among all.
        self._skipped = sorted(found[key][0] for key in self.special)
        self.count = self.pages.count - len(self.special)
        self._keys: Callable[[int], bytes] | None = None
        # Where the values are, by the number of the record, if the order of the keys is another one.
        self._at, self._sizes = array("Q"), array("I")
        self._missing = PagesError("damaged: a key is missing")
        if self._is_numbered() and self._index(self._decimal):
            self._keys = b"%d".__mod__
        elif _KEYS in self.special:
            keys = self._listed()
            self._keys = _Keys(keys).__getitem__
            if any(first > second for first, second in pairwise(keys)):
                ranks = sorted(range(len(keys)), key=keys.__getitem__)
                self._index(partial(_in_list, keys, ranks))

    def runs(self, start: int) -> Iterator[_Run]:
        """Yield keys and values from a position on, and what is there before an error.

        Raises:
            PagesError: the file is damaged.
        """
        keys: list[bytes] = []
        values: list[memoryview] = []
        nbytes = 0
        try:
            for key, value in self._indexed(start) if self._at else self._in_order(start):
                keys.append(key)
                values.append(value if isinstance(value, memoryview) else self.pages.read(self._span(key, value)))
                nbytes += len(values[-1])
                if nbytes >= ROWS_BYTES or len(keys) == ROWS:
                    yield keys, values
                    keys, values, nbytes = [], [], 0
        except PagesError:
            yield keys[: len(values)], values
            raise
        yield keys, values

    def key(self, number: int) -> bytes:
        """Return the key of a record."""
        return self._keys(number) if self._keys is not None else next(self._in_order(number))[0]

    def _in_order(self, start: int, *, places: bool = False) -> Iterator[Entry]:
        for number in self._skipped:
            start += number <= start
        for entries in self.pages.entries(start, places=places):
            yield from [each for each in entries if each[0] not in self.special] if self.special else entries

    def _indexed(self, start: int) -> Iterator[Entry]:
        for number in range(start, self.count):
            if not self._at[number]:
                raise self._missing
            yield self.key(number), Span(self._at[number], self._sizes[number])

    def _span(self, key: bytes, value: Span | Tree | memoryview) -> Span:
        if isinstance(value, Span):
            return value
        raise PagesError(f"key {key!r} is a database of its own: name it with --set database=NAME")

    def _index(self, number: Callable[[int, bytes], int | None]) -> bool:
        """Note where values are, in 12 bytes for each; return False if a key is not numbered.

        Args:
            number: Returns the number of a record by the rank of its key and the key.
        """
        self._at, self._sizes = array("Q", bytes(8 * self.count)), array("I", bytes(4 * self.count))
        try:
            for rank, (key, value) in enumerate(self._in_order(0, places=True)):
                span, place = self._span(key, value), number(rank, key)
                if place is None:
                    self._at = array("Q")
                    return False
                self._at[place], self._sizes[place] = span.at, span.size
        except PagesError as err:
            self._missing = err  # which ends the source at the first record that is missing
        return True

    def _is_numbered(self) -> bool:
        last = self.count - 1
        return last >= 10 and all(self.pages.find(b"%d" % number)[1] is not None for number in (0, 9, 10, last))

    def _decimal(self, _rank: int, key: bytes) -> int | None:
        number = int(key) if key.isdigit() and len(key) < 20 else -1
        return number if 0 <= number < self.count and b"%d" % number == key else None

    def _listed(self) -> list[bytes]:
        """Return the keys in `__keys__`."""
        keys = [key.encode() if isinstance(key, str) else key for key in _loads(self.special[_KEYS])]
        if len(keys) != self.count or not all(isinstance(key, bytes) for key in keys):
            raise PagesError(f"{_KEYS.decode()} lists {len(keys):,} keys, and the file has {self.count:,}")
        return keys


def _in_list(keys: Sequence[bytes], ranks: Sequence[int], rank: int, key: bytes) -> int:
    """Return the place in `__keys__` of the key that has a rank among all of them."""
    if rank >= len(ranks) or keys[ranks[rank]] != key:
        raise PagesError(f"key {key!r} is not in {_KEYS.decode()}")
    return ranks[rank]


class _Keys:
    """Many keys in little memory."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ends = array("Q", accumulate(map(len, keys), initial=0))
        self._text = b"".join(keys)

    def __getitem__(self, number: int) -> bytes:
        return self._text[self._ends[number] : self._ends[number + 1]]


class LmdbSource(CountedSource):
    """Records of one or several LMDB files.

    Args:
        files: The files.
        layout: One of the layouts, or "auto".
        database: Name of a database in each file; None for the main one.
    """

    def __init__(self, files: Sequence[str], layout: str, database: str | None) -> None:
        self._shards: list[_Shard] = []
        try:
            for path in files:
                try:
                    self._shards.append(_Shard(path, database))
                except (PagesError, ValueError, TypeError) as err:
                    raise Code.SOURCE.error(f"{path}: {err}") from err
            super().__init__(files, [shard.count for shard in self._shards])
            self._describe(layout)
        except BaseException:
            self.close()
            raise

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records."""
        return self._layout.rows(self._runs(start), names)

    def place(self, number: int) -> str:
        """Return file, number and key of a record."""
        at, local = self.locate(number)
        with suppress(PagesError, OSError, IndexError, StopIteration):
            return f"{super().place(number)} (key {_key_text(self._shards[at].key(local))!r})"
        return super().place(number)

    def close(self) -> None:
        """Close the files."""
        for shard in self._shards:
            shard.pages.close()

    def _describe(self, layout: str) -> None:
        samples = first_few(self._few())
        card = Card.from_json(bytes(self._shards[0].special.get(CARD.encode(), b"")))
        if layout == "auto":
            kept = card.more.get("values") if card is not None else None
            layout = kept if kept in _LAYOUTS[1:] else _recognise([value for _, value in samples], self.paths[0])
        if layout == "fastrecord":
            if card is None:
                raise Code.SOURCE.error(f"{self.paths[0]}: it has no {CARD}: leave out --set values=fastrecord")
            self._layout: _Layout = _Own(card.schema)
        else:
            self._layout = _Layout(layout)
        if not samples and card is None:
            raise Code.SOURCE.error(f"{self.paths[0]}: it holds no records")
        self.fields = self._layout.fields(samples, self.paths[0])
        if card is not None:
            self.metadata = card.metadata
            names = card.more.get("names", {})
            if layout != "fastrecord" and names:
                # The card knows the types and names that the records had.
                self.fields = [
                    SourceField(name, card.schema[own], f"{_ORIGINS[layout]}; {CARD}", own)
                    for name, own in names.items()
                    if own in card.schema
                ]

    def _few(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield records until there is enough to see their layout."""
        nbytes = 0
        for _, keys, values in self._runs(0):
            for key, value in zip(keys, values, strict=True):
                yield key, value
                nbytes += len(value)
                if nbytes >= _SAMPLE_BYTES:
                    return

    def _runs(self, start: int) -> Iterator[tuple[int, list[bytes], list[memoryview]]]:
        """Yield the number of the first record, keys and values of each run."""
        number = start
        for at, first in self.shards(start):
            try:
                for keys, values in self._shards[at].runs(number - first):
                    if keys:
                        yield number, keys, values
                    number += len(keys)
            except PagesError as err:
                raise Code.SOURCE.error(f"{self.paths[at]}: record {number - first:,}: {err}") from err


class _Layout:
    """What the values of a file are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._split = _SPLIT[name]
        self._key_type = "string"

    def fields(self, samples: Sequence[tuple[bytes, memoryview]], path: str) -> list[SourceField]:
        """Return the fields of a file with these first records."""
        columns: dict[str, list[Any]] = {}
        error = None
        for number, (key, value) in enumerate(samples):
            try:
                record = {KEY: _key_text(key), **self._split(value)}
            except ValueError as err:
                place = f"{path}: record {number} (key {_key_text(key)!r})"
                error = error or Code.SOURCE_RECORD.error(f"{place}: {err}: is it --set values={self.name}?")
                continue
            for name, each in record.items():
                columns.setdefault(name, []).append(each)
        if error is not None and not columns:
            raise error
        keys = columns[KEY]
        if not all(isinstance(key, str) for key in keys):
            columns[KEY] = [key.encode() if isinstance(key, str) else key for key in keys]
            self._key_type = "bytes"
        for name, values in columns.items():
            if len(values) != len(keys):
                raise Code.MIXED_FIELDS.error(
                    f"{path}: {len(values)} of the first {len(keys)} records have a field {name!r}, the others do not"
                )
        origins = {name: "keys" if name == KEY else _ORIGINS[self.name] for name in columns}
        return infer_fields(columns, origins, path)

    def rows(self, runs: Iterator[tuple[int, list[bytes], list[memoryview]]], names: Sequence[str]) -> Iterator[Rows]:
        """Return runs of records with these fields."""
        for first, keys, values in runs:
            if self.name in ("image", "bytes"):  # no work for each of them
                texts, whole = partial(self._texts, keys), partial(_part, values)
                yield from converted(first, len(keys), {name: texts if name == KEY else whole for name in names})
            else:
                pairs = zip(keys, values, strict=True)
                yield from gather((self._record(key, value, names) for key, value in pairs), first, names)

    def _texts(self, keys: Sequence[bytes], first: int, end: int) -> Sequence[str | bytes]:
        return [self._text(key) for key in keys[first:end]]

    def _text(self, key: bytes) -> str | bytes:
        try:
            return key.decode() if self._key_type == "string" else key
        except UnicodeDecodeError:
            way = "leave the keys out by naming the other fields with --map"
            raise ValueError(f"its key {key!r} is not UTF-8: {way}") from None

    def _record(self, key: bytes, value: memoryview, names: Sequence[str]) -> list[Any] | Bad:
        try:
            record = self._split(value)
            if KEY in names:
                record[KEY] = self._text(key)
            return [record[name] for name in names]
        except KeyError as err:
            return Bad(f"it has no field {err}")
        except ValueError as err:
            return Bad(str(err))


class _Own(_Layout):
    """fastrecord's own layout, which holds all fields."""

    def __init__(self, schema: Schema) -> None:
        self.name = "fastrecord"
        self._schema = schema
        self._others = [name for name, kind in schema.items() if kind.nbytes is None]
        self._head = np.dtype([("fixed", _fixed_type(schema)), ("lengths", "<u4", (len(self._others),))])

    def fields(self, samples: Sequence[tuple[bytes, memoryview]], path: str) -> list[SourceField]:  # noqa: ARG002
        """Return the fields of the schema."""
        return [SourceField(name, kind, _ORIGINS[self.name]) for name, kind in self._schema.items()]

    def rows(self, runs: Iterator[tuple[int, list[bytes], list[memoryview]]], names: Sequence[str]) -> Iterator[Rows]:
        """Return runs of records with these fields."""
        size = self._head.itemsize
        for first, _, values in runs:
            heads = np.zeros(len(values), self._head)
            if size:
                joined = bytearray().join([value[:size] if len(value) >= size else bytes(size) for value in values])
                heads = np.frombuffer(joined, self._head)
            sizes = np.fromiter(map(len, values), np.int64, len(values))
            ends = heads["lengths"].cumsum(1, dtype=np.int64) + size
            wanted = heads["lengths"].sum(1, dtype=np.int64) + size
            bad = {
                first + at: f"its value has {sizes[at]:,} bytes instead of {wanted[at]:,}"
                for at in np.flatnonzero(sizes != wanted).tolist()
            }
            readers = {name: partial(self._column, name, values, heads, ends) for name in names}
            yield from converted(first, len(values), readers, bad)

    def _column(self, name: str, values: Sequence[memoryview], heads: Any, ends: Any, first: int, end: int) -> Any:
        """Return a field of records."""
        if name not in self._others:
            return np.ascontiguousarray(heads["fixed"][name][first:end])
        kind, at = self._schema[name], self._others.index(name)
        stops = ends[first:end, at].tolist()
        starts = (ends[first:end, at] - heads["lengths"][first:end, at]).tolist()
        parts = [value[a:b] for value, a, b in zip(values[first:end], starts, stops, strict=True)]
        return parts if kind.name in ("image", "bytes") else [_unpacked(part, kind) for part in parts]


def _part(values: Sequence[memoryview], first: int, end: int) -> Sequence[memoryview]:
    return values[first:end]


def _recognise(values: Sequence[memoryview], path: str) -> str:
    """Return the layout that values have."""
    if most_images(values):
        return "image"
    first = values[0] if values else memoryview(b"")
    pickled = len(first) > 2 and first[0] == 0x80 and 2 <= first[1] <= 5 and first[-1] == ord(".")
    if pickled or first[:4] == _LZ4 or _is_serialized(first):
        with suppress(ValueError):
            if list(_pyobject(first)) == ["image", "label"]:
                return "tuple"
        return "pyobject"
    with suppress(ValueError):
        if values:
            for value in values:
                _datum(value)
            return "datum"
    if b"\xff\xff\xff\xff" in bytes(first[:64]):
        raise Code.SOURCE.error(
            f"{path}: its values look like what an early pyarrow.serialize wrote: write them again with pickle, with "
            "the pyarrow that wrote them, or take them as they are with --set values=bytes"
        )
    return "bytes"


def _pyobject(value: memoryview) -> _Values:
    found = _loads(value)
    if isinstance(found, dict):
        return {key.decode() if isinstance(key, bytes) else str(key): _simple(each) for key, each in found.items()}
    if isinstance(found, (tuple, list)):
        items = [_simple(each) for each in found]
        if len(items) == 2 and isinstance(items[0], (bytes, memoryview)):
            return {"image": items[0], "label": items[1]}
        return {str(at): each for at, each in enumerate(items)}
    return {"value": _simple(found)}


def _loads(value: memoryview) -> Any:
    """Return a pickled or serialized object."""
    data = memoryview(_decompressed(value))
    return _deserialized(data) if _is_serialized(data) else pickled(data)


def _is_serialized(data: memoryview) -> bool:
    """Return whether pyarrow.serialize wrote it: four counts, and a message of Arrow."""
    return len(data) > 24 and data[16:20] == b"\xff" * 4 and max(_COUNTS.unpack_from(data)) < len(data)


def _deserialized(data: memoryview) -> Any:
    pa = library("pyarrow", "parquet", "LMDB with values of pyarrow.serialize")
    tensors, sparse, arrays, buffers = _COUNTS.unpack_from(data)
    if tensors or sparse or buffers:
        raise ValueError("its value holds tensors or buffers of pyarrow.serialize, which are not plain data")
    try:
        reader = pa.BufferReader(pa.py_buffer(data))
        reader.seek(_COUNTS.size)
        with pa.ipc.open_stream(reader) as stream:
            batches = list(stream)
            for batch in batches:
                batch.validate(full=True)
        found = []
        for _ in range(arrays):
            reader.seek(-(-reader.tell() // _ALIGNED) * _ALIGNED)
            found.append(pa.ipc.read_tensor(reader).to_numpy())
        if [batch.num_rows for batch in batches] != [1] or batches[0].num_columns != 1:
            raise ValueError("its value is not what pyarrow.serialize writes")
        return _Deserializer(found, len(data)).value(batches[0].column(0)[0])
    except (pa.ArrowException, OSError, IndexError, KeyError, OverflowError, AttributeError, TypeError) as err:
        raise ValueError(f"its value is not what pyarrow.serialize writes: {err}") from err


class _Deserializer:
    """Makes objects of the unions of pyarrow.serialize, whose parts are named by numbers for types."""

    def __init__(self, arrays: Sequence[Any], budget: int) -> None:
        self._arrays = arrays
        # Parts may be used many times.
        self._budget = budget

    def value(self, scalar: Any, depth: int = 0) -> Any:
        self._budget -= 1
        if depth > _DEPTH or self._budget < 0:
            raise ValueError("its value is nested too deeply, or repeats its parts")
        kinds = scalar.type
        code = int(kinds.field(list(kinds.type_codes).index(scalar.type_code)).name)
        inner = scalar.value
        if code in _SCALARS:
            return None if inner is None else inner.as_py()
        if code == _BYTES:
            raw = memoryview(inner.as_buffer())
            return raw if len(raw) >= _VIEWED else bytes(raw)
        if code == _ARRAY:
            return self._arrays[inner.as_py()]
        if code in (_LIST, _TUPLE):
            items = [self.value(each, depth + 1) for each in inner.values]
            return items if code == _LIST else tuple(items)
        if code == _DICT:
            keys, values = inner.values.field(0), inner.values.field(1)
            names = [self.value(key, depth + 1) for key in keys]
            if "_pytype_" in names or not all(isinstance(name, (str, int)) for name in names):
                raise ValueError("its value holds an object of a class, which is not plain data")
            return dict(zip(names, (self.value(each, depth + 1) for each in values), strict=True))
        raise ValueError(f"its value holds something else than plain data (type {code} of pyarrow.serialize)")


def _tuple(value: memoryview) -> _Values:
    found = _pyobject(value)
    if list(found) != ["image", "label"]:
        raise ValueError("its value is not a tuple (image, label): another layout is --set values=pyobject")
    return found


def _simple(value: Any) -> Any:
    """Return the value in a batch of one, which a DataLoader makes of each record."""
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], (bytes, memoryview, str)):
        return value[0]
    if isinstance(value, np.ndarray) and value.shape in ((), (1,)) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, bytearray):
        return bytes(value)
    return value.item() if isinstance(value, np.generic) else value


def _decompressed(value: memoryview) -> bytes | memoryview:
    if value[:4] != _LZ4:
        return value
    frame = library("lz4.frame", "lmdb", "LMDB with values framed by lz4").LZ4FrameDecompressor()
    try:
        # lz4 shrinks at most to 1/255.
        data: bytes = frame.decompress(value, max_length=min(_LARGEST, 255 * len(value) + 65536))
    except RuntimeError as err:
        raise ValueError(f"its lz4 frame is damaged: {err}") from err
    if not frame.eof:
        raise ValueError("its lz4 frame is cut short, or larger than 1 GiB")
    return data


def _datum(value: memoryview) -> _Values:
    """Return the parts of Caffe's Datum."""
    parts: dict[int, Any] = {1: 0, 2: 0, 3: 0, 5: 0, 7: 0}
    floats: list[memoryview] = []
    for number, wire, each in _protobuf(value):
        if wire != {4: 2, 6: wire if wire in (2, 5) else 2}.get(number, 0) or not 1 <= number <= 7:
            raise ValueError(f"its value is not a Datum: it has a field {number} of wire type {wire}")
        if number == 6:
            floats.append(each)
        else:
            parts[number] = each
    shape = (parts[1], parts[2], parts[3])
    # Labels are int32; negative ones are written with 64 bits.
    label = parts[5] - (1 << 64) if parts[5] >> 63 else parts[5]
    data = parts.get(4)
    if parts[7]:
        if data is None:
            raise ValueError("its Datum is encoded, and has no data")
        return {"image": data, "label": label}
    raw = np.frombuffer(data, np.uint8) if data is not None else np.frombuffer(b"".join(floats), "<f4")
    if math.prod(shape) != raw.size or not raw.size:
        raise ValueError(f"its value is not a Datum: {raw.size:,} numbers are not {shape}")
    return {"data": raw.reshape(shape), "label": label}


def _protobuf(value: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field of a message."""
    at = 0
    while at < len(value):
        tag, at = _varint(value, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            each, at = _varint(value, at)
            yield number, wire, each
            continue
        size = 4
        if wire == 2:
            size, at = _varint(value, at)
        if wire not in (2, 5) or size > len(value) - at:
            raise ValueError("its value is not a Datum, or is cut short")
        yield number, wire, value[at : at + size]
        at += size


def _varint(value: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(value[at : at + 10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("its value is not a Datum, or is cut short")


_SPLIT: dict[str, Callable[[memoryview], _Values]] = {
    "image": lambda value: {"image": value},
    "bytes": lambda value: {"value": value},
    "tuple": _tuple,
    "pyobject": _pyobject,
    "datum": _datum,
}


def _key_text(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


# Writing


class LmdbDestination(Destination):
    """A new LMDB file, or a folder with one."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:
        self._library = library("lmdb", "lmdb", "LMDB")
        layout = settings.get("values", "auto")
        self._layout = "fastrecord" if layout == "auto" else layout
        self._subdir = settings.get("subdir") == "yes"
        self._names = _names(card.schema, self._layout)
        self._card = replace(card, more={"values": self._layout, "names": self._names}).to_json().encode()
        self._packer = _Packer(card.schema) if self._layout == "fastrecord" else None
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._written = 0
        self._room = _FIRST_ROOM
        # Nobody else has the file yet, so it needs no locks and, before the end, no syncs.
        # As bytes: the package takes no name that the locale's encoding lacks.
        self._env = self._library.open(
            os.fsencode(path),
            map_size=self._room,
            subdir=self._subdir,
            lock=False,
            sync=False,
            metasync=False,
            meminit=False,
        )

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append records in one transaction."""
        keys, values = self._entries(start, columns)
        while True:
            try:
                self._put(start, keys, values)
            except self._library.MapFullError:
                # Nothing of the transaction is left; LMDB's maps grow between transactions only.
                self._room *= 2
                self._env.set_mapsize(self._room)
            else:
                break
        self._written += len(keys)

    def close(self) -> None:
        """Write the special entries, and sync."""
        special = {CARD.encode(): self._card}
        if self._layout == "tuple":
            special[_KEYS] = pickle.dumps([b"%d" % number for number in range(self._written)], 4)
            special[_LENGTH] = pickle.dumps(self._written, 4)
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in special.items():
                        transaction.put(key, value)
            except self._library.MapFullError:
                self._room *= 2
                self._env.set_mapsize(self._room)
            else:
                break
        self._env.sync(True)
        self._env.close()

    def abort(self) -> None:
        """Close the file."""
        self._env.close()

    def _entries(self, start: int, columns: Mapping[str, Sequence[Any]]) -> tuple[Sequence[bytes], Sequence[Any]]:
        count = len(next(iter(columns.values())))
        if self._packer is not None:
            return [b"%010d" % number for number in range(start, start + count)], self._packer.pack(columns, count)
        images = columns[self._names["image"]]
        if self._layout == "tuple":
            numbers = range(self._written, self._written + count)
            labels = np.asarray(columns[self._names["label"]])
            pairs = [([bytes(image)], labels[at : at + 1]) for at, image in enumerate(images)]
            return [b"%d" % number for number in numbers], [pickle.dumps(pair, 4) for pair in pairs]
        if KEY not in self._names:
            return [b"%010d" % number for number in range(start, start + count)], images
        return [key.encode() for key in columns[self._names[KEY]]], images

    def _put(self, start: int, keys: Sequence[bytes], values: Sequence[Any]) -> None:
        growing = self._layout == "fastrecord" or (KEY not in self._names and self._layout == "image")
        with self._env.begin(write=True) as transaction:
            for number, (key, value) in enumerate(zip(keys, values, strict=True), start):
                try:
                    done = transaction.put(key, value, append=growing, overwrite=False)
                except self._library.BadValsizeError:
                    raise Code.CANNOT_HOLD.error(
                        f"record {number:,}: LMDB's keys have 1 to {_LONGEST_KEY} bytes, not {len(key):,}: "
                        "leave out --set values, so that keys are numbers"
                    ) from None
                if not done or key in _SPECIAL:
                    raise Code.CANNOT_HOLD.error(
                        f"record {number:,}: its key {key!r} is taken: leave out --set values, so that keys are numbers"
                    )


def _names(schema: Schema, layout: str) -> dict[str, str]:
    """Return the fields that the parts of a layout are: key, image, label."""
    if layout == "fastrecord":
        return {}
    images = [name for name, kind in schema.items() if kind.name in ("image", "bytes")]
    texts = [name for name, kind in schema.items() if kind.name == "string"]
    labels = [
        name for name, kind in schema.items() if kind.dtype is not None and kind.dtype in _LABELS and not kind.shape
    ]
    wanted = {"image": images}
    if layout == "tuple":
        wanted["label"] = labels
    elif layout == "image":
        wanted |= {KEY: texts} if texts else {}
    else:
        raise Code.CANNOT_HOLD.error(f"--set values={layout}: LMDB is written as fastrecord, image or tuple")
    names = {part: found[0] for part, found in wanted.items() if found}
    rest = [name for name in schema if name not in names.values()]
    if rest or len(names) < len(wanted):
        has = "an image and a text as the key" if layout == "image" else "an image and a number"
        raise Code.CANNOT_HOLD.error(
            f"--set values={layout}: its records have {has}, and nothing else; here are "
            f"{', '.join(f'{name} ({kind})' for name, kind in schema.items())}",
            way_out=" ".join(f"--drop {name}" for name in rest) or "leave out --set values",
        )
    return names


class _Packer:
    """Makes values in fastrecord's own layout."""

    def __init__(self, schema: Schema) -> None:
        self._fixed = _fixed_type(schema)
        self._others = [(name, kind) for name, kind in schema.items() if kind.nbytes is None]

    def pack(self, columns: Mapping[str, Sequence[Any]], count: int) -> list[bytes]:
        """Return the values of records."""
        rows = np.empty(count, self._fixed)
        for name in self._fixed.names or ():
            rows[name] = np.asarray(columns[name])
        fixed, size = rows.tobytes(), self._fixed.itemsize
        payloads = [[_packed(value, kind) for value in columns[name]] for name, kind in self._others]
        lengths = struct.Struct(f"<{len(payloads)}I").pack
        values = []
        for at in range(count):
            parts = [column[at] for column in payloads]
            values.append(b"".join((fixed[at * size : (at + 1) * size], lengths(*map(len, parts)), *parts)))
        return values


def _fixed_type(schema: Schema) -> np.dtype[Any]:
    """Return the fields of fixed size as one type without gaps."""
    fixed = [(name, kind) for name, kind in schema.items() if kind.nbytes is not None]
    return np.dtype([(name, stored_dtype(kind), kind.shape) for name, kind in fixed])


def _packed(value: Any, kind: FieldType) -> bytes | memoryview:
    if kind.name in _PAYLOADS:
        return to_bytes(value, kind)
    if kind.item is not None:
        bits = kind.item.name == "bfloat16" and len(value) > 0
        payloads = [_packed(item, kind.item) for item in (flat_numbers(value, kind) if bits else value)]
        return b"".join((struct.pack(f"<{1 + len(payloads)}I", len(payloads), *map(len, payloads)), *payloads))
    values = np.ascontiguousarray(value, stored_dtype(kind))
    return (b"" if kind.nbytes is not None else struct.pack(f"<{values.ndim}Q", *values.shape)) + values.tobytes()


def _unpacked(data: memoryview, kind: FieldType) -> Any:
    """Return a value that `_packed` has packed.

    Raises:
        ValueError: the data are damaged.
    """
    if kind.name in _PAYLOADS:
        return from_bytes(kind)(data)
    if kind.item is not None:
        found = [_unpacked(item, kind.item) for item in items(data)]
        return of_stored(np.array(found, np.uint16), kind) if kind.item.name == "bfloat16" else found
    shape: tuple[int, ...] = tuple(dim or 0 for dim in kind.shape or ())
    if kind.nbytes is None:
        shape = tuple(np.frombuffer(data, "<u8", len(shape)).tolist())
        data = data[8 * len(shape) :]
    dtype = stored_dtype(kind)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array {shape} of {dtype} has {len(data)} bytes")
    values = np.frombuffer(data, dtype).reshape(shape)
    return values if shape or kind.name == "array" else values[()]


class Lmdb(Format):
    """LMDB environments, as a file or as a folder with data.mdb."""

    name = "lmdb"
    destination = LmdbDestination
    title = "LMDB"
    writes = True
    suffixes = (".lmdb", ".mdb")
    settings: Mapping[str, Setting] = {
        "values": Setting(
            "what the values are; when reading, auto looks at the first ones; when writing, auto is fastrecord, which "
            "holds all fields, and image, bytes and tuple hold those alone",
            _LAYOUTS,
        ),
        "database": Setting("name of a database in the file; by default the main one"),
        "subdir": Setting("write a folder with data.mdb, or a single file (default)", ("yes", "no")),
    }

    def recognise(self, found: Found) -> str | None:
        """Look for LMDB's magic number."""
        if found.is_folder:
            return f"it is a folder with {_DATA}" if _DATA in found.names else None
        return "it begins as an LMDB file" if found.head[MAGIC_AT : MAGIC_AT + 4] == MAGIC else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files or folders."""
        return LmdbSource(_files(source), settings.get("values", "auto"), settings.get("database"))

    def refuse(self, schema: Schema) -> Refusal:  # noqa: ARG002
        """LMDB holds all fields."""
        return {}


FORMATS = [Lmdb()]
