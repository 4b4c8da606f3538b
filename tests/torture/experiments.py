"""All experiments, those of the first promise first."""

from __future__ import annotations

from tests.torture.experiment import Experiment

EXPERIMENTS: list[Experiment] = []
