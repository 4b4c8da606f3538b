"""FFCV: fields of bytes in its own file; its loader takes the order of the records."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator, Iterable
from itertools import islice
from typing import Any

import numpy as np
from ffcv.fields import BytesField, IntField
from ffcv.loader import Loader, OrderOption
from ffcv.writer import DatasetWriter
from numpy.typing import NDArray

from benches.contenders.source import BATCH, Source
from benches.contenders.store import Copied, Records, Store, copy


class _Rows:
    """What its writer takes: a record by number. Its batches hold no lengths, so they are a field."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.records

    def __getitem__(self, row: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, int]:
        (payload,), (label,), (key,) = self.source.part(row, 1)
        return np.frombuffer(payload, np.uint8), np.frombuffer(key.encode(), np.uint8), label, len(payload)


class Ffcv(Store):
    """A payload is a row of a batch that is as wide as the largest payload of the file.

    The loader starts a thread and allocates its batches for each epoch: a few batches at once would
    measure that.
    """

    suffix = ".beton"
    least_batches = 16

    @classmethod
    def version(cls) -> str:
        return f"ffcv {importlib.metadata.version('ffcv')}"

    def write(self) -> None:
        fields = {"image": BytesField(), "key": BytesField(), "label": IntField(), "length": IntField()}
        DatasetWriter(str(self.path), fields, num_workers=1).from_indexed_dataset(_Rows(self.source))

    def open(self) -> None:
        self.loader = Loader(
            str(self.path),
            BATCH,
            num_workers=1,
            os_cache=True,
            order=OrderOption.SEQUENTIAL,
            drop_last=False,
            batches_ahead=1,
            pipelines={"key": None},
        )

    def close(self) -> None:
        del self.loader

    def read(self, rows: NDArray[np.int64]) -> Records:
        (found,) = self._epoch([rows])
        return found

    def hand(self, batches: Iterable[NDArray[np.int64]]) -> Generator[Records]:
        rest = iter(batches)
        while chosen := list(islice(rest, 64)):
            yield from self._epoch(chosen)

    def stream(self, batches: Iterable[NDArray[np.int64]], out: NDArray[np.uint8]) -> Generator[Copied]:
        for found in self.hand(batches):
            yield copy(found, out)

    def _epoch(self, batches: list[NDArray[np.int64]]) -> Generator[Records]:
        """Yield what the loader gives for these rows, full batches but the last."""
        # What its option `indices` sets; a new loader would compile its pipeline again.
        order = np.concatenate(batches)
        self.loader.indices = self.loader.first_traversal_order = self.loader.traversal_order.indices = order
        for batch in self.loader:
            images, labels, lengths = (part.numpy() for part in batch)
            payloads: list[Any] = [
                image[:length] for image, length in zip(images, lengths.ravel().tolist(), strict=True)
            ]
            yield payloads, labels.ravel()
