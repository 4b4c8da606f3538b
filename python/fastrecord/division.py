"""How the records of a file are divided over several: by number, by size, or by shares at random."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader, permute, stored_bytes
from fastrecord.copies import PathLike, steps
from fastrecord.parts import Part, refuse_strays, shard_path

# What a file takes beside its records: pages of its own for start and end, and padding.
_FILE_BYTES = 64 << 10
# Fractions that are meant to be 1 in all, as floats are.
_ROUNDING = Fraction(1, 10**9)


def shares_of(fractions: Sequence[float | str | Fraction]) -> list[Fraction]:
    """Return the shares of the first file, the first two, and so on, exactly."""
    try:
        # A float's text is the decimal that was meant.
        exact = [share if isinstance(share, Fraction) else Fraction(str(share)) for share in fractions]
    except (ValueError, ZeroDivisionError) as err:
        raise ValueError(f"fractions are numbers between 0 and 1, not {list(fractions)}") from err
    if not exact or min(exact) <= 0 or sum(exact) > 1 + _ROUNDING:
        raise ValueError(f"fractions are above 0, and 1 in all at most, not {list(fractions)}")
    sums = [sum(exact[: i + 1], Fraction(0)) for i in range(len(exact))]
    if abs(sums[-1] - 1) <= _ROUNDING:
        sums[-1] = Fraction(1)
    return sums


def check_seed(seed: int) -> None:
    """Raise a ValueError for what is no seed, a TypeError for what is no int."""
    _check_int("seed", seed, " in [0, 2**64)")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is in [0, 2**64), not {seed}")


def check_count(name: str, value: int) -> None:
    """Raise a ValueError for less than 1, a TypeError for what is no int."""
    _check_int(name, value)
    if value < 1:
        raise ValueError(f"{name} is at least 1, not {value}")


def _check_int(name: str, value: object, allowed: str = "") -> None:
    try:
        operator.index(value)  # type: ignore[arg-type]  # that is what is asked
    except TypeError as err:
        raise TypeError(f"{name} is an int{allowed}, not {type(value).__name__}: {value!r}") from err


def choose(n: int, ends: Sequence[int], seed: int) -> NDArray[Any]:
    """Return for each record the number of its file; the number of files for those that are left out."""
    chosen = np.empty(n, np.min_scalar_type(len(ends)))
    for positions in steps(n):
        chosen[permute(n, seed, 0, positions)] = np.searchsorted(ends, positions, side="right")
    return chosen


def name_parts(out: PathLike | Sequence[PathLike], ends: Sequence[int]) -> list[Part]:
    """Give runs of records that end at `ends` the names of their files.

    Raises:
        ValueError: other names than files, or the same twice. FastRecordError: shards of another division lie there.
    """
    starts = [0, *ends[:-1]]
    if isinstance(out, (str, os.PathLike)):
        base = os.fspath(out)
        paths = [shard_path(base, i, len(ends)) for i in range(len(ends))]
    else:
        base, paths = "", [os.fspath(path) for path in out]
        if len(paths) != len(ends):
            raise ValueError(f"{len(paths)} names for {len(ends)} files")
        if len({os.path.realpath(path) for path in paths}) != len(paths):
            raise ValueError(f"names of new files are there twice: {', '.join(paths)}")
    parts = [Part(path, start, stop) for path, start, stop in zip(paths, starts, ends, strict=True)]
    if base:
        refuse_strays(base, parts)
    return parts


def ends_by_size(reader: Reader, limit: int) -> list[int]:
    """Return where runs end of which each makes a file of at most `limit` bytes, or has one record."""
    empty = _FILE_BYTES + len(repr(reader.metadata).encode())
    ends = []
    size = empty
    for positions in steps(len(reader)):
        first = int(positions[0])
        for number, record in enumerate(stored_bytes(reader, first, len(positions)).tolist(), first):
            # Of long runs a thousandth may be padding to pages.
            if size + record > limit - limit // 1000 and size > empty:
                ends.append(number)
                size = empty
            size += record
    return [*ends, len(reader)]
