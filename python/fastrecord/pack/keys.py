"""`SeenKeys`: tells a key that comes twice, in 8 bytes a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Hashes in a Python set take about 90 bytes each, so it is emptied into an array at this size.
_LOOSE = 1 << 17


class SeenKeys:
    """The keys of all records so far, as 64-bit hashes.

    Python's hash of a str is SipHash with a random secret: among 10 million keys, two different
    ones have the same hash with a probability of 3 in a million.
    """

    def __init__(self) -> None:
        self._loose: set[int] = set()
        self._sorted: list[NDArray[Any]] = []

    def add(self, keys: Sequence[str]) -> list[int]:
        """Add keys; return the positions of keys that came before, here or in an earlier call."""
        hashes = [hash(key) for key in keys]
        before = len(self._loose)
        fresh = set(hashes)
        twice: list[int] = []
        if len(fresh) < len(hashes) or not fresh.isdisjoint(self._loose):
            seen = set(self._loose)
            for i, each in enumerate(hashes):
                if each in seen:
                    twice.append(i)
                seen.add(each)
        if self._sorted:
            twice = sorted({*twice, *self._in_arrays(hashes)})
        self._loose |= fresh
        if before + len(fresh) > _LOOSE:
            self._pour()
        return twice

    def _in_arrays(self, hashes: list[int]) -> list[int]:
        import numpy as np

        asked = np.array(hashes, np.int64)
        found = np.zeros(len(asked), bool)
        for known in self._sorted:
            places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
            found |= known[places] == asked
        return [int(i) for i in np.flatnonzero(found)]

    def _pour(self) -> None:
        """Move the set into arrays, of which each is at least twice as long as the next."""
        import numpy as np

        self._sorted.append(np.sort(np.fromiter(self._loose, np.int64, len(self._loose))))
        self._loose = set()
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            last = self._sorted.pop()
            merged = np.concatenate([self._sorted.pop(), last])
            merged.sort(kind="stable")
            self._sorted.append(merged)
