"""HDF5: all payloads as one array of bytes, their ends and labels as two more."""

from __future__ import annotations

from collections.abc import Generator

import h5py
import numpy as np
from numpy.typing import NDArray

from benches.contenders.source import BATCH
from benches.contenders.store import Copied, Records, Store


class Hdf5(Store):
    """Faster than its type for bytes of varying length, whose values lie in a heap.

    The array is contiguous: no chunk cache, no lookup of chunks.
    """

    suffix = ".h5"

    @classmethod
    def version(cls) -> str:
        return f"h5py {h5py.__version__}"

    def write(self) -> None:
        with h5py.File(self.path, "w", libver="latest") as file:
            column = file.create_dataset("bytes", (self.source.total,), np.uint8)
            ends, at = [], 0
            for payloads, _, _ in self.source.batches():
                joined = np.frombuffer(b"".join(payloads), np.uint8)
                column[at : at + len(joined)] = joined
                ends.append(at + np.cumsum([len(payload) for payload in payloads]))
                at += len(joined)
            file["ends"] = np.concatenate(ends)
            file["label"] = self.source.labels
            file["key"] = np.array(self.source.keys, "S")

    def open(self) -> None:
        self.file = h5py.File(self.path, libver="latest", locking=False)
        ends = self.file["ends"][:]
        self.extents = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        self.labels = self.file["label"][:]
        self.column = self.file["bytes"]

    def close(self) -> None:
        self.file.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        return [self.column[first:end] for first, end in self.extents[rows].tolist()], self.labels[rows]

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for start in range(0, self.source.records, BATCH):
            part = self.extents[start : start + BATCH]
            first, end = int(part[0, 0]), int(part[-1, 1])
            self.column.read_direct(out, np.s_[first:end], np.s_[: end - first])
            yield part[:, 1] - part[:, 0], self.labels[start : start + BATCH]
