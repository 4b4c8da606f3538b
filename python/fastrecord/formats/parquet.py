"""Apache Parquet, and Arrow IPC files and streams (.arrow, .feather).

The formats: https://parquet.apache.org/docs/file-format/ and
https://arrow.apache.org/docs/format/Columnar.html; the library is pyarrow. The metadata of a schema
may describe images and names of classes as Hugging Face's datasets does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.destination import Destination, Refusal
from fastrecord.interchange.files.arrow import STRUCTS, ArrowSource, arrow, is_stream, open_files
from fastrecord.interchange.files.to_arrow import CannotHoldError, arrow_array, arrow_type
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.libraries import library
from fastrecord.interchange.paths import expand
from fastrecord.interchange.source import Source
from fastrecord.schema import FieldType, Schema

# A row group ends at so many bytes, or records.
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 1 << 16
_PAGE_BYTES = 1 << 20
_SUFFIXES = (".parquet", ".arrow", ".feather", ".ipc", ".arrows")
_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")


class _Destination(Destination):
    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:
        schema = card.schema
        self._structs = settings.get("images", "struct") == "struct"
        self._fields = schema
        pa = arrow()
        columns = [pa.field(name, arrow_type(kind, structs=self._structs)) for name, kind in schema.items()]
        described = {name: self._feature(name, kind, card.metadata) for name, kind in schema.items()}
        features = {name: feature for name, feature in described.items() if feature is not None}
        known = {CARD: card.to_json()}
        if features:
            known["huggingface"] = json.dumps({"info": {"features": features}})
        self._schema = pa.schema(columns, known)
        codec = settings.get("compression", "zstd")
        raw = [field.name for field in columns if schema[field.name].name == "image"]
        leaves = {field.name: list(_leaves(field.name, field.type)) for field in columns}
        self._options = {
            "compression": {leaf: "none" if name in raw else codec for name, below in leaves.items() for leaf in below},
            "use_dictionary": [leaf for name in leaves for leaf in leaves[name] if schema[name].name == "string"],
            "write_statistics": [leaf for name in leaves for leaf in leaves[name] if schema[name].shape == ()],
        }
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._path = path
        self._batches: list[Any] = []
        self._rows = self._bytes = 0
        self._file: Any = None
        self._writer: Any = None

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """See `Destination.write`."""
        pa = arrow()
        arrays = []
        for name, kind in self._fields.items():
            try:
                arrays.append(arrow_array(columns[name], kind, structs=self._structs))
            except CannotHoldError as err:
                raise Code.CANNOT_HOLD.error(f"record {start + err.row}: field {name!r}: {err}") from None
        batch = pa.record_batch(arrays, schema=self._schema)
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """See `Destination.close`."""
        self._flush(last=True)
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        """See `Destination.abort`."""
        self._batches.clear()
        with suppress(OSError, ValueError):
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            self._file.close()

    def _flush(self, *, last: bool = False) -> None:
        if self._writer is None and (self._batches or last):
            # The writer ends a page only after so many records; readers have whole pages in memory.
            rows = min(max(_PAGE_BYTES * self._rows // max(self._bytes, 1), 1), 1024)
            parquet = library("pyarrow.parquet", "parquet", "Parquet")
            # As bytes: Arrow takes no name that the locale's encoding lacks.
            self._file = arrow().OSFile(os.fsencode(self._path), "wb")
            self._writer = parquet.ParquetWriter(self._file, self._schema, write_batch_size=rows, **self._options)
        if self._batches:
            table = arrow().Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)
            self._batches.clear()
            self._rows = self._bytes = 0

    def _feature(self, name: str, kind: FieldType, metadata: Mapping[str, object]) -> dict[str, Any] | None:
        """Return how Hugging Face's datasets describes a field that Arrow's type says too little of."""
        if kind.name == "image" and self._structs:
            return {"_type": "Image"}
        classes = metadata.get("classes")
        if name == "label" and kind.name == "int64" and isinstance(classes, list):
            return {"_type": "ClassLabel", "names": [str(each) for each in classes]}
        return None


def _refusal(kind: FieldType) -> str | None:
    if kind.dtype in ("bfloat16", "complex64", "complex128"):
        return f"Parquet has no {kind.dtype}"
    if kind.shape is not None and 0 in kind.shape:
        return f"Parquet has no lists of fixed size 0, as in {kind}"
    return None if kind.item is None else _refusal(kind.item)


def _leaves(name: str, kind: Any) -> Iterator[str]:
    """Yield the paths of the columns that Parquet makes of a column."""
    types = arrow().types
    if types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif types.is_list(kind) or types.is_fixed_size_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name


class ParquetFormat(Format):
    """See the module."""

    name = "parquet"
    destination = _Destination
    title = "Apache Parquet, Arrow IPC"
    stored = True
    suffixes = _SUFFIXES
    settings: Mapping[str, Setting] = {
        "compression": Setting("how an export compresses all but images: zstd (the default)", _COMPRESSIONS),
        "images": Setting(
            "what an export makes of images: struct, with bytes and path, as Hugging Face's datasets shows them "
            "(the default), or binary",
            ("struct", "binary"),
        ),
        "structs": STRUCTS,
    }

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        if found.head.startswith(b"PAR1"):
            return "it begins as Parquet files do"
        if found.head.startswith(b"ARROW1"):
            return "it begins as Arrow IPC files do"
        return "it begins as Arrow IPC streams do" if is_stream(found.head) else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        return ArrowSource(open_files(expand(source, _SUFFIXES)), structs=settings.get("structs") != "json")

    def refuse(self, schema: Schema) -> Refusal:
        """See `Format.refuse`."""
        reasons = {name: _refusal(kind) for name, kind in schema.items()}
        return {name: reason for name, reason in reasons.items() if reason is not None}
