"""LMDB: a file of keys and values (https://www.symas.com/mdb), in the layouts that people use.

A file is read by `interchange.files.lmdb_pages` and written by the package lmdb. The layouts of values:

- image, bytes: the value itself.
- tuple: a pickle of (image, label), as the converter of Efficient-PyTorch writes it, with pickles of
  all keys in `__keys__` and of their number in `__len__`.
- pyobject: a pickle of something else: a dict has a field for each key, a tuple or list for each
  position. An export writes dicts, with JSON as its text; the schema is in `__fastrecord__`, and the
  keys are the numbers of the records with ten digits.
- In place of a pickle, tuple and pyobject may be what `pyarrow.serialize` wrote until pyarrow 11:
  four counts (int32), an Arrow stream of one record with a union of all types, and tensors. Older
  converters of Efficient-PyTorch wrote it, and pytorch-load-faster, which frames it by lz4.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.files.contents import as_floats
from fastrecord.interchange.files.lmdb_pages import MAGIC, MAGIC_AT, Entry, Pages
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
    DamageError,
    Rows,
    Source,
    SourceField,
    converted,
    gather,
)
from fastrecord.schema import FieldType, Schema

KEY = "__key__"
_KEYS, _LENGTH = b"__keys__", b"__len__"
_SPECIAL = (CARD.encode(), _KEYS, _LENGTH)
# What the card of an export says of it.
_OURS = {"values": "pyobject"}
_DATA = "data.mdb"
_LZ4 = b"\x04\x22\x4d\x18"
_LARGEST = 1 << 30
_SAMPLE_BYTES = 64 << 20
_FIRST_ROOM = 64 << 20
_ORIGINS = {
    "image": "values, which are images",
    "bytes": "values",
    "tuple": "pickled tuples (image, label) in the values",
    "pyobject": "pickled objects in the values",
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
_Run = list[tuple[bytes, memoryview]]


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

    That is the order of the numbers if the keys are 0, 1, 2, ..., or of `__keys__`, else of the keys.
    """

    def __init__(self, path: str, pages: Pages) -> None:
        self._path, self.pages = path, pages
        found = [each for each in map(self.pages.find, _SPECIAL) if each is not None]
        self.special = {key: pages.read(at, size) for _, (key, at, size, _) in found}
        # Numbers of the special entries among all.
        self._skipped = sorted(number for number, _ in found)
        self.count = self.pages.count - len(found)
        self._key: Callable[[int], bytes] | None = None
        # Where the values are, by the number of the record, if the order of the keys is another one.
        self._at, self._sizes = array("Q"), array("I")
        self._missing = DamageError("a key is missing")
        if self._is_numbered() and self._index(self._decimal) is None:
            self._key = b"%d".__mod__
        elif _KEYS in self.special:
            keys = [key.encode() if isinstance(key, str) else key for key in _loads(self.special[_KEYS])]
            if len(keys) != self.count:
                raise DamageError(f"{_KEYS.decode()} lists {len(keys):,} keys, and the file has {self.count:,}")
            unknown = self._index({key: number for number, key in enumerate(keys)}.get)
            if unknown is not None:
                raise DamageError(f"key {unknown!r} is not in {_KEYS.decode()}")
            self._key = keys.__getitem__

    def entries(self, start: int) -> Iterator[Entry]:
        """Yield the entries of records from a number on.

        Raises:
            DamageError: the file is damaged.
        """
        if not self._at:
            yield from self._in_order(start)
            return
        for number in range(start, self.count):
            if not self._at[number]:
                raise self._missing
            yield self.key(number), self._at[number], self._sizes[number], False

    def key(self, number: int) -> bytes:
        """Return the key of a record."""
        return self._key(number) if self._key is not None else next(self._in_order(number))[0]

    def _in_order(self, start: int) -> Iterator[Entry]:
        for number in self._skipped:
            start += number <= start
        for entries in self.pages.entries(start):
            for entry in entries:
                key, _, _, is_tree = entry
                if is_tree:
                    raise Code.SOURCE.error(
                        f"{self._path}: key {key!r} is a database of its own: name it with --set database=NAME"
                    )
                if key not in self.special:
                    yield entry

    def _index(self, number_of: Callable[[bytes], int | None]) -> bytes | None:
        """Note where values are, in 12 bytes for each; return a key that has no number, if there is one."""
        at, sizes = array("Q", bytes(8 * self.count)), array("I", bytes(4 * self.count))
        try:
            for key, place, size, _ in self._in_order(0):
                number = number_of(key)
                if number is None:
                    return key
                at[number], sizes[number] = place, size
        except DamageError as err:
            self._missing = err  # which ends the source at the first record that is missing
        self._at, self._sizes = at, sizes
        return None

    def _is_numbered(self) -> bool:
        last = self.count - 1
        return last >= 10 and all(self.pages.find(b"%d" % number) is not None for number in (0, 9, 10, last))

    def _decimal(self, key: bytes) -> int | None:
        number = int(key) if key.isdigit() and len(key) < 20 else -1
        return number if 0 <= number < self.count and b"%d" % number == key else None


class LmdbSource(CountedSource):
    """Records of one or several LMDB files.

    Args:
        files: The files.
        layout: One of the layouts, or "auto".
        database: Name of a database in each file; None for the main one.
    """

    def __init__(self, files: Sequence[str], layout: str, database: str | None) -> None:
        self._shards: dict[str, _Shard] = {}
        self._text_keys = True
        with ExitStack() as stack:
            for path in files:
                try:
                    self._shards[path] = _Shard(path, stack.enter_context(closing(Pages(path, database))))
                except (DamageError, ValueError, TypeError) as err:
                    raise Code.SOURCE.error(f"{path}: {err}: copy or download it again") from err
            super().__init__(files, [self._shards[path].count for path in files])
            self._describe(layout)
            self._files = stack.pop_all()

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records."""
        for first, run in self._runs(start):
            if self._whole:  # no work for each of them
                keys, values = [key for key, _ in run], [value for _, value in run]
                parts = dict.fromkeys(names, partial(_part, values)) | {KEY: partial(self._texts, keys)}
                yield from converted(first, len(run), {name: parts[name] for name in names})
            else:
                yield from gather((self._record(key, value, names) for key, value in run), first, names)

    def place(self, number: int) -> str:
        """Return file, number and key of a record."""
        at, local = self.locate(number)
        with suppress(DamageError, OSError, IndexError, StopIteration):
            return f"{super().place(number)} (key {_key_text(self._shards[self.paths[at]].key(local))!r})"
        return super().place(number)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _runs(self, start: int) -> Iterator[tuple[int, _Run]]:
        """Yield the number of the first record of each run, and keys and values."""

        def read(path: str, skip: int) -> Iterator[tuple[int, _Run | None]]:
            shard, run, nbytes = self._shards[path], list[tuple[bytes, memoryview]](), 0
            yield skip, None
            try:
                for key, at, size, _ in shard.entries(skip):
                    run.append((key, shard.pages.read(at, size)))
                    nbytes += size
                    if nbytes >= ROWS_BYTES or len(run) == ROWS:
                        yield len(run), run
                        run, nbytes = [], 0
            except DamageError:
                yield len(run), run
                raise
            yield len(run), run

        return ((number, run) for number, run in self.runs(start, read) if run)

    def _record(self, key: bytes, value: memoryview, names: Sequence[str]) -> list[Any] | Bad:
        try:
            record = self._split(value)
            if KEY in names:
                record[KEY] = self._text(key)
            return [record[name] for name in names]
        except KeyError as err:
            return Bad(f"it has no field {err}")
        except (ValueError, TypeError, RecursionError) as err:
            return Bad(str(err))

    def _texts(self, keys: Sequence[bytes], first: int, end: int) -> list[str | bytes]:
        return [self._text(key) for key in keys[first:end]]

    def _text(self, key: bytes) -> str | bytes:
        text = _key_text(key) if self._text_keys else key
        if self._text_keys and text is key:
            raise ValueError(f"its key {key!r} is not UTF-8: leave the keys out by naming the other fields with --map")
        return text

    def _describe(self, layout: str) -> None:
        samples = first_few(self._few())
        card = Card.from_json(bytes(self._shards[self.paths[0]].special.get(CARD.encode(), b"")))
        if card is not None and card.more != _OURS:
            card = None
        if layout == "auto":
            values = [value for _, value in samples]
            layout = "pyobject" if card is not None else _recognise(values, self.paths[0])
        self._split, self._whole = _SPLIT[layout], layout in ("image", "bytes")
        if card is not None and layout == "pyobject":
            # The card knows the types that the records had.
            self._split = partial(_exported, card.schema)
            self.metadata = card.metadata
            origin = f"{_ORIGINS[layout]}; {CARD}"
            self.fields = [SourceField(name, kind, origin, name) for name, kind in card.schema.items()]
            return
        if not samples:
            raise Code.SOURCE.error(f"{self.paths[0]}: it holds no records")
        self.fields = self._inferred(samples, layout)

    def _inferred(self, samples: Sequence[tuple[bytes, memoryview]], layout: str) -> list[SourceField]:
        """Return the fields of these first records."""
        path = self.paths[0]
        columns: dict[str, list[Any]] = {}
        errors = []
        for number, (key, value) in enumerate(samples):
            try:
                record = {KEY: _key_text(key), **self._split(value)}
            except ValueError as err:
                errors.append(f"{path}: record {number} (key {_key_text(key)!r}): {err}: is it --set values={layout}?")
                continue
            for name, each in record.items():
                columns.setdefault(name, []).append(each)
        if not columns:
            raise Code.SOURCE_RECORD.error(errors[0])
        keys = columns[KEY]
        self._text_keys = all(isinstance(key, str) for key in keys)
        if not self._text_keys:
            columns[KEY] = [key for key, _ in samples]
        for name, values in columns.items():
            if name != KEY and len(values) != len(keys):
                raise Code.MIXED_FIELDS.error(
                    f"{path}: {len(values)} of the first {len(keys)} records have a field {name!r}, the others do not"
                )
        return infer_fields(columns, dict.fromkeys(columns, _ORIGINS[layout]) | {KEY: "keys"}, path)

    def _few(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield records until there is enough to see their layout."""
        room = _SAMPLE_BYTES
        for key, value in chain.from_iterable(run for _, run in self._runs(0)):
            yield key, value
            room -= len(value)
            if room <= 0:
                return


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


_SPLIT: dict[str, Callable[[memoryview], _Values]] = {
    "image": lambda value: {"image": value},
    "tuple": _tuple,
    "pyobject": _pyobject,
    "bytes": lambda value: {"value": value},
}


def _key_text(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


# What an export writes


def _exported(schema: Schema, value: memoryview) -> _Values:
    record: _Values = pickled(value)
    return {name: _parsed(record[name], kind) for name, kind in schema.items()}


def _parsed(value: Any, kind: FieldType) -> Any:
    if kind.item is not None and kind.item.name == "json":
        return [json.loads(item) for item in value]
    return json.loads(value) if kind.name == "json" else value


def _plain(values: Sequence[Any], kind: FieldType) -> Sequence[Any]:
    """Return values of a field as plain data."""
    if kind.name in ("image", "bytes"):
        return [bytes(value) for value in values]
    if kind.name == "json":
        return [json.dumps(value, ensure_ascii=False) for value in values]
    if kind.item is not None:
        return [list(_plain(value, kind.item)) for value in values]
    if kind.dtype is None or kind.name == "array":
        return values
    numbers = np.asarray(values)
    # Items of lists are floats already.
    bits = kind.name == "bfloat16" and numbers.dtype == np.uint16
    found: list[Any] = (as_floats(numbers) if bits else numbers).tolist()
    return found


class LmdbDestination(Destination):
    """A new LMDB file, or a folder with one."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:
        self._library = library("lmdb", "lmdb", "LMDB")
        if settings.get("values", "auto") not in ("auto", "pyobject"):
            raise ValueError("LMDB is written as pyobject: leave out values")
        self._subdir = settings.get("subdir") == "yes"
        self._schema, self._card = card.schema, replace(card, more=_OURS).to_json().encode()
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._room = _FIRST_ROOM
        # No other process can open the file before it is finished: locks and syncs would be wasted.
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
        plain = [_plain(columns[name], kind) for name, kind in self._schema.items()]
        records = [dict(zip(self._schema, row, strict=True)) for row in zip(*plain, strict=True)]
        self._put([(b"%010d" % number, pickle.dumps(record, 4)) for number, record in enumerate(records, start)])

    def close(self) -> None:
        """Write the card."""
        self._put([(CARD.encode(), self._card)])
        self._env.close()

    def abort(self) -> None:
        """Close the file."""
        self._env.close()

    def _put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Append entries in one transaction; the file grows if it is full."""
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    transaction.cursor().putmulti(entries, append=True)
            except self._library.MapFullError:
                # Nothing of the transaction is left; LMDB's maps grow between transactions only.
                self._room *= 2
                self._env.set_mapsize(self._room)
            else:
                return


class Lmdb(Format):
    """LMDB environments, as a file or as a folder with data.mdb."""

    name = "lmdb"
    destination = LmdbDestination
    title = "LMDB"
    suffixes = (".lmdb", ".mdb")
    settings: Mapping[str, Setting] = {
        "values": Setting(
            "what the values are; auto looks at the first ones. An export writes pyobject, a dict with all fields",
            ("auto", *_SPLIT),
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
