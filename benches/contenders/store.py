"""`Store`: what each format's class does."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.contenders.source import BATCH, Source

# Payloads (bytes, memoryviews, uint8 arrays: whatever has a length and a buffer) and labels.
Records = tuple[Sequence[Any], Sequence[int] | NDArray[np.int64]]
# Lengths and labels of payloads that were copied into one buffer, one after the other.
Copied = tuple[Sequence[int] | NDArray[np.int64], Sequence[int] | NDArray[np.int64]]


class Store(ABC):
    """A data set in one format, written and read by its library.

    `write` makes it; `open`, then `read` and the others, `close`. A subclass overrides `read_into`
    where its library copies into a buffer by itself, and `scan` where it reads in order faster.

    Attributes:
        suffix: The end of the file's or folder's name.
        random: Whether records can be read by number.
        least_batches: How many random batches are read at once, at least.
        most_records: Above this number the format is left out, because it makes a file of each record.
    """

    suffix = ""
    random = True
    least_batches = 1
    most_records = 1 << 62

    def __init__(self, path: Path, source: Source) -> None:
        self.path, self.source = path, source

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """What reads and writes it, as shown beside the numbers."""

    @abstractmethod
    def write(self) -> None:
        """Write all records; nothing is at the path."""

    @abstractmethod
    def open(self) -> None:
        """Open it, as a training process does before its first batch."""

    @abstractmethod
    def close(self) -> None:
        """Close it, so that no mapping is left."""

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> Records:
        """Return the records of these numbers, in their order."""

    def read_into(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> Copied:
        """Copy the payloads of these records into a buffer, one after the other."""
        return copy(self.read(rows), out)

    def hand(self, batches: Iterable[NDArray[np.int64]]) -> Generator[Records]:
        """Yield batch after batch."""
        for rows in batches:
            yield self.read(rows)

    def stream(self, batches: Iterable[NDArray[np.int64]], out: NDArray[np.uint8]) -> Generator[Copied]:
        """Copy batch after batch into a buffer."""
        for rows in batches:
            yield self.read_into(rows, out)

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        """Copy all records in order, at most `BATCH` at once."""
        records = self.source.records
        ranges = (np.arange(start, min(start + BATCH, records)) for start in range(0, records, BATCH))
        yield from self.stream(ranges, out)


def copy(records: Records, out: NDArray[np.uint8]) -> Copied:
    """Copy payloads into a buffer, one after the other."""
    payloads, labels = records
    view, at, lengths = out.data, 0, []
    for payload in payloads:
        length = len(payload)
        view[at : at + length] = payload
        at += length
        lengths.append(length)
    return lengths, labels


_HEAD = struct.Struct("<qH")


def frame(payload: bytes, label: int, key: str) -> bytes:
    """Return label, length of the key, key and payload as one value, for formats that store only bytes."""
    name = key.encode()
    return b"".join((_HEAD.pack(label, len(name)), name, payload))


def unframe(value: Any) -> tuple[Any, int]:
    """Return the payload, as a part of a memoryview or of bytes, and the label."""
    label, length = _HEAD.unpack_from(value)
    return value[_HEAD.size + length :], label
