"""WebDataset: tar files, read in order."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Generator

import numpy as np
import webdataset
from numpy.typing import NDArray

from benches.contenders.source import BATCH
from benches.contenders.store import Copied, Records, Store, copy


class WebDataset(Store):
    """One shard; it shuffles what it has read, but reads in order only."""

    suffix = ".tar"
    random = False
    most_records = 20_000  # a file in the archive for each field of a record: minutes for 100,000

    @classmethod
    def version(cls) -> str:
        return f"webdataset {importlib.metadata.version('webdataset')}"

    def write(self) -> None:
        with webdataset.TarWriter(str(self.path), encoder=False) as writer:
            for payload, label, key in self.source.each():
                writer.write({"__key__": key.partition(".")[0], "jpg": payload, "cls": str(label).encode()})

    def open(self) -> None:
        self.pipeline = webdataset.WebDataset(str(self.path), shardshuffle=False, empty_check=False)

    def close(self) -> None:
        del self.pipeline

    def read(self, rows: NDArray[np.int64]) -> Records:
        raise NotImplementedError

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        payloads, labels = [], []
        for record in self.pipeline:
            payloads.append(record["jpg"])
            labels.append(int(record["cls"]))
            if len(payloads) == BATCH:
                yield copy((payloads, labels), out)
                payloads, labels = [], []
        if payloads:
            yield copy((payloads, labels), out)
