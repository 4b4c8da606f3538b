"""LitData: chunks of 64 MB, read by its StreamingDataset by number."""

from __future__ import annotations

import shutil

import litdata
import numpy as np
from litdata.streaming.writer import BinaryWriter
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


class LitData(Store):
    """It keeps the chunk that it has read last; a record elsewhere opens another one."""

    suffix = ".litdata"

    @classmethod
    def version(cls) -> str:
        return f"litdata {litdata.__version__}"

    def write(self) -> None:
        # What `litdata.optimize` runs in its worker processes.
        writer = BinaryWriter(str(self.path), chunk_bytes="64MB")
        for number, (payload, label, key) in enumerate(self.source.each()):
            writer[number] = {"image": payload, "label": label, "key": key}
        writer.done()
        writer.merge(1)

    def open(self) -> None:
        self.dataset = litdata.StreamingDataset(str(self.path), shuffle=False)

    def close(self) -> None:
        del self.dataset
        shutil.rmtree(self.path / "cache", ignore_errors=True)

    def read(self, rows: NDArray[np.int64]) -> Records:
        found = [self.dataset[row] for row in rows.tolist()]
        return [record["image"] for record in found], [record["label"] for record in found]
