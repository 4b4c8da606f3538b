"""`BatchInfo`: the identity of a batch, passed to transforms of whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import uniform
from fastrecord.checks import WORD, integer
from fastrecord.transforms.view_info import ViewInfo


@dataclass(frozen=True, slots=True, eq=False)
class BatchInfo:
    """Where the records of a batch come from, and random numbers for them.

    Attributes:
        seed: Seed of the order and the augmentation, in [0, 2**64).
        epoch: Number of the epoch, in [0, 2**64).
        positions: Position of each record in the epoch's order, int64 (B,), at least 0.
        rows: Index of each record in the data set, int64 (B,).
        views: Output of images -> the part of its sources that it shows, and the matrices that map them to
            it. Computed when they are first asked for; empty for batches without images.

    Raises:
        TypeError: positions or rows are not int64 arrays.
        ValueError: they are not one-dimensional or differ in length, or a number is out of range.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    views: Mapping[str, ViewInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, number in (("seed", self.seed), ("epoch", self.epoch)):
            integer(name, number, 0, WORD)
        for name, numbers in (("positions", self.positions), ("rows", self.rows)):
            dtype = getattr(numbers, "dtype", type(numbers).__name__)
            if dtype != np.int64:
                raise TypeError(f"{name} is an int64 array, not {dtype}")
            if numbers.ndim != 1 or len(numbers) != len(self.positions):
                raise ValueError(f"positions and rows have one number for each record: {name} is {numbers.shape}")

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.positions)

    def uniform(self, draws: int, *, stream: int = 0) -> NDArray[np.float64]:
        """Return random numbers for each record, uniform in [0, 1).

        A record's numbers are a function of (seed, epoch, position, stream) alone. They are the
        same for any number of threads and ranks, any batch size, and after a resume. A second call
        returns the same numbers, and a call with more draws starts with them. Use another stream
        for each independent use in the batch.

        Args:
            draws: Numbers for each record.
            stream: Separates independent uses, in [0, 2**64).

        Returns:
            float64 (B, draws), a new array.

        Raises:
            ValueError: more than 65,536 draws, or a position below 0.
            OverflowError: an argument below 0.
        """
        return uniform(self.seed, self.epoch, stream, self.positions, draws)
