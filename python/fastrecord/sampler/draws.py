"""Draws with replacement: which record comes at a position, by weight or by class in turn.

Pure functions of (seed, epoch, position); only `make_draw` and `class_weights` read data.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrecord._core import draw_balanced, draw_mixed, draw_weighted
from fastrecord.checks import digest

if TYPE_CHECKING:
    from fastrecord.dataset.dataset import FastRecordDataset
    from fastrecord.dataset.mixture import Mixture


class Draw(Protocol):
    """A rule that draws records as a function of (seed, epoch, position) alone."""

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at positions, int64 (N,)."""

    def recipe(self) -> dict[str, Any]:
        """Return the parameters that identify the rule in states, ready for JSON."""


class Weighted:
    """Draws each record in proportion to its weight, independently of earlier draws.

    Args:
        weights: At least 0 and finite, (records,).
        records: Number of records.

    Raises:
        TypeError: not numbers.
        ValueError: the shape is wrong; a weight is negative, infinite or NaN; or all weights are 0.
    """

    def __init__(self, weights: ArrayLike, records: int) -> None:
        array = np.asarray(weights)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"weights are an array of numbers, not of dtype {array.dtype}")
        if array.shape != (records,):
            raise ValueError(f"weights are an array ({records},), one for each record, not of shape {array.shape}")
        array = array.astype(np.float64)
        bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
        if bad.size:
            raise ValueError(f"weights are at least 0 and finite, but record {bad[0]} has {array[bad[0]]}")
        with np.errstate(over="ignore"):
            # A sequential sum, not pairwise as in sum(): the same on every machine.
            self._cumulative: NDArray[np.float64] = np.cumsum(array)
        if not 0 < self._cumulative[-1] < np.inf:
            raise ValueError(f"weights have a finite sum above 0, not {self._cumulative[-1]}")
        self._digest = digest(array)

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at positions, int64 (N,)."""
        return draw_weighted(self._cumulative, seed, epoch, positions)

    def recipe(self) -> dict[str, Any]:
        """Return the parameters that identify the rule in states."""
        return {"kind": "weights", "digest": self._digest}


class Balanced:
    """Draws classes in turn: each class once in a round.

    No record of a class repeats before all records of the class have been drawn.

    Args:
        classes: The class of each record, numbers or str, (records,).
        records: Number of records.

    Raises:
        ValueError: the shape is wrong.
    """

    def __init__(self, classes: ArrayLike, records: int) -> None:
        array = np.asarray(classes)
        if array.shape != (records,):
            raise ValueError(f"balance is an array ({records},), the class of each record, not of shape {array.shape}")
        _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1).astype(np.int64, copy=False)
        self._by_class: NDArray[np.int64] = np.argsort(inverse, kind="stable").astype(np.int64, copy=False)
        self._ends = np.cumsum(counts).astype(np.uint64)
        self._digest = digest(inverse)

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at positions, int64 (N,)."""
        return self._by_class[draw_balanced(self._ends, seed, epoch, positions)]

    def recipe(self) -> dict[str, Any]:
        """Return the parameters that identify the rule in states."""
        return {"kind": "balance", "digest": self._digest}


class Mixed:
    """Draws from several sources by their shares.

    Args:
        mixture: The mixture of a data set that `fastrecord.mix` has made.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._ends, self._shares = np.array(mixture.ends, np.uint64), np.array(mixture.shares, np.uint64)

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at positions, int64 (N,)."""
        return draw_mixed(self._ends, self._shares, seed, epoch, positions)

    def recipe(self) -> dict[str, Any]:
        """Return the parameters that identify the rule in states."""
        return {"kind": "mix", "ends": list(self._mixture.ends), "shares": list(self._mixture.shares)}


def make_draw(data: Sized, weights: ArrayLike | None, balance: str | ArrayLike | None, shuffle: object) -> Draw | None:
    """Return the draw rule for a sampler's arguments; None if each record comes once.

    Raises:
        TypeError, ValueError: an argument has another type or shape, or they contradict each other.
        SchemaError: no such field.
    """
    if weights is not None and balance is not None:
        raise ValueError("weights and balance are two ways to draw records: give one of them")
    if weights is not None:
        return Weighted(weights, len(data))
    if balance is None:
        mixture = getattr(data, "mixture", None)
        return None if mixture is None or shuffle is False else Mixed(mixture)
    if isinstance(balance, str):
        column = getattr(data, "column", None)
        if column is None:
            raise TypeError(
                f"balance={balance!r} names a field, and {type(data).__name__} has none: give the class of each record"
            )
        balance = column(balance)
    return Balanced(balance, len(data))


def class_weights(dataset: FastRecordDataset, field: str | None = None) -> NDArray[np.float64]:
    """Return weights that draw every class equally often.

    A record's weight is records / (classes * records of its class).

    Args:
        dataset: Has a field of classes.
        field: Its name; by default the label field.

    Returns:
        For each record, float64 (len(dataset),); their mean is 1.

    Raises:
        AttributeError: the data set has no labels.
        SchemaError: no such field.
        ValueError: the field holds arrays.
    """
    values = dataset.targets if field is None else dataset.column(field)
    if values.ndim != 1:
        raise ValueError(f"a class is a number or a str, and each label is an array of shape {values.shape[1:]}")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    weights: NDArray[np.float64] = len(values) / (len(counts) * counts[inverse.reshape(-1)])
    return weights
