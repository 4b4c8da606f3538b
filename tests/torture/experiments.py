"""All experiments, those of the first promise first."""

from __future__ import annotations

from tests.torture import leaks, leftovers, readers, resume, resume_order, soak
from tests.torture.experiment import Experiment

EXPERIMENTS: list[Experiment] = [
    readers.EXPERIMENT,
    leaks.EXPERIMENT,
    soak.EXPERIMENT,
    leftovers.EXPERIMENT,
    resume.EXPERIMENT,
    resume_order.EXPERIMENT,
]
