"""`Draw`: which record comes at a position by weight, by class in turn, by the shares of a mix, or repeatedly.

Pure functions of (seed, epoch, position); only `make_draw` and `class_weights` read data.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrecord._core import draw_balanced, draw_mixed, draw_weighted, permute
from fastrecord.checks import digest

if TYPE_CHECKING:
    from fastrecord.dataset.dataset import FastRecordDataset


@dataclass(frozen=True)
class Draw:
    """A rule that draws records.

    Attributes:
        indices: (seed, epoch, positions) -> the indices at the positions, int64 (N,).
        recipe: The parameters that identify the rule in states, ready for JSON.
    """

    indices: Callable[[int, int, NDArray[np.int64]], NDArray[np.int64]]
    recipe: dict[str, Any]


def make_draw(data: Sized, weights: ArrayLike | None, balance: str | ArrayLike | None, shuffle: object) -> Draw | None:
    """Return the draw rule for a sampler's arguments; None if each record comes once.

    Raises:
        TypeError, ValueError: an argument has another type or shape, or they contradict each other.
        SchemaError: no such field.
    """
    if weights is not None and balance is not None:
        raise ValueError("weights and balance are two ways to draw records: give one of them")
    if weights is not None:
        return _by_weight(np.asarray(weights), len(data))
    if balance is None:
        mixture = getattr(data, "mixture", None)
        if mixture is None or shuffle is False:
            return None
        ends, shares = (np.array(numbers, np.uint64) for numbers in mixture)
        recipe = {"kind": "mix", "ends": list(mixture.ends), "shares": list(mixture.shares)}
        return Draw(partial(draw_mixed, ends, shares), recipe)
    if isinstance(balance, str):
        column = getattr(data, "column", None)
        if column is None:
            raise TypeError(
                f"balance={balance!r} names a field, and {type(data).__name__} has none: give the class of each record"
            )
        balance = column(balance)
    return _in_turns(np.asarray(balance), len(data))


def _by_weight(weights: NDArray[Any], records: int) -> Draw:
    """Draw each record in proportion to its weight, independently of earlier draws."""
    if weights.dtype.kind not in "biuf":
        raise TypeError(f"weights are an array of numbers, not of dtype {weights.dtype}")
    if weights.shape != (records,):
        raise ValueError(f"weights are an array ({records},), one for each record, not of shape {weights.shape}")
    weights = weights.astype(np.float64)
    bad = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if bad.size:
        raise ValueError(f"weights are at least 0 and finite, but record {bad[0]} has {weights[bad[0]]}")
    with np.errstate(over="ignore"):
        # A sequential sum, not pairwise as in sum(): the same on every machine.
        cumulative = np.cumsum(weights)
    if not 0 < cumulative[-1] < np.inf:
        raise ValueError(f"weights have a finite sum above 0, not {cumulative[-1]}")
    return Draw(partial(draw_weighted, cumulative), {"kind": "weights", "digest": digest(weights)})


def _in_turns(classes: NDArray[Any], records: int) -> Draw:
    """Draw classes in turn; no record of a class repeats before all records of the class have been drawn."""
    if classes.shape != (records,):
        raise ValueError(f"balance is an array ({records},), the class of each record, not of shape {classes.shape}")
    _, inverse, counts = np.unique(classes, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1).astype(np.int64, copy=False)
    by_class = np.argsort(inverse, kind="stable").astype(np.int64, copy=False)
    draw = partial(_drawn_in_turns, by_class, np.cumsum(counts).astype(np.uint64))
    return Draw(draw, {"kind": "balance", "digest": digest(inverse)})


def _drawn_in_turns(
    by_class: NDArray[np.int64], ends: NDArray[np.uint64], seed: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    return by_class[draw_balanced(ends, seed, epoch, positions)]


def repeated(draw: Draw | None, records: int, times: int) -> Draw | None:
    """Return the rule that gives each record of another order several times in a row.

    Args:
        draw: The rule of the other order; None for a permutation.
        records: Number of records.
        times: How often a record comes.
    """
    if times == 1:
        return draw
    indices = partial(permute, records) if draw is None else draw.indices
    recipe = {"kind": "repeat", "times": times, "of": None if draw is None else draw.recipe}
    return Draw(partial(_repeated, indices, times), recipe)


def _repeated(
    indices: Callable[[int, int, NDArray[np.int64]], NDArray[np.int64]],
    times: int,
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    return indices(seed, epoch, positions // times)


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
