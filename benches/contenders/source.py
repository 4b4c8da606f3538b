"""`Source`: the records that every format gets."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 256


@dataclass(frozen=True)
class Source:
    """Records in order: a payload, a label (int), and a key (text).

    Attributes:
        root: The folder of a set of images (`images/CLASS/FILE`), or of small records
            (`small.bin`, and their ends in `small.npy`).
        records: Their number.
    """

    root: Path
    records: int

    @cached_property
    def images(self) -> Path | None:
        """The folder of images; None for small records."""
        folder = self.root / "images"
        return folder if folder.exists() else None

    @cached_property
    def keys(self) -> list[str]:
        """The key of each record: its path below the folder, as `fastrecord pack` stores it."""
        if self.images is None:
            return [f"{label:06d}/{number:07d}" for number, label in enumerate(self.labels.tolist())]
        return [str(path.relative_to(self.images)) for path in sorted(self.images.glob("*/*"))]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """int64 (records,), ascending: the sorted paths of a class folder are in the order of the records."""
        if self.images is None:
            return np.arange(self.records) * 1000 // self.records
        return np.unique([key.partition("/")[0] for key in self.keys], return_inverse=True)[1]

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest payload."""
        return int(np.diff(self._ends, prepend=0).max())

    @cached_property
    def total(self) -> int:
        """Bytes of all payloads."""
        return int(self._ends[-1])

    @cached_property
    def crcs(self) -> NDArray[np.uint32]:
        """The CRC-32 of each payload; computed once for each set."""
        path = self.root / "crcs.npy"
        if not path.exists():
            crcs = [zlib.crc32(payload) for payloads, _, _ in self.batches() for payload in payloads]
            np.save(path, np.array(crcs, np.uint32))
        found: NDArray[np.uint32] = np.load(path)
        return found

    def part(self, start: int, size: int = BATCH) -> tuple[list[bytes], list[int], list[str]]:
        """Return payloads, labels and keys of at most `size` records from `start` on."""
        part = slice(start, min(start + size, self.records))
        keys = self.keys[part]
        if self.images:
            payloads = [(self.images / key).read_bytes() for key in keys]
        else:
            first = int(self._ends[start - 1]) if start else 0
            ends = (self._ends[part] - first).tolist()
            whole = self._small[first : first + ends[-1]].tobytes()
            payloads = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return payloads, self.labels[part].tolist(), keys

    def batches(self, size: int = BATCH) -> Iterator[tuple[list[bytes], list[int], list[str]]]:
        """Yield payloads, labels and keys of `size` records at a time, in order."""
        for start in range(0, self.records, size):
            yield self.part(start, size)

    def each(self) -> Iterator[tuple[bytes, int, str]]:
        """Yield payload, label and key of each record, in order."""
        for batch in self.batches():
            yield from zip(*batch, strict=True)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        if self.images:
            return np.cumsum([(self.images / key).stat().st_size for key in self.keys])
        found: NDArray[np.int64] = np.load(self.root / "small.npy")
        return found

    @cached_property
    def _small(self) -> NDArray[np.uint8]:
        return np.memmap(self.root / "small.bin", np.uint8, mode="r")


def make_small(folder: Path, records: int) -> Source:
    """Make records of 90 to 110 random bytes, 100 on average."""
    source = Source(folder / f"small-{records}", records)
    if not (source.root / "small.npy").exists():
        source.root.mkdir(parents=True, exist_ok=True)
        rng: Any = np.random.default_rng(0)
        ends = np.cumsum(rng.integers(90, 111, records))
        rng.integers(0, 256, ends[-1], np.uint8).tofile(source.root / "small.bin")
        np.save(source.root / "small.npy", ends)
    return source
