"""`Rows`: which records a view has, in which order.

Computes rows on demand from how the view was made. Reads columns only to filter or
stratify.
"""

from __future__ import annotations

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

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: Numbers64) -> Numbers64:
        """Return the rows of indices: numbers over all files, int64 (N,).

        Args:
            indices: In [0, len(self)), int64 (N,).
        """

    @abstractmethod
    def recipe(self) -> Any:
        """Return how the records were selected, ready for JSON.

        Equal results over the same files mean the same records.
        """

    def whole(self) -> slice | Numbers64:
        """Return all records, as an index into a column of all files."""
        return self.take(np.arange(len(self), dtype=np.int64))

    @property
    def fingerprint(self) -> str | None:
        """A short digest of `recipe()`; None for all records of the files in order."""
        if isinstance(self, All):
            return None
        return digest(json.dumps(self.recipe()))


class All(Rows):
    """Every record, in the order of the files."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        return indices

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
        return ["all"]

    def whole(self) -> slice:
        """See `Rows.whole`."""
        return slice(None)


class Span(Rows):
    """Every `step`-th record of another `Rows`, from `start` on."""

    def __init__(self, base: Rows, start: int, step: int, records: int) -> None:
        self._base, self._start, self._step, self._records = base, start, step, records

    def __len__(self) -> int:
        return self._records

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        return self._base.take(indices * self._step + self._start)

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
        return ["span", self._start, self._step, self._records, self._base.recipe()]

    def whole(self) -> slice | Numbers64:
        """See `Rows.whole`."""
        if not isinstance(self._base, All):
            return super().whole()
        stop = self._start + self._step * self._records
        return slice(self._start, None if stop < 0 else stop, self._step)


class Numbers(Rows):
    """An array of rows: 8 bytes a record."""

    def __init__(self, numbers: Numbers64) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        return self._numbers[indices]

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
        return ["numbers", len(self), digest(self._numbers)]

    def whole(self) -> Numbers64:
        """See `Rows.whole`."""
        return self._numbers


class Permuted(Rows):
    """Another `Rows` in an order drawn from a seed; needs no memory per record."""

    def __init__(self, base: Rows, seed: int) -> None:
        self._base, self._seed = base, seed

    def __len__(self) -> int:
        return len(self._base)

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        return self._base.take(split_order(len(self), self._seed, indices))

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
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

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        return self._found()[indices]

    def whole(self) -> Numbers64:
        """See `Rows.whole`."""
        return self._found()


class Filtered(_Found):
    """Records of another `Rows` whose field meets a condition, in order."""

    def __init__(self, base: Rows, columns: Columns, condition: Condition) -> None:
        self._base, self._columns, self._condition = base, columns, condition

    def _find(self) -> Numbers64:
        mask = self._columns.mask(self._condition, self._base.whole())
        kept = np.flatnonzero(mask).astype(np.int64, copy=False)
        return self._base.take(kept)

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
        return ["filtered", self._condition.recipe(), self._columns.recipe(self._condition.field), self._base.recipe()]


class Strata:
    """Records divided into parts so that each part has its share of every value of a field.

    The records of each value are put in an order drawn from the seed, and each part takes its share
    of them, to within one record. Each part has exactly the requested size.
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
        values = self.columns.values(self.field, self.base.whole())
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        # The part of each record, value by value; equal values are in an order drawn from the seed.
        dealt = np.empty(len(self.base), np.int64)
        shares = _shares(counts, self.sizes)
        order = np.argsort(inverse.reshape(-1), kind="stable")
        for stratum, own in enumerate(np.split(order, np.cumsum(counts)[:-1]) if len(counts) else []):
            mixed = permute(len(own), self.seed, SPLIT_EPOCH - 1 - stratum, np.arange(len(own), dtype=np.int64))
            dealt[own[mixed]] = np.repeat(np.arange(len(self.sizes)), shares[:, stratum])
        return [self.base.take(np.flatnonzero(dealt == part)) for part in range(len(self.sizes))]


def _shares(counts: Numbers64, sizes: Sequence[int]) -> Numbers64:
    """Return how many records of each value each part takes, int64 (parts, values).

    Each is the exact share, rounded down, or one more; the sums are the counts and the sizes.

    Args:
        counts: Records of each value, int64 (values,).
        sizes: Records of each part; their sum is that of `counts`.
    """
    total = int(counts.sum())
    # Python integers: the products may exceed 64 bits.
    shares = np.array([[count * size // max(total, 1) for count in counts.tolist()] for size in sizes], np.int64)
    left = counts - shares.sum(axis=0)
    for share, size in zip(shares, sizes, strict=True):
        # Values with the most records left come first: then the last part finds what it needs.
        chosen = np.argsort(-left, kind="stable")[: size - int(share.sum())]
        share[chosen] += 1
        left[chosen] -= 1
    return shares


class Stratum(_Found):
    """One part of `Strata`."""

    def __init__(self, strata: Strata, part: int) -> None:
        self._strata, self._part = strata, part

    def __len__(self) -> int:
        return self._strata.sizes[self._part]

    def _find(self) -> Numbers64:
        return self._strata.parts()[self._part]

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
        strata = self._strata
        source = strata.columns.recipe(strata.field)
        return ["stratum", self._part, strata.field, source, list(strata.sizes), strata.seed, strata.base.recipe()]


class Joined(Rows):
    """Several `Rows` in sequence; each covers a run of files that begins at its own offset."""

    def __init__(self, parts: Sequence[tuple[int, Rows]]) -> None:
        self._parts = tuple(parts)

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._parts)

    def take(self, indices: Numbers64) -> Numbers64:
        """See `Rows.take`."""
        ends = np.cumsum([len(rows) for _, rows in self._parts])
        which = np.searchsorted(ends, indices, side="right")
        found = np.empty(len(indices), np.int64)
        for part in np.unique(which).tolist():
            offset, rows = self._parts[part]
            places = np.flatnonzero(which == part)
            found[places] = rows.take(indices[places] - (int(ends[part - 1]) if part else 0)) + offset
        return found

    def recipe(self) -> Any:
        """See `Rows.recipe`."""
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
