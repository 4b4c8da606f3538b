"""ArrayRecord: groups of one record, as its documentation recommends for random access."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from numpy.typing import NDArray

from benches.contenders.source import BATCH
from benches.contenders.store import Copied, Records, Store, copy, frame, unframe


class ArrayRecord(Store):
    """Not compressed; a batch is one call."""

    suffix = ".array_record"

    @classmethod
    def version(cls) -> str:
        return f"array-record {importlib.metadata.version('array-record')}"

    def write(self) -> None:
        writer = ArrayRecordWriter(str(self.path), "group_size:1,uncompressed")
        for payload, label, key in self.source.each():
            writer.write(frame(payload, label, key))
        writer.close()

    def open(self) -> None:
        # Its read-ahead is for reading in order; 0 switches it off, as Grain does.
        self.reader = ArrayRecordReader(str(self.path), options="readahead_buffer_size:0")

    def close(self) -> None:
        self.reader.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        found = [unframe(value) for value in self.reader.read(rows.tolist())]
        return [payload for payload, _ in found], [label for _, label in found]

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for start in range(0, self.source.records, BATCH):
            values = self.reader.read(start, min(start + BATCH, self.source.records))
            found = [unframe(value) for value in values]
            yield copy(([payload for payload, _ in found], [label for _, label in found]), out)
