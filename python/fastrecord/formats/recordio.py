"""MXNet's RecordIO: files .rec of images with labels, with or without an index .idx.

Formats: dmlc-core's recordio.h (parts with the magic number 0xced7230a, a length of 29 bits, a flag
of 3 bits that tells whether a part is whole, first, middle or last, and padding to 4 bytes; where
the data has the magic number at a multiple of 4 bytes, it is divided there), and the header that
`mx.recordio.pack` puts before an image: flag (u32), label (float32), id and id2 (u64), and `flag`
float32 as the label if `flag` is above 0. All little-endian. MXNet is not needed, and not kept up.

The .idx file is not read: it may lack records, and the heads of records are passed over quickly. An
export writes one beside each file of a folder (`--shard-size`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.errors import Code
from fastrecord.interchange.card import Card
from fastrecord.interchange.destination import Refusal
from fastrecord.interchange.files.blocks import Blocks
from fastrecord.interchange.files.contents import as_floats
from fastrecord.interchange.files.output import Output, OutputDestination
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.infer import first_few, most_images
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import Bad, DamageError, Rows, ShardedSource, Source, SourceField, gather
from fastrecord.schema import FieldType, Schema, array
from fastrecord.schema.roles import holds_classes

_MAGIC = 0xCED7230A
_MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_PART = struct.Struct("<II")
_HEADER = struct.Struct("<IfQQ")
_LENGTH = (1 << 29) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_PADDING = bytes(4)


class RecordIOSource(ShardedSource):
    """The records of RecordIO files: label, id and image."""

    def __init__(self, paths: Sequence[str], settings: Mapping[str, str]) -> None:
        super().__init__(paths)
        samples = first_few(record for _, record in self.runs(0, _records) if not isinstance(record, Bad))
        if not samples:
            raise Code.SOURCE.error(f"{paths[0]}: record 0: no record has the header of `mx.recordio.pack`")
        labels = [label for label, _, _, _ in samples]
        kind, self._whole = FieldType("float32"), False
        wanted, single = settings.get("labels"), [label for label in labels if not isinstance(label, np.ndarray)]
        if wanted == "array" or 2 * len(single) <= len(labels):
            lengths = {np.size(label) for label in labels}
            kind = array("float32", (lengths.pop() if len(lengths) == 1 and wanted is None else None,))
        elif wanted == "int" or (wanted is None and all(map(float.is_integer, single))):
            kind, self._whole = FieldType("int64"), True
        images = most_images([data for _, _, _, data in samples])
        self._type = kind
        self.fields = [
            SourceField("image" if images else "data", FieldType("image" if images else "bytes"), "data of records"),
            SourceField("label", kind, "labels of headers"),
            SourceField("id", FieldType("uint64"), "ids of headers"),
        ]
        if any(id2 for _, _, id2, _ in samples):
            self.fields.append(SourceField("id2", FieldType("uint64"), "second ids of headers"))

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records; heads before `start` are read, data is not."""
        places = {"label": 0, "id": 1, "id2": 2, "image": 3, "data": 3}
        chosen = [places[name] for name in names]
        labelled = "label" in names

        def values() -> Iterator[Sequence[Any] | Bad]:
            for _, record in self.runs(start, _records):
                if isinstance(record, Bad):
                    yield record
                    continue
                label, number, id2, data = record
                if labelled:
                    wrong = self._misfit(label)
                    if wrong is not None:
                        yield Bad(f"id {number}: {wrong}")
                        continue
                    label = (
                        int(label)
                        if self._whole
                        else label
                        if self._type.shape == ()
                        else np.atleast_1d(np.float32(label))
                    )
                row = (label, number, id2, data)
                yield [row[place] for place in chosen]

        yield from gather(values(), start, names)

    def _misfit(self, label: Any) -> str | None:
        several = isinstance(label, np.ndarray)
        if self._type.shape == ():
            if several:
                return (
                    f"its label has {len(label)} numbers, where most of the first records have one: "
                    "`--set labels=array` takes any number"
                )
            if self._whole and not label.is_integer():
                return f"its label is {label}, where the first ones are whole numbers: `--set labels=float`"
        elif self._type.shape != (None,) and self._type.shape != (np.size(label),):
            return f"its label has {np.size(label)} numbers, where the first records have {(self._type.shape or ())[0]}"
        return None


def _records(path: str, skipped: int) -> Iterator[tuple[int, Any]]:
    """Yield label, id, second id and data of each record; None for the ones that are skipped."""
    with Blocks(path) as blocks:
        while (data := _next(blocks, wanted=skipped <= 0)) is not None:
            yield 1, _parse(data) if skipped <= 0 else None
            skipped -= 1


def _next(blocks: Blocks, *, wanted: bool) -> memoryview | None:
    """Return the data of the next record, empty if it is not wanted; None at the end.

    Raises:
        DamageError: the file is damaged or cut short.
    """
    parts: list[bytes | memoryview] = []
    blocks.short = not wanted
    while blocks.fill(_PART.size):
        magic, word = _PART.unpack(blocks.take(_PART.size))
        kind, length = word >> 29, word & _LENGTH
        if magic != _MAGIC:
            raise DamageError(f"the magic number before byte {blocks.position:,} is {magic:#010x}, not {_MAGIC:#010x}")
        if kind not in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)):
            raise DamageError(f"the part before byte {blocks.position:,} has the flag {kind}, which does not fit there")
        padded = -(-length // 4) * 4
        if not blocks.holds(padded) or (wanted and not blocks.fill(padded)):
            raise DamageError(f"the file ends within it: a part of it has {length:,} bytes")
        if wanted:
            data = blocks.take(padded)[:length]
            if kind == _WHOLE:
                return data
            parts += (_MAGIC_BYTES, data) if parts else (data,)
        else:
            blocks.skip(padded)
            parts.append(b"")
        if kind in (_WHOLE, _LAST):
            return memoryview(b"".join(parts))
    if blocks.ahead or parts:
        raise DamageError(f"the file ends within it, at byte {blocks.position + len(blocks.ahead):,}")
    return None


def _parse(data: memoryview) -> tuple[Any, int, int, memoryview] | Bad:
    """Return label, id, second id and data of a record with the header of `mx.recordio.pack`."""
    if len(data) < _HEADER.size:
        return Bad(f"it has {len(data)} bytes, which are too few for a header")
    count, label, number, id2 = _HEADER.unpack_from(data)
    if not count:
        return label, number, id2, data[_HEADER.size :]
    end = _HEADER.size + 4 * count
    if end > len(data):
        return Bad(f"its label has {count:,} numbers, more than its {len(data):,} bytes hold")
    # A copy: a view would keep the image, which may not be wanted.
    return np.frombuffer(data[_HEADER.size : end], "<f4").copy(), number, id2, data[end:]


class RecordIODestination(OutputDestination):
    """A RecordIO file that is being written, and its index beside it."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        self._schema = card.schema
        self._payload = _payload(card.schema) or ""
        self.begin(path)

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append records with the header of `mx.recordio.pack`."""
        count = len(columns[self._payload])
        ids = _ids(columns, "id", range(start, start + count), start)
        second = _ids(columns, "id2", [0] * count, start)
        labels = self._labels(columns["label"], start) if "label" in columns else [(0, 0.0, b"")] * count
        rows = zip(labels, ids, second, columns[self._payload], strict=True)
        for number, ((flag, label, numbers), identity, id2, data) in enumerate(rows, start):
            self._index.write(b"%d\t%d\n" % (identity, self._out.size))
            self._record(number, _HEADER.pack(flag, label, identity, id2) + numbers, data)
        self._out.flush()

    def close(self) -> None:
        """Close the file and its index."""
        super().close()
        self._index.close()

    def abort(self) -> None:
        """Close the files as they are."""
        super().abort()
        self._index.abort()

    def begin(self, path: str) -> None:
        """Begin a file."""
        super().begin(path)
        self._index = Output(f"{os.path.splitext(path)[0]}.idx")

    def _record(self, number: int, header: bytes, data: bytes | memoryview) -> None:
        """Write a record, in parts where its data has the magic number at a multiple of 4 bytes."""
        size = len(header) + len(data)
        if size > _LENGTH:
            raise Code.CANNOT_HOLD.error(
                f"record {number}, field {self._payload}: it has {len(data):,} bytes, and RecordIO takes {_LENGTH:,}: "
                "write shards without it"
            )
        if not len(_magic_at(header)) and not len(_magic_at(data)):
            self._out.write(_PART.pack(_MAGIC, size), header, data, _PADDING[: -size % 4])
            return
        whole = memoryview(header + data)
        begin = 0
        for end in (_magic_at(whole) * 4).tolist():
            self._out.write(_PART.pack(_MAGIC, (_MIDDLE if begin else _FIRST) << 29 | end - begin), whole[begin:end])
            begin = end + 4
        self._out.write(_PART.pack(_MAGIC, _LAST << 29 | size - begin), whole[begin:], _PADDING[: -size % 4])

    def _labels(self, values: Sequence[Any], start: int) -> Iterator[tuple[int, float, bytes]]:
        kind = self._schema["label"]
        bits = kind.dtype == "bfloat16"
        for number, value in enumerate(values, start):
            exact = as_floats(value) if bits else np.asarray(value)
            with np.errstate(over="ignore"):
                label = exact.astype("<f4")
            if not np.array_equal(label.astype(exact.dtype), exact, equal_nan=exact.dtype.kind == "f"):
                raise Code.CANNOT_HOLD.error(
                    f"record {number}, field label: {value!r} is no float32, as labels are",
                    way_out="leave it out with `--drop label`",
                )
            if label.ndim == 0:
                yield 0, float(label), b""
            elif not label.size:
                raise Code.CANNOT_HOLD.error(
                    f"record {number}, field label: it has no numbers, and at least one is needed",
                    way_out="leave it out with `--drop label`",
                )
            else:
                yield label.size, 0.0, label.tobytes()


def _magic_at(data: bytes | memoryview) -> NDArray[np.intp]:
    """Return where data has the magic number, in words of 4 bytes."""
    return np.flatnonzero(np.frombuffer(data, "<u4", len(data) // 4) == _MAGIC)


def _payload(schema: Schema) -> str | None:
    """Return the field that goes into the data: the first image, or else the first one of bytes."""
    for wanted in ("image", "bytes"):
        for name, kind in schema.items():
            if kind.name == wanted:
                return name
    return None


def _ids(columns: Mapping[str, Sequence[Any]], name: str, default: Sequence[int], start: int) -> Sequence[int]:
    values = [int(value) for value in columns[name]] if name in columns else default
    for number, value in enumerate(values, start):
        if value < 0:
            raise Code.CANNOT_HOLD.error(
                f"record {number}, field {name}: {value} is negative", way_out=f"`--drop {name}`"
            )
    return values


class RecordIOFormat(Format):
    """MXNet's RecordIO."""

    name = "recordio"
    destination = RecordIODestination
    title = "MXNet RecordIO"
    stored = True
    suffixes = (".rec",)
    settings: Mapping[str, Setting] = {
        "labels": Setting(
            "How labels are read: `int`, `float`, or `array` of any number of floats; by default `array` unless most "
            "of the first ones are single numbers, and `int` if these are whole",
            ("int", "float", "array"),
        ),
    }

    def recognise(self, found: Found) -> str | None:
        """Return why something is a RecordIO file."""
        if not found.is_folder:
            return "it begins with RecordIO's magic number" if found.head[:4] == _MAGIC_BYTES else None
        # Indexes lie beside the files, so that an export knows the folder again.
        name = next((name for name in found.names if name.endswith(".rec")), None)
        if name is None or found.inside(name).head[:4] != _MAGIC_BYTES:
            return None
        return f"the folder holds files like {name}, which begin with RecordIO's magic number"

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open files, in order."""
        return RecordIOSource(expand(source, self.suffixes), settings)

    def refuse(self, schema: Schema) -> Refusal:
        """Return all but one field of bytes, `label`, `id` and `id2`, with types that fit a header."""
        refused = {}
        payload = _payload(schema)
        for name, kind in schema.items():
            if name == payload:
                continue
            if name == "label":
                item = kind.item or kind
                several = kind.name == "list" or (kind.name == "array" and len(kind.shape or ()) == 1)
                numbers = item.dtype is not None and not item.dtype.startswith("complex")
                if not numbers or not (several or kind.name == item.dtype):
                    refused[name] = f"a label of {kind}: it is a number or a list of numbers"
            elif name not in ("id", "id2") or not holds_classes(kind):
                refused[name] = "a record has one image, label, id and id2, which are integers"
        if payload is None:
            refused |= dict.fromkeys(schema, "a record has one image, or bytes, and there is none")
        return refused
