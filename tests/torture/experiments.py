"""All experiments, in the order of the promises."""

from __future__ import annotations

from tests.torture.cluster import ray_kills, ray_training
from tests.torture.core import fuzz, sanitizers, seeded, threads
from tests.torture.experiment import Experiment
from tests.torture.files import mapping, sigkill
from tests.torture.loaders import endings, leaks
from tests.torture.readers import readers
from tests.torture.stores import keys, small_caches, store_faults, store_kills
from tests.torture.training import leftovers, nodes, resume, resume_order

EXPERIMENTS: list[Experiment] = [
    seeded.CRASH_STATES,
    sigkill.SIGKILL,
    ray_kills.EXPERIMENT,
    keys.EXPERIMENT,
    seeded.FAULTS,
    seeded.BITS,
    seeded.PAGES,
    seeded.REPAIRS,
    *fuzz.EXPERIMENTS,
    sanitizers.MIRI,
    sanitizers.VALGRIND,
    readers.EXPERIMENT,
    mapping.EXPERIMENT,
    leaks.EXPERIMENT,
    leftovers.EXPERIMENT,
    store_kills.EXPERIMENT,
    store_faults.EXPERIMENT,
    threads.RANDOM_SCHEDULES,
    threads.EVERY_SCHEDULE,
    small_caches.EXPERIMENT,
    sanitizers.TSAN,
    endings.EXPERIMENT,
    resume.EXPERIMENT,
    resume_order.EXPERIMENT,
    nodes.EXPERIMENT,
    ray_training.EXPERIMENT,
]
