"""MosaicML's MDS: shards of 64 MB, read by its LocalDataset."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import streaming
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


class Mds(Store):
    """Without the shuffling and downloading of its StreamingDataset, which reads records in the same way."""

    suffix = ".mds"

    @classmethod
    def version(cls) -> str:
        return f"mosaicml-streaming {importlib.metadata.version('mosaicml-streaming')}"

    def write(self) -> None:
        columns = {"image": "bytes", "label": "int", "key": "str"}
        with streaming.MDSWriter(out=str(self.path), columns=columns, size_limit=1 << 26) as writer:
            for payload, label, key in self.source.each():
                writer.write({"image": payload, "label": label, "key": key})

    def open(self) -> None:
        self.dataset = streaming.LocalDataset(str(self.path))

    def close(self) -> None:
        del self.dataset

    def read(self, rows: NDArray[np.int64]) -> Records:
        found = [self.dataset[row] for row in rows.tolist()]
        return [record["image"] for record in found], [record["label"] for record in found]
