"""`Blocks`: a shuffle by blocks of neighbouring records, and the kinds of shuffle.

Needs no torch, and reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fastrecord.checks import MOST, integer

# Blocks of 2 to 4 MiB: a disk that reads 200 MB/s with seeks of 8 ms spends two thirds of its time
# reading. So at most 512 MiB are mixed, and as much again is read ahead.
_BLOCK_BYTES = 4 << 20
_BLOCK_RECORDS = 64
_WINDOW_BLOCKS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Shuffle blocks of neighbouring records, for disks and mounts with slow random reads.

    Blocks come in random order, and records are mixed within a window of blocks. docs/order.md
    describes the effect on randomness and on reads.

    Attributes:
        records: Neighbouring records in a block. None: a power of two, at least 1, that makes
            blocks of 2 to 4 MiB; 64 for data of unknown size.
        window: Number of blocks that are mixed with each other. None: 128.

    Raises:
        TypeError, ValueError: a number is not an int, or below 1.
    """

    records: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("records", "window"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, integer(f"Blocks: {name}", getattr(self, name), 1, MOST))

    def filled(self, snapshots: Sequence[Mapping[str, Any]]) -> Blocks:
        """Return the blocks with default numbers for those that were not given.

        Args:
            snapshots: `bytes` and `records` of each file; empty if unknown.
        """
        return Blocks(
            records=_default_records(snapshots) if self.records is None else self.records,
            window=_WINDOW_BLOCKS if self.window is None else self.window,
        )

    def allows(self, other: object) -> bool:
        """Return whether other blocks have the numbers given here."""
        return isinstance(other, Blocks) and all(
            own is None or own == theirs for own, theirs in ((self.records, other.records), (self.window, other.window))
        )


Shuffle: TypeAlias = bool | Literal["blocks"] | Blocks


def check_shuffle(name: str, value: Any) -> bool | Blocks:
    """Check and return a kind of shuffle; "blocks" is short for `Blocks()`."""
    if isinstance(value, str) and value == "blocks":
        return Blocks()
    if not isinstance(value, (bool, Blocks)):
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f'{name} is True, False, "blocks" or a fastrecord.Blocks, not {value!r}')
    return value


def _default_records(snapshots: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest power of two of records whose average total size fits a block."""
    size: int = sum(file.get("bytes", 0) for file in snapshots)
    if size == 0:
        return _BLOCK_RECORDS
    records: int = sum(file["records"] for file in snapshots)
    return 1 << max(0, (_BLOCK_BYTES * records // size).bit_length() - 1)
