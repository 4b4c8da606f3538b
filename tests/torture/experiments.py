"""All experiments, in the order of the promises."""

from __future__ import annotations

from tests.torture import (
    corruption,
    crashes,
    endings,
    fuzz,
    leaks,
    leftovers,
    mapping,
    readers,
    resume,
    resume_order,
    sanitizers,
    sigkill,
    soak,
    threads,
)
from tests.torture.experiment import Experiment

EXPERIMENTS: list[Experiment] = [
    crashes.CRASH_STATES,
    sigkill.SIGKILL,
    crashes.FAULTS,
    corruption.BITS,
    corruption.PAGES,
    corruption.REPAIRS,
    *fuzz.EXPERIMENTS,
    sanitizers.MIRI,
    sanitizers.VALGRIND,
    readers.EXPERIMENT,
    mapping.EXPERIMENT,
    leaks.EXPERIMENT,
    soak.EXPERIMENT,
    leftovers.EXPERIMENT,
    threads.RANDOM_SCHEDULES,
    threads.EVERY_SCHEDULE,
    sanitizers.TSAN,
    endings.EXPERIMENT,
    resume.EXPERIMENT,
    resume_order.EXPERIMENT,
]
