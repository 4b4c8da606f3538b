"""Which records each part of a split gets: one rule, for views of a data set and for files.

Pure functions; they read no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastrecord._core import permute
from fastrecord.checks import WORD, integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# No run reaches this epoch, so a split is unrelated to the order of any training epoch.
SPLIT_EPOCH = WORD - 1


def split_order(records: int, seed: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return records of the split order at some positions, int64 (N,).

    The first part has positions [0, its size); each later part has the positions after it.
    """
    return permute(records, seed, SPLIT_EPOCH, positions)


def part_sizes(records: int, parts: int | Sequence[float]) -> list[int]:
    """Return the sizes of the parts, whose sum is `records`.

    Args:
        records: Number of records to split.
        parts: A number of equal parts: the first ones get one more record each if the division
            leaves a remainder. Or sizes: ints whose sum is `records`. Or fractions whose sum is 1,
            rounded as in torch's `random_split`: rounded down, and the remaining records go one by
            one to the first parts.

    Raises:
        TypeError, ValueError: `parts` is none of these.
    """
    if not isinstance(parts, Sequence) or isinstance(parts, (str, bytes)):
        if isinstance(parts, float) and 0 < parts < 1:
            raise TypeError(f"parts is a list of shares: write [{parts:g}, {1 - parts:g}], not {parts!r}")
        number = integer("parts", parts, 1)
        return [records // number + (part < records % number) for part in range(number)]
    if not parts:
        raise ValueError("parts is empty: give at least one share")
    if all(isinstance(part, int) and not isinstance(part, bool) for part in parts):
        sizes = [integer("a part", part, 0) for part in parts]
        # [1] is a fraction: the whole. For a data set of one record it is also a size.
        if sum(sizes) == records:
            return sizes
        if sizes != [1]:
            raise ValueError(
                f"parts have {sum(sizes)} records together, the data set has {records}: leave none out, or give "
                "fractions"
            )
    if not all(_is_share(part) for part in parts):
        raise TypeError(f"parts are fractions or numbers of records, each at least 0, not {list(parts)!r}")
    whole = math.fsum(parts)
    if abs(whole - 1) > 1e-6:
        raise ValueError(
            f"parts sum up to {whole:g}, not to 1: each record is in one part, so name the rest as a part too"
        )
    sizes, left = [], records
    for part in parts:
        sizes.append(min(math.floor(records * part), left))
        left -= sizes[-1]
    return [size + left // len(sizes) + (number < left % len(sizes)) for number, size in enumerate(sizes)]


def _is_share(part: Any) -> bool:
    return isinstance(part, (int, float)) and math.isfinite(part) and part >= 0
