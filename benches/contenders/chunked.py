"""N5 by z5py and zarr by zarr-python: all payloads as one array of bytes in chunks, not compressed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.contenders.source import BATCH
from benches.contenders.store import Copied, Records, Store


class _Chunked(Store):
    """A record costs the chunks that hold it. Ends and labels are arrays beside the payloads."""

    columns: Any
    chunks_written = 64  # at once

    @property
    def chunk(self) -> int:
        """Bytes of a chunk: about one image, or 64 KB of small records."""
        return 1 << 17 if self.source.images else 1 << 16

    def fill(self, column: Any) -> NDArray[np.int64]:
        """Write the payloads, whole chunks at once; return the ends of the records."""
        ends: list[NDArray[np.int64]] = []
        waiting, at, total = b"", 0, 0
        whole = self.chunks_written * self.chunk
        for payloads, _, _ in self.source.batches():
            ends.append(total + np.cumsum([len(payload) for payload in payloads]))
            total = int(ends[-1][-1])
            waiting += b"".join(payloads)
            ready = len(waiting) if total == self.source.total else len(waiting) // whole * whole
            if ready:
                column[at : at + ready] = np.frombuffer(waiting, np.uint8, ready)
                at, waiting = at + ready, waiting[ready:]
        return np.concatenate(ends)

    def opened(self, file: Any) -> None:
        """Take the arrays of an opened file."""
        ends = file["ends"][:]
        self.extents = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        self.labels = file["label"][:]
        self.column = file["bytes"]

    def close(self) -> None:
        del self.column

    def read(self, rows: NDArray[np.int64]) -> Records:
        return [self.column[first:end] for first, end in self.extents[rows].tolist()], self.labels[rows]

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for start in range(0, self.source.records, BATCH):
            part = self.extents[start : start + BATCH]
            first, end = int(part[0, 0]), int(part[-1, 1])
            out[: end - first] = self.column[first:end]
            yield part[:, 1] - part[:, 0], self.labels[start : start + BATCH]


class N5(_Chunked):
    """z5py has no type for text: the keys are left out."""

    suffix = ".n5"

    @classmethod
    def version(cls) -> str:
        import z5py  # noqa: F401 - tells whether it is there

        return f"z5py {importlib.metadata.version('z5py')}"

    def write(self) -> None:
        import z5py

        with z5py.File(str(self.path), "w", use_zarr_format=False) as file:
            column = file.create_dataset(
                "bytes", shape=(self.source.total,), dtype="uint8", chunks=(self.chunk,), compression="raw"
            )
            for name, values in (("ends", self.fill(column)), ("label", self.source.labels)):
                file.create_dataset(name, data=values, chunks=(len(values),), compression="raw")

    def open(self) -> None:
        import z5py

        self.opened(z5py.File(str(self.path), "r", use_zarr_format=False))


class Zarr(_Chunked):
    """Version 3, without shards: its reader is slower with them."""

    suffix = ".zarr"

    @classmethod
    def version(cls) -> str:
        import zarr

        return f"zarr {zarr.__version__}"

    def write(self) -> None:
        import zarr

        file = zarr.open_group(str(self.path), mode="w")
        options: dict[str, Any] = {"compressors": None, "filters": None}
        column = file.create_array("bytes", shape=(self.source.total,), dtype="uint8", chunks=(self.chunk,), **options)
        columns = {"ends": self.fill(column), "label": self.source.labels, "key": np.array(self.source.keys, "S")}
        for name, values in columns.items():
            file.create_array(name, data=values, chunks=(len(values),), **options)

    def open(self) -> None:
        import zarr

        self.opened(zarr.open_group(str(self.path), mode="r"))
