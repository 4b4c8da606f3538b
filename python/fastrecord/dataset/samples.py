"""`SampleReader`: samples as dicts of fields, and views of them as `(image, label, *extra)`.

Opens no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.dataset.collate import FieldBatch, each_sample
from fastrecord.dataset.decode import decode_native, decode_pil, place
from fastrecord.dataset.decoding import Decoding
from fastrecord.dataset.labels import listed_labels
from fastrecord.dataset.selection import Selection
from fastrecord.dataset.values import as_tensors, is_number, read_values
from fastrecord.errors import Code
from fastrecord.schema.roles import read_key

Rows = NDArray[np.int64]
# Field -> tensor (N, ...), or the N values in order.
Columns = dict[str, Any]


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
        self._native = Decoding() if decode == "native" else decode if isinstance(decode, Decoding) else None
        self._shards = selection.shards

    def batch(self, rows: Rows) -> FieldBatch:
        """Return the samples of the selected fields, as stacked tensors and lists.

        Args:
            rows: Numbers over all files, int64 (N,).

        Raises:
            CorruptFileError: a checksum differs.
            DecodeError: the image format is not supported.
            SchemaError: a label has no class.
        """
        names, schema = self._selection.fields or (), self._shards.schema
        label = self._selection.mapped_label
        images = [name for name in names if schema[name].name == "image" and self._decode is not None]
        columns = self._stored(rows, [name for name in names if name not in images and name != label])
        columns |= {name: list(self._images(rows, name)) for name in images}
        if label is not None:
            columns[label] = torch.from_numpy(self._selection.labels.of(rows, verify=self._verify))
        return FieldBatch({name: columns[name] for name in names}, self._numbers(names) | {label}, len(rows))

    def tuples(self, rows: Rows) -> Iterator[tuple[Any, ...]]:
        """Yield `(image, label, *extra)` of each row, or `(image, *extra)` without labels.

        Images are decoded by Pillow one at a time, so the caller may transform each right away.

        Args:
            rows: Numbers over all files, int64 (N,).

        Raises:
            CorruptFileError: a checksum differs.
            DecodeError: a record has no image, or its format is not supported.
            SchemaError: a label has no class.
        """
        selection = self._selection
        columns = [self._images(rows, str(selection.image_field))]
        if selection.label_field is not None:
            columns.append(listed_labels(selection.labels.of(rows, verify=self._verify)))
        extra = selection.extra_fields
        # An extra field may be the image or the label again, as it is stored.
        stored = each_sample(self._stored(rows, extra), self._numbers(extra)) if extra else repeat({}, len(rows))
        for *sample, others in zip(*columns, stored, strict=True):
            yield (*sample, *others.values())

    def prefetch(self, rows: Rows, field: str) -> None:
        """Ask the kernel for the images of a batch: it reads while the first ones are decoded."""
        for shard, _, records in self._shards.split(rows):
            self._shards.readers[shard].prefetch(records, field)

    def _numbers(self, names: Sequence[str]) -> frozenset[str | None]:
        return frozenset(name for name in names if is_number(self._shards.schema[name]))

    def _stored(self, rows: Rows, names: Sequence[str]) -> Columns:
        """Return fields as they are stored; images are `bytes`."""
        if not names:
            return {}
        try:
            found = read_values(self._shards, rows, names, verify=self._verify)
        except CorruptFileError as error:
            raise self._named(error, rows, names) from None
        return {name: as_tensors(found[name], self._shards.schema[name]) for name in names}

    def _named(self, error: CorruptFileError, rows: Rows, names: Sequence[str]) -> FastRecordError:
        """Return the error of the first damaged record, with its key."""
        for row in rows:
            try:
                read_values(self._shards, np.array([row]), names, verify=self._verify)
            except CorruptFileError as own:
                shard, record = self._shards.locate(int(row))
                own.key = read_key(self._shards.readers[shard], record)
                return own
        return error

    def _images(self, rows: Rows, field: str) -> Iterable[Any]:
        """Return the images of rows in order; tensors are decoded at once, others one by one."""
        readers = self._shards.readers
        parts = list(self._shards.split(rows))
        places: list[tuple[Reader, int]] = [(readers[0], 0)] * len(rows)
        for shard, slots, records in parts:
            if len(rows) > 1:
                readers[shard].prefetch(records, field)
            for slot, record in zip(slots.tolist(), records.tolist(), strict=True):
                places[slot] = readers[shard], record
        if self._native is None:
            return (self._image(reader, record, field) for reader, record in places)
        images: list[torch.Tensor | None] = [None] * len(rows)
        for shard, slots, records in parts:
            found = decode_native(readers[shard], records, field, decoding=self._native, verify=self._verify)
            for slot, image in zip(slots.tolist(), found, strict=True):
                images[slot] = image
        return images

    def _image(self, reader: Reader, record: int, field: str) -> Any:
        """Return a PIL image, or the encoded `bytes`."""
        try:
            # Check each record right before it is decoded: its bytes stay in the CPU cache after
            # the CRC.
            payload = reader.get(record, field, verify=self._verify, copy=True)
        except CorruptFileError as error:
            error.key = read_key(reader, record)
            raise
        if payload is None:
            raise Code.NO_IMAGE.error("the record has no image", **place(reader, record, field))
        return payload if self._decode is None else decode_pil(payload, reader, record, field)
