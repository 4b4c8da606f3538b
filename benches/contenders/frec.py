"""fastrecord: as packed by default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import fastrecord as fr
from benches.contenders.store import Copied, Records, Store


class Frec(Store):
    """One file; a batch is one call, its payloads are views of the mapped file."""

    suffix = ".frec"

    @classmethod
    def version(cls) -> str:
        return f"fastrecord {fr.__version__}"

    def write(self) -> None:
        if self.source.images:
            fr.pack(self.source.images, self.path)
            return
        schema = fr.Schema({"image": fr.bytes_(), "label": "int64", "key": fr.string()})
        with fr.Writer(self.path, schema) as writer:
            for payloads, labels, keys in self.source.batches(4096):
                writer.extend({"image": payloads, "label": labels, "key": keys})

    def open(self) -> None:
        self.reader = fr.Reader(self.path)
        self.labels = self.reader.column("label")

    def close(self) -> None:
        self.reader.close()
        del self.reader, self.labels

    def read(self, rows: NDArray[np.int64]) -> Records:
        return self.reader.read_batch(rows, ["image"])["image"].tolist(), self.labels[rows]

    def read_into(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> Copied:
        ends = self.reader.read_batch_into(rows, "image", out)
        return ends[1:] - ends[:-1], self.labels[rows]
