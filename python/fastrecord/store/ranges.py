"""Ranges: (offset, length) of runs of bytes of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranges: TypeAlias = list[tuple[int, int]]
Numbers: TypeAlias = NDArray[np.int64]


def merged(pairs: Numbers, gap: int) -> Ranges:
    """Return ranges in order, with those that are at most `gap` bytes apart as one."""
    if len(pairs) < 2:  # often, and the rest takes time
        return [(start, length) for start, length in pairs.tolist()]
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    starts, ends = pairs[:, 0], np.maximum.accumulate(pairs[:, 0] + pairs[:, 1])
    cuts = np.flatnonzero(starts[1:] > ends[:-1] + gap) + 1
    firsts, lasts = np.r_[0, cuts], np.r_[cuts, len(pairs)] - 1
    return [(int(start), int(end - start)) for start, end in zip(starts[firsts], ends[lasts], strict=True)]


def grouped(parts: Numbers, gap: int, most: int) -> list[Numbers]:
    """Return positions in `parts` in groups: of neighbours, no more than `gap` bytes apart and about `most` bytes.

    Args:
        parts: The offset and length of values, and whatever else, int64 (N, 2 or more).
        gap: Bytes between two neighbours of a group at most.
        most: Bytes of a group, without the end of its last value.
    """
    order = np.argsort(parts[:, 0], kind="stable")
    starts = parts[order, 0]
    ends = np.maximum.accumulate(starts + parts[order, 1])
    apart = np.r_[True, starts[1:] > ends[:-1] + gap]
    piece = (starts - np.maximum.accumulate(np.where(apart, starts, 0))) // most
    cuts = np.flatnonzero(apart[1:] | (piece[1:] != piece[:-1])) + 1
    return np.split(order, cuts)


def total(ranges: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of ranges."""
    return sum(length for _, length in ranges)


def lacking(here: Ranges, wanted: Sequence[tuple[int, int]]) -> Ranges:
    """Return the ranges that do not lie within one of those that are here."""
    return [
        (offset, length)
        for offset, length in wanted
        if length and not any(start <= offset and offset + length <= start + size for start, size in here)
    ]
