"""`SeenKeys`: tells a key that comes twice, in 8 bytes a key."""

from __future__ import annotations

from collections.abc import Mapping
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

    def add(self, keys: Mapping[int, str]) -> list[int]:
        """Add keys by number; return the numbers of the ones that came before, here or in an earlier call."""
        hashes = {number: hash(key) for number, key in keys.items()}
        fresh = set(hashes.values())
        twice: list[int] = []
        if len(fresh) < len(hashes) or not fresh.isdisjoint(self._loose):
            here: set[int] = set()
            for number, each in hashes.items():
                if each in here or each in self._loose:
                    twice.append(number)
                here.add(each)
        if self._sorted:
            twice = sorted({*twice, *self._in_arrays(hashes)})
        self._loose |= fresh
        if len(self._loose) > _LOOSE:
            self._pour()
        return twice

    def _in_arrays(self, hashes: Mapping[int, int]) -> list[int]:
        import numpy as np

        numbers, asked = np.array(list(hashes), np.int64), np.array(list(hashes.values()), np.int64)
        found = np.zeros(len(asked), bool)
        for known in self._sorted:
            places = np.minimum(np.searchsorted(known, asked), len(known) - 1)
            found |= known[places] == asked
        return [int(number) for number in numbers[found]]

    def _pour(self) -> None:
        """Move the set into arrays; each is at least twice as long as the next."""
        import numpy as np

        self._sorted.append(np.sort(np.fromiter(self._loose, np.int64, len(self._loose))))
        self._loose = set()
        while len(self._sorted) > 1 and len(self._sorted[-2]) < 2 * len(self._sorted[-1]):
            last = self._sorted.pop()
            merged = np.concatenate([self._sorted.pop(), last])
            merged.sort(kind="stable")
            self._sorted.append(merged)
