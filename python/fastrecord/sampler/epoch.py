"""`Epoch`: the order of one epoch, over all ranks, as a pure function of its position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import BlockOrder, permute
from fastrecord.sampler.blocks import Blocks
from fastrecord.sampler.draws import Draw


@dataclass(frozen=True)
class Epoch:
    """One epoch of a sampler, for all ranks together.

    Attributes:
        number: The epoch.
        seed: The sampler's seed.
        positions: Positions of its order; positions of batches beyond them wrap around.
        used: Positions of all its batches: more than `positions` if the last batch is filled up,
            fewer if it is left out.
        global_batch_size: Positions of a batch; the last one may have fewer.
        shuffle: As in the sampler; blocks have their numbers.
        draw: How records are drawn; None if each comes once.
    """

    number: int
    seed: int
    positions: int
    used: int
    global_batch_size: int
    shuffle: bool | Blocks
    draw: Draw | None

    @cached_property
    def blocks(self) -> BlockOrder | None:
        """The order by blocks; None with another shuffle."""
        if not isinstance(self.shuffle, Blocks):
            return None
        return BlockOrder(self.positions, self.block_records, self.shuffle.window or 1, self.seed, self.number)

    @property
    def block_records(self) -> int:
        """Neighbouring records of a block; 1 without blocks."""
        return (self.shuffle.records or 1) if isinstance(self.shuffle, Blocks) else 1

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the records at positions below `positions`, int64 (N,)."""
        if self.shuffle is False:
            return positions
        if self.draw is not None:
            return self.draw.indices(self.seed, self.number, positions)
        if self.blocks is not None:
            return self.blocks.rows(positions)
        return permute(self.positions, self.seed, self.number, positions)
