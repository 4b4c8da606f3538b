"""`SampleReader`: samples as dicts of fields, in columns.

Opens no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.dataset.collate import FieldBatch
from fastrecord.dataset.decode import decode_native, decode_pil, place
from fastrecord.dataset.decoding import Decoding
from fastrecord.dataset.selection import Selection
from fastrecord.dataset.values import as_tensors, gather, is_number, read_values
from fastrecord.errors import Code
from fastrecord.schema.roles import read_key

Rows = NDArray[np.int64]
# decode="native".
_REFUSING = Decoding(decoder="native")


class SampleReader:
    """Reads the samples of some rows.

    A sample is a dict field -> value: Python numbers, tensors for arrays, decoded images, and
    `str`, `bytes` and JSON unchanged.

    Args:
        selection: The files and fields.
        decode: "pil", "native", a Decoding or None, as for `FastRecordDataset`.
        verify: When payloads are checked.
    """

    def __init__(self, selection: Selection, decode: str | Decoding | None, verify: bool | Literal["once"]) -> None:
        self._selection, self._decode, self._verify = selection, decode, verify
        self._native = _REFUSING if decode == "native" else decode if isinstance(decode, Decoding) else None
        self._shards = selection.shards

    def batch(self, rows: Rows, *, lazily: bool) -> FieldBatch:
        """Return the samples of some rows, stacked where possible.

        Args:
            rows: Numbers over all files, int64 (N,).
            lazily: The batch is iterated over once. Pillow then decodes one image at a time, so the
                caller may transform each right away.

        Raises:
            CorruptFileError: a checksum differs.
            DecodeError: a record has no image, or its format is not supported.
            SchemaError: a label has no class.
        """
        selection, schema = self._selection, self._shards.schema
        label = selection.mapped_label
        images = [
            name
            for name in selection.fields
            if name == selection.image_field or (schema[name].name == "image" and self._decode is not None)
        ]
        columns = self._stored(rows, [name for name in selection.fields if name not in images and name != label])
        for name in images:
            found = self._images(rows, name)
            columns[name] = found if lazily else list(found)
        if label is not None:
            labels = selection.labels.of(rows)
            columns[label] = labels if lazily and labels.ndim == 1 else torch.from_numpy(labels)
        numbers = {name for name in selection.fields if is_number(schema[name])}
        if label is not None and not selection.labels.are_arrays:
            numbers.add(label)
        return FieldBatch({name: columns[name] for name in selection.fields}, numbers, len(rows))

    def _stored(self, rows: Rows, names: Sequence[str]) -> dict[str, Any]:
        """Return fields as they are stored; images are `bytes`."""
        if not names:
            return {}
        try:
            found = read_values(self._shards, rows, names)
        except CorruptFileError as error:
            raise self._named(error, rows, names) from None
        return {name: as_tensors(found[name], self._shards.schema[name]) for name in names}

    def _named(self, error: CorruptFileError, rows: Rows, names: Sequence[str]) -> FastRecordError:
        """Return the error of the first damaged record, with its key."""
        for row in rows:
            try:
                read_values(self._shards, np.array([row]), names)
            except CorruptFileError as own:
                shard, record = self._shards.locate(int(row))
                own.key = read_key(self._shards.readers[shard], record)
                return own
        return error

    def _images(self, rows: Rows, field: str) -> Iterator[Any] | Sequence[Any]:
        """Return the images of rows in order; tensors are decoded at once, others one by one."""
        readers, native = self._shards.readers, self._native
        places: list[tuple[Reader, int]] = [(readers[0], 0)] * len(rows)
        for shard, slots, records in self._shards.split(rows):
            if len(rows) > 1:
                readers[shard].prefetch(records, field)
            for slot, record in zip(slots.tolist(), records.tolist(), strict=True):
                places[slot] = readers[shard], record
        if native is None:
            return (self._image(reader, record, field) for reader, record in places)

        def decoded(shard: int, records: Rows) -> list[Any]:
            return [decode_native(readers[shard], records, field, decoding=native, verify=self._verify)]

        images: list[torch.Tensor] = gather(self._shards, rows, decoded)[0]
        return images

    def _image(self, reader: Reader, record: int, field: str) -> Any:
        """Return a PIL image, or the encoded `bytes`."""
        try:
            # Check each record right before it is decoded: its bytes stay in the CPU cache after
            # the CRC.
            payload = reader.get(record, field, copy=True)
        except CorruptFileError as error:
            error.key = read_key(reader, record)
            raise
        if payload is None:
            raise Code.NO_IMAGE.error("the record has no image", **place(reader, record, field))
        return payload if self._decode is None else decode_pil(payload, reader, record, field)
