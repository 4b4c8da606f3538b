"""All experiments, those of the first promise first."""

from __future__ import annotations

from tests.torture import resume, resume_order
from tests.torture.experiment import Experiment

EXPERIMENTS: list[Experiment] = [
    resume.EXPERIMENT,
    resume_order.EXPERIMENT,
]
