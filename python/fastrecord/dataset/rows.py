"""`Rows`: which records a view has, in which order.

Computes rows on demand from how the view was made. Reads columns only to filter or
stratify.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import permute
from fastrecord.checks import digest
from fastrecord.dataset.columns import Columns, Condition
from fastrecord.dataset.split import SPLIT_EPOCH, split_order

Numbers64 = NDArray[np.int64]


class Rows(ABC):
    """A sequence of records over all files, indexed from 0. Immutable; pickles as its arguments."""

    def take(self, indices: Numbers64) -> Numbers64:
        """Return the rows of indices: numbers over all files, int64 (N,).

        Args:
            indices: In [0, len(self)), int64 (N,).
        """
        return self._take(indices)

    def whole(self) -> slice | Numbers64:
        """Return all records, as an index into a column of all files."""
        return self._whole()

    def recipe(self) -> Any:
        """Return how the records were selected, ready for JSON.

        Equal results over the same files mean the same records.
        """
        return self._recipe()

    def fingerprint(self) -> str | None:
        """Return a short digest of `recipe()`; None for all records of the files in order."""
        if isinstance(self, All):
            return None
        return hashlib.sha256(json.dumps(self.recipe()).encode()).hexdigest()[:32]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _take(self, indices: Numbers64) -> Numbers64: ...

    @abstractmethod
    def _recipe(self) -> Any: ...

    def _whole(self) -> slice | Numbers64:
        return self.take(np.arange(len(self), dtype=np.int64))


class All(Rows):
    """Every record, in the order of the files."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def _take(self, indices: Numbers64) -> Numbers64:
        return indices

    def _recipe(self) -> Any:
        return ["all"]

    def _whole(self) -> slice:
        return slice(None)


class Span(Rows):
    """Every `step`-th record of another `Rows`, from `start` on."""

    def __init__(self, base: Rows, start: int, step: int, records: int) -> None:
        self._base, self._start, self._step, self._records = base, start, step, records

    def __len__(self) -> int:
        return self._records

    def _take(self, indices: Numbers64) -> Numbers64:
        return self._base.take(indices * self._step + self._start)

    def _recipe(self) -> Any:
        return ["span", self._start, self._step, self._records, self._base.recipe()]

    def _whole(self) -> slice | Numbers64:
        if not isinstance(self._base, All):
            return super()._whole()
        stop = self._start + self._step * self._records
        return slice(self._start, None if stop < 0 else stop, self._step)


class Numbers(Rows):
    """An array of rows: 8 bytes a record."""

    def __init__(self, numbers: Numbers64) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def _take(self, indices: Numbers64) -> Numbers64:
        return self._numbers[indices]

    def _recipe(self) -> Any:
        return ["numbers", len(self), digest(self._numbers)]

    def _whole(self) -> Numbers64:
        return self._numbers


class Permuted(Rows):
    """Another `Rows` in an order drawn from a seed; needs no memory per record."""

    def __init__(self, base: Rows, seed: int) -> None:
        self._base, self._seed = base, seed

    def __len__(self) -> int:
        return len(self._base)

    def _take(self, indices: Numbers64) -> Numbers64:
        return self._base.take(split_order(len(self), self._seed, indices))

    def _recipe(self) -> Any:
        return ["permuted", self._seed, self._base.recipe()]


class _Found(Rows):
    """Records found by reading a column.

    The numbers are cached, but not pickled: an unpickling process finds them again.
    """

    _rows: Numbers64 | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    @abstractmethod
    def _find(self) -> Numbers64:
        """Return the rows, int64 (N,)."""

    def _found(self) -> Numbers64:
        if self._rows is None:
            self._rows = self._find()
        return self._rows

    def __len__(self) -> int:
        return len(self._found())

    def _take(self, indices: Numbers64) -> Numbers64:
        return self._found()[indices]

    def _whole(self) -> Numbers64:
        return self._found()


class Filtered(_Found):
    """Records of another `Rows` whose field meets a condition, in order."""

    def __init__(self, base: Rows, columns: Columns, condition: Condition) -> None:
        self._base, self._columns, self._condition = base, columns, condition

    def _find(self) -> Numbers64:
        mask = self._columns.mask(self._condition, self._base.whole())
        kept = np.flatnonzero(mask).astype(np.int64, copy=False)
        return self._base.take(kept)

    def _recipe(self) -> Any:
        return ["filtered", self._condition.recipe(), self._columns.recipe(self._condition.field), self._base.recipe()]


class Strata:
    """Records divided into parts so that each part has its share of every value of a field.

    The records of each value are put in an order drawn from the seed. The first part takes its
    share, the second takes its share of the rest, and so on. Shares are rounded so that each part
    has exactly the requested size, and less than one record of a value more or less than its share.
    """

    def __init__(self, base: Rows, columns: Columns, field: str, sizes: Sequence[int], seed: int) -> None:
        self.base, self.columns, self.field, self.sizes, self.seed = base, columns, field, tuple(sizes), seed
        self._parts: list[Numbers64] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": None}

    def parts(self) -> list[Numbers64]:
        """Return each part's rows, in `base` order, int64 (size,)."""
        if self._parts is None:
            self._parts = self._deal()
        return self._parts

    def _deal(self) -> list[Numbers64]:
        if not len(self.base):
            return [np.empty(0, np.int64) for _ in self.sizes]
        values = self.columns.values(self.field, self.base.whole())
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        # Sorted by value; equal values keep their order.
        members = np.split(np.argsort(inverse.reshape(-1), kind="stable"), np.cumsum(counts)[:-1])
        mixed = [
            own[permute(len(own), self.seed, SPLIT_EPOCH - 1 - stratum, np.arange(len(own), dtype=np.int64))]
            for stratum, own in enumerate(members)
        ]
        parts: list[Numbers64] = []
        done: Numbers64 = np.zeros(len(counts), np.int64)
        for take in _shares(counts, self.sizes):
            chosen = [own[start : start + n] for own, start, n in zip(mixed, done, take, strict=True)]
            parts.append(self.base.take(np.sort(np.concatenate(chosen)).astype(np.int64, copy=False)))
            done = done + take
        return parts


def _shares(counts: Numbers64, sizes: Sequence[int]) -> Numbers64:
    """Return how many records of each value each part takes, int64 (parts, values).

    Each differs by less than one from the exact share, and the sums are the counts and the sizes.

    Args:
        counts: Records of each value, int64 (values,).
        sizes: Records of each part; their sum is that of `counts`.
    """
    shares: Numbers64 = np.zeros((len(sizes), len(counts)), np.int64)
    left = counts
    # Python integers: the products may exceed 64 bits.
    for share, size in zip(shares, sizes, strict=True):
        rest = max(1, int(left.sum()))
        ends = [total * size // rest for total in np.cumsum(left).tolist()]
        share[:] = np.diff([0, *ends])
        left = left - share
    total = int(counts.sum())
    low = np.array([[count * size // total for count in counts.tolist()] for size in sizes], np.int64)
    high = np.array([[-(-count * size // total) for count in counts.tolist()] for size in sizes], np.int64)
    # A share of the rest may round what was rounded before. Only such splits change.
    while ((shares < low) | (shares > high)).any():
        _improve(shares, low, high)
    return shares


def _improve(shares: Numbers64, low: Numbers64, high: Numbers64) -> None:
    """Move records around a circle of parts, so that fewer are outside the bounds; sums stay.

    Such a circle exists: the exact shares lie within the bounds and have the same sums, so whole
    numbers exist that do too (flows in networks), and the way to them consists of circles.

    Args:
        shares: Changed in place, int64 (parts, values).
        low: The lower bounds, int64 (parts, values).
        high: The upper bounds, int64 (parts, values).
    """
    # How many more are outside the bounds with one record more, and with one less: 1, 0 or -1.
    more = np.where(shares >= high, 1, np.where(shares < low, -1, 0))
    less = np.where(shares <= low, 1, np.where(shares > high, -1, 0))
    # The cost of the best value to move from one part to another.
    cost = np.array([(one + more).min(axis=1) for one in less])
    np.fill_diagonal(cost, 0)
    # Bellman and Ford: paths that still become cheaper after as many rounds as parts contain a circle.
    parts = range(len(shares))
    distance, before = np.zeros(len(parts), np.int64), np.arange(len(parts))
    changed = before
    for _ in parts:
        paths = distance[:, None] + cost
        shortest = paths.min(axis=0)
        changed = np.flatnonzero(shortest < distance)
        before[changed] = paths.argmin(axis=0)[changed]
        distance = shortest
    part = int(changed[0])
    for _ in parts:
        part = int(before[part])
    circle = [part]
    while (part := int(before[part])) != circle[0]:
        circle.append(part)
    moves = list(zip([*circle[1:], circle[0]], circle, strict=True))
    values = [np.flatnonzero(less[origin] + more[to] == cost[origin, to]) for origin, to in moves]
    # Different values go the same way at once: each changes by one at most, so the costs add up.
    count = min(map(len, values))
    for (origin, to), chosen in zip(moves, values, strict=True):
        shares[origin, chosen[:count]] -= 1
        shares[to, chosen[:count]] += 1


class Stratum(_Found):
    """One part of `Strata`."""

    def __init__(self, strata: Strata, part: int) -> None:
        self._strata, self._part = strata, part

    def __len__(self) -> int:
        return self._strata.sizes[self._part]

    def _find(self) -> Numbers64:
        return self._strata.parts()[self._part]

    def _recipe(self) -> Any:
        strata = self._strata
        source = strata.columns.recipe(strata.field)
        return ["stratum", self._part, strata.field, source, list(strata.sizes), strata.seed, strata.base.recipe()]


class Joined(Rows):
    """Several `Rows` in sequence; each covers a run of files that begins at its own offset."""

    def __init__(self, parts: Sequence[tuple[int, Rows]]) -> None:
        self._parts = tuple(parts)

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._parts)

    def _take(self, indices: Numbers64) -> Numbers64:
        ends = np.cumsum([len(rows) for _, rows in self._parts])
        which = np.searchsorted(ends, indices, side="right")
        found = np.empty(len(indices), np.int64)
        for part in np.unique(which).tolist():
            offset, rows = self._parts[part]
            places = np.flatnonzero(which == part)
            found[places] = rows.take(indices[places] - (int(ends[part - 1]) if part else 0)) + offset
        return found

    def _recipe(self) -> Any:
        return ["joined", *([offset, rows.recipe()] for offset, rows in self._parts)]

    def shifted(self, offset: int) -> list[tuple[int, Rows]]:
        """Return the parts with the first file moved to an offset."""
        return [(start + offset, rows) for start, rows in self._parts]


def span(base: Rows, numbers: range) -> Rows:
    """Return a run of another `Rows`; numbers are in [0, len(base))."""
    if numbers == range(len(base)):
        return base
    if isinstance(base, Span):
        start, step = base._start + base._step * numbers.start, base._step * numbers.step
        return Span(base._base, start, step, len(numbers))
    return Span(base, numbers.start, numbers.step, len(numbers))


def joined(parts: Sequence[tuple[int, Rows]]) -> Rows:
    """Return several `Rows` one after the other."""
    flat: list[tuple[int, Rows]] = []
    for offset, rows in parts:
        flat += rows.shifted(offset) if isinstance(rows, Joined) else [(offset, rows)]
    end = 0
    for offset, rows in flat:
        if not isinstance(rows, All) or offset != end:
            return Joined(flat)
        end += len(rows)
    return All(end)
