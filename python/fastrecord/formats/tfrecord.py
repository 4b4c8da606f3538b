"""TFRecord files of `tf.train.Example` messages.

Formats: "TFRecord and tf.train.Example" of TensorFlow's guide (records with masked CRC-32C), and
`tensorflow/core/example/{example,feature}.proto`. TensorFlow is not needed.

How fields go out: integers as int64_list, floats of 32 bits and less as float_list, images, bytes,
UTF-8 and JSON as bytes_list. What these lists cannot hold exactly goes out as the little-endian
bytes of the numbers, as `tf.io.decode_raw` reads them: float64, uint64 and complex numbers, and
arrays of 8-bit integers, which would double. Arrays are flat; ones of several dimensions that vary
have another feature, `NAME/shape`. The first record of each file has one more feature,
`__fastrecord__`, with the types, which readers that name their features pass over.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import crc32c, example_names, find_tfrecords, read_examples
from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Refusal
from fastrecord.interchange.files.blocks import Blocks
from fastrecord.interchange.files.contents import as_bits, as_floats, from_bytes, to_bytes
from fastrecord.interchange.files.output import OutputDestination
from fastrecord.interchange.files.protobuf import delimited, head, varint
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import SAMPLE, first_few, is_label, most, most_images, renamed
from fastrecord.interchange.paths import expand, several
from fastrecord.interchange.source import ROWS, DamageError, Rows, ShardedSource, Source, SourceField, converted
from fastrecord.interchange.stored import is_folder, names_in, open_file
from fastrecord.schema import FieldType, Schema, array, list_

_SUFFIXES = tuple(f".{name}{end}" for name in ("tfrecord", "tfrecords", "tfrec") for end in ("", ".gz", ".gzip"))
# TensorFlow's own names of shards have no suffix.
_SHARD = re.compile(r".+-\d{5,}-of-\d{5,}")
_HEAD = 12
# Messages up to so many bytes are joined, as many small pieces cost more than a copy.
_JOINED = 64 << 10
_BYTES, _FLOATS, _INTS = 1, 2, 3
_KINDS = {_BYTES: "byte strings", _FLOATS: "floats", _INTS: "integers"}
_KEYS = ("image/filename", "image/key", "file_name", "filename", "__key__")
# A run of records: number of the first one, bytes, where they begin and end, and what is wrong with some.
Run: TypeAlias = tuple[int, memoryview, NDArray[np.int64], NDArray[np.int64], dict[int, str]]


@dataclass(frozen=True, slots=True)
class _Feature:
    """How the values of a field are stored.

    Attributes:
        name: Name of the feature.
        type: The field's type.
        kind: `_BYTES`, `_FLOATS` or `_INTS`.
        raw: Whether numbers are one string of bytes.
        count: Number of values in each record; None: any.
    """

    name: str
    type: FieldType
    kind: int
    raw: bool
    count: int | None

    @classmethod
    def of(cls, name: str, kind: FieldType) -> _Feature:
        numbers = (kind.item or kind).dtype
        if numbers is None:
            return cls(name, kind, _BYTES, False, None if kind.item is not None else 1)
        raw = numbers in ("float64", "uint64", "complex64", "complex128") or (
            numbers in ("int8", "uint8") and kind.name == "array" and len(kind.shape or ()) > 1
        )
        if raw:
            return cls(name, kind, _BYTES, True, 1)
        sizes = (None,) if kind.name == "list" else kind.shape or ()
        count = None if None in sizes else math.prod(size or 0 for size in sizes)
        return cls(name, kind, _FLOATS if "float" in numbers else _INTS, False, count)

    @property
    def shape_name(self) -> str:
        """The name of the feature that has the shape; "" if none has."""
        shape = self.type.shape or ()
        return f"{self.name}/shape" if self.type.name == "array" and len(shape) > 1 and None in shape else ""


class TFRecordSource(ShardedSource):
    """The records of TFRecord files, by feature."""

    def __init__(self, paths: Sequence[str], settings: Mapping[str, str]) -> None:
        super().__init__(paths)
        samples: list[tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]] = []
        for _, data, starts, ends, bad in first_few(self._few()):
            good = np.delete(np.arange(len(starts)), list(bad))[:SAMPLE]
            samples.append((data, starts[good], ends[good]))
        names: dict[str, None] = {}
        for data, starts, ends in samples:
            found, damaged = example_names(data, starts, ends)
            if len(damaged) == len(starts):
                raise Code.SOURCE.error(
                    f"{paths[0]}: record 0: its data is not a tf.train.Example message (SequenceExample and other data "
                    "are not read): convert it with the program that wrote it"
                )
            names |= dict.fromkeys(found)
        card = self._card(samples[0]) if CARD in names else None
        names.pop(CARD, None)
        if card is not None and card.schema.keys() <= names.keys() | {CARD}:
            self._features = {name: _Feature.of(name, kind) for name, kind in card.schema.items()}
            self.metadata = {name: value for name, value in card.metadata.items() if name != "classes"}
            self.classes = card.metadata.get("classes")
        else:
            card = None
            lists, as_bytes = (set(filter(None, settings.get(each, "").split(","))) for each in ("lists", "bytes"))
            for unknown in (lists | as_bytes) - names.keys():
                raise Code.NO_SUCH_FIELD.error(f"{paths[0]}: no feature {unknown!r}: there are {', '.join(names)}")
            # A map has no order.
            self._features = _infer(samples, sorted(names), lists, as_bytes)
        fields = [SourceField(name, feature.type, _origin(feature)) for name, feature in self._features.items()]
        self.fields = fields if card is not None else renamed(fields, keys=_KEYS)

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records; heads before `start` are read, data is not."""
        chosen = [self._features[name] for name in names]
        for first, data, starts, ends, bad in self._runs(start):
            for at in range(0, len(starts), ROWS):
                part = slice(at, at + ROWS)
                wrong = {first + row: why for row, why in bad.items() if at <= row < at + ROWS}
                yield from _rows(first + at, data, starts[part], ends[part], wrong, chosen)

    def _card(self, sample: tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]) -> Card | None:
        data, starts, ends = sample
        ((_, _, (first, last), _, _),), _ = read_examples(data, starts[:1], ends[:1], [CARD])
        return Card.from_json(bytes(data[first[0] : last[0]])) if len(first) else None

    def _few(self) -> Iterator[Run]:
        """Yield runs until there are enough records to tell the features."""
        count = 0
        for run in self._runs(0):
            yield run
            count += len(run[2])
            if count >= SAMPLE:
                return

    def _runs(self, start: int) -> Iterator[Run]:
        """Yield runs of records."""
        for number, (skipped, data, starts, ends, bad) in self.runs(start, _runs):
            yield number + skipped, data, starts, ends, bad
            del data


def _runs(path: str, skipped: int) -> Iterator[tuple[int, Run | None]]:
    """Yield the number of records in each run, and the run without the records that are skipped."""
    with open_file(path) as file:
        module = _compression(file.read(4096))
    with Blocks(path, module or "") as blocks:
        while blocks.fill(_HEAD):
            blocks.short = skipped > 0
            starts, ends, damaged, end, length, broken = find_tfrecords(blocks.ahead, check=skipped <= 0)
            count = len(starts)
            if count:
                data, passed = blocks.take(end), min(max(skipped, 0), count)
                if 0 < passed < count:
                    damaged = find_tfrecords(data)[2]
                bad = {each - passed: "the CRC of its data is wrong" for each in damaged if each >= passed}
                yield count, (passed, data, starts[passed:], ends[passed:], bad) if passed < count else None
                skipped -= count
            elif broken:
                raise DamageError("the CRC of its length is wrong: where the next record begins is unknown")
            elif length is not None:
                _reach(blocks, length, skip=skipped > 0)
                if skipped > 0:
                    yield 1, None
                    skipped -= 1
        if blocks.ahead:
            raise DamageError(f"the file ends within its head, {len(blocks.ahead)} bytes after its start")


def _reach(blocks: Blocks, length: int, *, skip: bool) -> None:
    """Have a record of `length` bytes ahead, or pass over it."""
    end = blocks.position + length
    if blocks.holds(length):
        if skip:
            blocks.skip(length)
        else:
            blocks.fill(length)
    if blocks.position + len(blocks.ahead) < end:
        raise DamageError(f"the file ends within it: it has {length - 16:,} bytes")


def _compression(start: bytes) -> str | None:
    """Return what decompresses a TFRecord file: "gzip", or "" for a plain one; None: it is none."""
    module = "gzip" if start[:2] == b"\x1f\x8b" else ""
    if module:
        try:
            start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, _HEAD)
        except zlib.error:
            return None
    if len(start) < _HEAD or _masked(crc32c(start[:8])) != int.from_bytes(start[8:12], "little"):
        return None
    return module


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _infer(samples: Sequence[Any], names: list[str], lists: set[str], as_bytes: set[str]) -> dict[str, _Feature]:
    """Return features by the values of the first records."""
    features = {}
    for name in names:
        kinds, counts, texts = Counter[int](), Counter[int](), list[memoryview]()
        for data, starts, ends in samples:
            ((found, numbers, (first, last), _, _),), damaged = read_examples(data, starts, ends, [name])
            whole = np.delete(np.arange(len(found)), damaged)
            kinds.update(found[whole].tolist())
            counts.update(numbers[whole].tolist())
            texts += [data[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        del kinds[0]
        if not kinds:
            continue
        # Of several kinds the most common one counts: records of others are bad.
        kind = kinds.most_common(1)[0][0]
        item = FieldType(
            {_FLOATS: "float32", _INTS: "int64"}.get(kind, "bytes" if name in as_bytes else _text_type(texts))
        )
        # A few labels of several numbers are bad records; other lists may have any length.
        single = is_label(name) and 2 * counts[1] > counts.total()
        count = None if name in lists or (len(counts) > 1 and not single) else counts.most_common(1)[0][0]
        if count == 1:
            features[name] = _Feature(name, item, kind, False, 1)
        elif count and kind != _BYTES:
            features[name] = _Feature(name, array(item.name, (count,)), kind, False, count)
        else:
            features[name] = _Feature(name, list_(item), kind, False, None)
    return features


def _text_type(values: Sequence[memoryview]) -> str:
    """Return what most byte strings are: images, else strings if UTF-8, else bytes."""
    if most_images(values):
        return "image"
    return "string" if most(_is_text(value) for value in values) else "bytes"


def _is_text(value: memoryview) -> bool:
    with suppress(UnicodeDecodeError):
        return "\0" not in str(value, "utf-8")
    return False


def _origin(feature: _Feature) -> str:
    if feature.count == 1:
        return f"feature, {_KINDS[feature.kind][:-1]}"
    return f"feature, {'any number of' if feature.count is None else feature.count} {_KINDS[feature.kind]}"


def _misfit(feature: _Feature, kind: int, count: int) -> str:
    wanted = f"{feature.count if feature.count is not None else 'any number of'} {_KINDS[feature.kind]}"
    found = f"{count} {_KINDS[kind]}" if kind else "none"
    reason = f"the feature {feature.name!r} has {found}, where the first records have {wanted}"
    if kind in (0, feature.kind):
        return f"{reason}: `--set lists={feature.name}` takes any number"
    return f"{reason}: leave it out with `--map`"


def _rows(
    first: int,
    data: memoryview,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    bad: Mapping[int, str],
    chosen: Sequence[_Feature],
) -> Iterator[Rows]:
    """Yield records with some features; `bad` has the ones that are known to be bad, by number."""
    names = [name for each in chosen for name in (each.name, each.shape_name) if name]
    columns, damaged = read_examples(data, starts, ends, names)
    found = dict(zip(names, columns, strict=True))
    values = {each.name: _Values(each, data, found[each.name], found.get(each.shape_name)) for each in chosen}
    bad = {first + row: "its data is not a tf.train.Example message" for row in damaged} | dict(bad)
    for column in values.values():
        for row, why in column.misfits():
            bad.setdefault(first + row, why)
    return converted(first, len(starts), {name: column.read for name, column in values.items()}, bad)


class _Values:
    """The values of a feature in a run of records.

    Args:
        feature: The feature.
        data: Bytes with the messages.
        column: What `read_examples` returns for it.
        shapes: Likewise for the feature with the shapes; None: it has none.
    """

    def __init__(self, feature: _Feature, data: memoryview, column: Any, shapes: Any | None) -> None:
        self._feature, self._data = feature, data
        self._kinds, self._counts, (firsts, lasts), floats, ints = column
        # Where the values of each record begin, and where the last ones end.
        self._places = _places(self._kinds, self._counts, feature.kind)
        dtype = (feature.type.item or feature.type).dtype
        # Where byte strings begin and end, or numbers.
        self._items: Any = floats if feature.kind == _FLOATS else ints
        self._parse: Callable[[memoryview], Any] | None = None
        if feature.kind == _BYTES:
            self._items = list(zip(firsts.tolist(), lasts.tolist(), strict=True))
            if feature.raw:
                self._parse = _raw_parser(feature.type)
            elif (feature.type.item or feature.type).name not in ("image", "bytes"):
                self._parse = from_bytes(feature.type.item or feature.type)
        elif dtype == "bfloat16":
            # A list of floats becomes bfloat16; an array of them would have to be.
            self._items = floats.tolist() if feature.type.name == "list" else as_bits(floats)
        elif dtype is not None and self._items.dtype != dtype:
            self._items = self._items.astype(dtype)
        self._shapes: list[list[int]] | None = None
        if shapes is not None:
            kinds, counts, _, _, sizes = shapes
            places = pairwise(_places(kinds, counts, _INTS))
            self._shapes = [sizes[start:end].tolist() for start, end in places]

    def misfits(self) -> Iterator[tuple[int, str]]:
        """Yield the records whose values are not as many as in the first ones, or of another kind, and why."""
        feature, kinds, counts = self._feature, self._kinds, self._counts
        if feature.count is not None:
            fits = (kinds == feature.kind) & (counts == feature.count)
        else:
            fits = (kinds == feature.kind) | (counts == 0)
        for row in np.flatnonzero(~fits).tolist():
            yield row, _misfit(feature, int(kinds[row]), int(counts[row]))
        for row, shape in enumerate(self._shapes or ()):
            if not shape:
                yield row, "the shape of an array is missing"

    def read(self, first: int, end: int) -> Sequence[Any]:
        """Return the values of consecutive records without misfits.

        Raises:
            ValueError: one cannot be read.
        """
        feature, places = self._feature, self._places[first : end + 1]
        begin = places[0]
        items = self._items[begin : places[-1]]
        if feature.kind == _BYTES:
            items = [self._data[a:b] for a, b in items]
            if self._parse is not None:
                items = list(map(self._parse, items))
        elif feature.count is not None:
            items = items.reshape(end - first, *(feature.type.shape or ()))
        values = items if feature.count is not None else [items[a - begin : b - begin] for a, b in pairwise(places)]
        if self._shapes is not None:
            values = [value.reshape(shape) for value, shape in zip(values, self._shapes[first:end], strict=True)]
        return cast("Sequence[Any]", values)


def _places(kinds: NDArray[Any], counts: NDArray[Any], kind: int) -> list[int]:
    """Return where the values of a kind begin in each record, and where the last ones end."""
    return [0, *np.cumsum(np.where(kinds == kind, counts, 0)).tolist()]


def _raw_parser(kind: FieldType) -> Callable[[memoryview], Any]:
    dtype = np.dtype((kind.item or kind).dtype).newbyteorder("<")
    if kind.name == "list":
        return lambda data: np.frombuffer(data, dtype)
    if kind.name != "array":
        return lambda data: np.frombuffer(data, dtype).reshape(())[()]
    shape = kind.shape or ()
    if shape.count(None) > 1 or (None in shape and len(shape) > 1):
        return lambda data: np.frombuffer(data, dtype)
    sizes = tuple(-1 if size is None else size for size in shape)
    return lambda data: np.frombuffer(data, dtype).reshape(sizes)


class TFRecordDestination(OutputDestination):
    """A TFRecord file that is being written, without compression."""

    _first = True

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        self._features = [_Feature.of(name, kind) for name, kind in card.schema.items()]
        self._card = b"".join(_entry(CARD, _BYTES, [delimited(1, card.to_json().encode())]))
        self.begin(path)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:  # noqa: ARG002
        """Append records as Example messages."""
        encoded = [entries for each in self._features for entries in _encoded(each, columns[each.name])]
        for entries in zip(*encoded, strict=True):
            pieces = [piece for entry in entries for piece in entry]
            if self._first:
                pieces.append(self._card)
                self._first = False
            self._record([head(1, sum(map(len, pieces))), *pieces])

    def begin(self, path: str) -> None:
        """Begin a file."""
        super().begin(path)
        self._first = True

    def _record(self, pieces: Sequence[bytes | memoryview]) -> None:
        size = sum(map(len, pieces))
        message = pieces if size > _JOINED else [b"".join(pieces)]
        crc = 0
        for piece in message:
            crc = crc32c(piece, crc)
        length = size.to_bytes(8, "little")
        self._out.write(length + _masked_bytes(crc32c(length)), *message, _masked_bytes(crc))
        if message is pieces:
            self._out.flush()  # views are valid during `write` only


def _masked_bytes(crc: int) -> bytes:
    return _masked(crc).to_bytes(4, "little")


def _encoded(feature: _Feature, values: Sequence[Any]) -> Iterator[Iterator[Sequence[bytes | memoryview]]]:
    """Yield, for a field's feature and maybe its shape's, the pieces of the entry of each record."""
    yield (_entry(feature.name, feature.kind, pieces) for pieces in _lists(feature, values))
    if feature.shape_name:
        shapes = (np.asarray(value).shape for value in values)
        yield (_entry(feature.shape_name, _INTS, [_packed_ints(shape)]) for shape in shapes)


def _entry(name: str, kind: int, pieces: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    """Return the entry of a map of features: its name, and a list, which comes in pieces."""
    size = sum(map(len, pieces))
    outer = head(kind, size)
    named = _named(name)
    before = head(2, len(outer) + size) + outer
    return [head(1, len(named) + len(before) + size) + named + before, *pieces]


@lru_cache
def _named(name: str) -> bytes:
    return delimited(1, name.encode())


def _lists(feature: _Feature, values: Sequence[Any]) -> Iterator[Sequence[bytes | memoryview]]:
    """Yield the content of the list of each record, in pieces."""
    kind = feature.type.item or feature.type
    several = feature.type.name == "list"
    if feature.raw:
        dtype = np.dtype(kind.dtype).newbyteorder("<")
        for value in values:
            yield (delimited(1, np.ascontiguousarray(value, dtype).tobytes()),)
    elif feature.kind == _BYTES:
        for value in values:
            items = [to_bytes(item, kind) for item in (value if several else (value,))]
            yield [piece for item in items for piece in (head(1, len(item)), item)]
    elif feature.kind == _FLOATS:
        for value in values:
            bits = kind.dtype == "bfloat16" and not several
            yield (delimited(1, np.asarray(as_floats(value) if bits else value).astype("<f4").tobytes()),)
    elif feature.type.name in ("array", "list"):
        for value in values:
            yield (_packed_ints(np.asarray(value, np.int64).ravel().tolist()),)
    else:
        for value in np.asarray(values, np.int64).tolist():
            yield (_packed_ints((value,)),)


@lru_cache(4096)
def _small(value: int) -> bytes:
    return varint(value)


def _packed_ints(values: Sequence[int]) -> bytes:
    return delimited(1, b"".join(map(_small, values)))


class TFRecordFormat(Format):
    """TFRecord of tf.train.Example."""

    name = "tfrecord"
    destination = TFRecordDestination
    title = "TFRecord (tf.train.Example)"
    stored = True
    suffixes = _SUFFIXES
    settings: Mapping[str, Setting] = {
        "lists": Setting("Features that are lists of any length, though the first records have equally many: A,B"),
        "bytes": Setting("Features that are bytes, though the first records have images or UTF-8: A,B"),
    }

    def recognise(self, found: Found) -> str | None:
        """Return why something is a TFRecord file."""
        if not found.is_folder:
            module = _compression(found.head)
            packed = f", after decompression by {module}" if module else ""
            return None if module is None else f"its first length has the right CRC{packed}"
        names = [name for name in found.names if name.endswith(_SUFFIXES) or _SHARD.fullmatch(name)]
        if not names or _compression(found.inside(names[0]).head) is None:
            return None
        return f"the folder holds {len(names):,} files like {names[0]}, whose first length has the right CRC"

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files, in order."""
        paths = []
        for each in several(source):
            shards = _SHARD.fullmatch(min(names_in(each), default="")) if is_folder(each) else None
            paths += expand(each, ()) if shards else expand(each, _SUFFIXES)
        return TFRecordSource(paths, settings)

    def refuse(self, schema: Schema) -> Refusal:
        """Return lists of arrays."""
        return {
            name: f"a list of {kind.item} has no place in a list of features"
            for name, kind in schema.items()
            if kind.item is not None and kind.item.name == "array"
        }
