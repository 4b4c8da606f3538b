"""`mix`: several data sets as one, from which a sampler draws by shares."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from typing import Any

from fastrecord.dataset.dataset import FastRecordDataset, concat
from fastrecord.dataset.mixture import Mixture

# The largest sum of the whole numbers that shares become.
_MOST = 1 << 16


def mix(shares: Mapping[str | os.PathLike[str] | FastRecordDataset, float], **options: Any) -> FastRecordDataset:
    """Return the records of several data sets as one, to be drawn by shares.

    `fr.mix({"a/": 0.7, "b/": 0.3})`: of the records that `FastRecordBatchSampler` draws, 70 % are of
    the first, whatever the numbers of records. The shares hold for every 64 draws, to one draw, and
    those are in random order. In each epoch, no record of a source comes again before all of that
    source have come. An epoch has as many draws as there are records in all, unless the sampler has
    `num_samples`. It resumes and divides among ranks like every order.

    The result is the concatenation of the data sets. Other samplers, and views of it, know no shares.

    Args:
        shares: Data set, or what `FastRecordDataset` opens -> its share, at least 0. Shares are
            relative to their sum. They become whole numbers: 7 and 3 of 0.7 and 0.3. If the sum of
            these would be above 65,536, they are rounded to that sum.
        options: Arguments of `FastRecordDataset` for what is opened here.

    Raises:
        TypeError: a share is not a number. ValueError: no share is above 0, or one is not finite or
            below 0; a data set with a share is empty.
        SchemaError: the data sets have different fields, or their classes cannot be matched.
    """
    given: object = shares
    if not isinstance(given, Mapping) or not given:
        raise TypeError('shares are a dict such as {"a/": 0.7, "b/": 0.3}')
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise TypeError(f"the share of {name} is a number, not {share!r}")
        if not (math.isfinite(share) and share >= 0):
            raise ValueError(f"the share of {name} is {share}: it is at least 0, and finite")
    # The text of a float is the intended decimal.
    exact = [Fraction(str(share)) for share in shares.values()]
    if not any(exact):
        raise ValueError("the shares are all 0")
    sets = [one if isinstance(one, FastRecordDataset) else FastRecordDataset(one, **options) for one in shares]
    for source, share in zip(sets, shares.values(), strict=True):
        if share and not len(source):
            raise ValueError(f"{source.root}: it has a share of {share}, but no records")
    whole = _whole([share / sum(exact) for share in exact])
    made: FastRecordDataset = concat(*sets)
    made.mixture = Mixture(tuple(accumulate(map(len, sets))), tuple(accumulate(whole)))
    return made


def _whole(shares: list[Fraction]) -> list[int]:
    """Return the smallest whole numbers in proportion to shares whose sum is 1.

    If their sum would be too large, the largest remainders are rounded up.
    """
    total = min(math.lcm(*(share.denominator for share in shares)), _MOST)
    counts = [int(share * total) for share in shares]
    rest = sorted(range(len(shares)), key=lambda at: counts[at] - shares[at] * total)
    for at in rest[: total - sum(counts)]:
        counts[at] += 1
    return counts
