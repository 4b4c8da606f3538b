"""numpy: all payloads as one mapped array of bytes, their ends and labels as two more files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


class Memmap(Store):
    """Records are slices of the mapped array."""

    suffix = ".npy"

    @classmethod
    def version(cls) -> str:
        return f"numpy {np.__version__}"

    def write(self) -> None:
        # Keys are one array of text of fixed width.
        column = np.lib.format.open_memmap(self.path, "w+", np.uint8, (self.source.total,))
        ends, at = [0], 0
        for payloads, _, _ in self.source.batches():
            for payload in payloads:
                column[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
                at += len(payload)
                ends.append(at)
        column.flush()
        np.save(f"{self.path}.ends.npy", np.array(ends))
        np.save(f"{self.path}.labels.npy", self.source.labels)
        np.save(f"{self.path}.keys.npy", np.array(self.source.keys, "S"))

    def open(self) -> None:
        # A plain array is sliced faster than its subclass np.memmap.
        self.column = np.asarray(np.load(self.path, mmap_mode="r"))
        ends = np.load(f"{self.path}.ends.npy")
        self.extents = np.stack([ends[:-1], ends[1:]], axis=1)
        self.labels = np.load(f"{self.path}.labels.npy")

    def close(self) -> None:
        del self.column

    def read(self, rows: NDArray[np.int64]) -> Records:
        column = self.column
        return [column[first:end] for first, end in self.extents[rows].tolist()], self.labels[rows]
