"""Files in one folder a class, as torchvision's ImageFolder reads them."""

from __future__ import annotations

import os
import platform

import numpy as np
from numpy.typing import NDArray

from benches.contenders.store import Records, Store


class ClassFolder(Store):
    """A file each."""

    suffix = ".folder"

    most_records = 20_000

    @classmethod
    def version(cls) -> str:
        return f"Python {platform.python_version()}, open and read"

    def write(self) -> None:
        made = set()
        for payload, label, key in self.source.each():
            folder = f"{self.path}/{label:06d}"
            if folder not in made:
                os.makedirs(folder)
                made.add(folder)
            with open(f"{folder}/{key.rpartition('/')[2]}", "wb", buffering=0) as file:
                file.write(payload)

    def open(self) -> None:
        """List the files, as ImageFolder does."""
        self.files: list[str] = []
        self.labels: list[int] = []
        for folder in sorted(entry.path for entry in os.scandir(self.path)):
            names = sorted(entry.path for entry in os.scandir(folder))
            self.files += names
            self.labels += [int(folder[-6:])] * len(names)

    def close(self) -> None:
        del self.files, self.labels

    def read(self, rows: NDArray[np.int64]) -> Records:
        payloads = []
        for row in rows.tolist():
            with open(self.files[row], "rb", buffering=0) as file:
                payloads.append(file.read())
        return payloads, [self.labels[row] for row in rows.tolist()]
