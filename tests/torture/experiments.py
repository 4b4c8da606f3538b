"""All experiments, those of the first promise first."""

from __future__ import annotations

from tests.torture import leaks, readers, resume, resume_order
from tests.torture.experiment import Experiment

EXPERIMENTS: list[Experiment] = [
    readers.EXPERIMENT,
    leaks.EXPERIMENT,
    resume.EXPERIMENT,
    resume_order.EXPERIMENT,
]
