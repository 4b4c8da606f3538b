"""`Mixture`: the shares of the data sets that `mix` has put together."""

from __future__ import annotations

from typing import NamedTuple


class Mixture(NamedTuple):
    """How draws are divided among the sources of a mix.

    Attributes:
        ends: For each source, the records up to its end.
        shares: For each source, the sum of the shares up to and including its own, in whole numbers.
    """

    ends: tuple[int, ...]
    shares: tuple[int, ...]
