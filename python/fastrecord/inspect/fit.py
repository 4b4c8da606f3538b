"""The efficiency of a machine, fitted to rates that were observed on it. Makes no plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from fastrecord.inspect.model import Setup, step

LEAST = 0.5


def observed_rate(setup: Setup, gpus: int) -> float:
    """Return the model's images per second on another number of the setup's GPUs, without a page cache."""
    each = setup.gpus // setup.nodes
    return gpus * setup.batch / step(replace(setup, gpus=gpus, nodes=max(1, gpus // each))).total


def fit_observed(setup: Setup, observed: Mapping[int, float]) -> float:
    """Return the efficiency that fits images per second, by number of GPUs."""

    def loss(efficiency: float) -> float:
        tried = replace(setup, efficiency=efficiency)
        return sum(math.log(observed_rate(tried, gpus) / rate) ** 2 for gpus, rate in observed.items())

    return least(loss)


def least(loss: Callable[[float], float]) -> float:
    """Return the efficiency of the least loss, which has one valley, in steps of a thousandth."""
    low, high = round(1000 * LEAST), 1000
    while high - low > 2:
        third = max(1, (high - low) // 3)
        if loss((low + third) / 1000) < loss((high - third) / 1000):
            high -= third
        else:
            low += third
    return min((number / 1000 for number in range(low, high + 1)), key=loss)
