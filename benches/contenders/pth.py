"""PyTorch's own files: a dict of lists, pickled, which `torch.load` reads whole."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


class Pth(Store):
    """Opening is reading all of it; afterwards records are objects in memory."""

    suffix = ".pth"

    @classmethod
    def version(cls) -> str:
        return f"torch {torch.__version__.partition('+')[0]}"

    def write(self) -> None:
        payloads: list[bytes] = []
        for batch, _, _ in self.source.batches():
            payloads += batch
        torch.save({"image": payloads, "label": self.source.labels.tolist(), "key": self.source.keys}, self.path)

    def open(self) -> None:
        found = torch.load(self.path, weights_only=False)  # the safe unpickler knows no bytes
        self.payloads, self.labels = found["image"], found["label"]

    def close(self) -> None:
        del self.payloads, self.labels

    def read(self, rows: NDArray[np.int64]) -> Records:
        numbers = rows.tolist()
        return [self.payloads[row] for row in numbers], [self.labels[row] for row in numbers]
