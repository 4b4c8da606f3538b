"""TFRecord: written by the package tfrecord, and read by its parser and the index that it makes."""

from __future__ import annotations

import importlib.metadata
import mmap
from collections.abc import Generator

import numpy as np
import tfrecord
from numpy.typing import NDArray
from tfrecord import example_pb2
from tfrecord.tools import tfrecord2idx

from benches.contenders.source import BATCH
from benches.contenders.store import Copied, Records, Store, copy


class TfRecord(Store):
    """A record by number is a slice of the mapped file, parsed: the package itself reads in order only."""

    suffix = ".tfrecord"

    @classmethod
    def version(cls) -> str:
        return f"tfrecord {importlib.metadata.version('tfrecord')}"

    def write(self) -> None:
        writer = tfrecord.TFRecordWriter(str(self.path))
        for payload, label, key in self.source.each():
            writer.write({"image": (payload, "byte"), "label": (label, "int"), "key": (key.encode(), "byte")})
        writer.close()
        tfrecord2idx.create_index(str(self.path), f"{self.path}.index")

    def open(self) -> None:
        # A line has the place of a record and its length, with 12 bytes before and 4 after its data.
        with open(f"{self.path}.index", "rb") as index:
            found = np.fromstring(index.read(), np.int64, sep=" ").reshape(-1, 2)
        self.extents = np.stack([found[:, 0] + 12, found.sum(1) - 4], axis=1)
        with open(self.path, "rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def close(self) -> None:
        self.mapped.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        payloads, labels = [], []
        for first, end in self.extents[rows].tolist():
            features = example_pb2.Example.FromString(self.mapped[first:end]).features.feature
            payloads.append(features["image"].bytes_list.value[0])
            labels.append(features["label"].int64_list.value[0])
        return payloads, labels

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        payloads, labels = [], []
        for record in tfrecord.tfrecord_loader(str(self.path), None, {"image": "byte", "label": "int"}):
            payloads.append(record["image"])
            labels.append(int(record["label"][0]))
            if len(payloads) == BATCH:
                yield copy((payloads, labels), out)
                payloads, labels = [], []
        if payloads:
            yield copy((payloads, labels), out)
