"""All experiments, in the order of the promises."""

from __future__ import annotations

from tests.torture.cluster import ray_kills, ray_training
from tests.torture.core import core_tests, fuzz
from tests.torture.experiment import Experiment
from tests.torture.files import mapping, sigkill
from tests.torture.loaders import endings, leaks
from tests.torture.readers import readers
from tests.torture.stores import keys, small_caches, store_faults, store_kills
from tests.torture.training import leftovers, nodes, resume, resume_order

_MODULES = (
    *(sigkill, ray_kills, keys, readers, mapping, leaks, leftovers, store_kills, store_faults, small_caches),
    *(endings, resume, resume_order, nodes, ray_training),
)
EXPERIMENTS: list[Experiment] = sorted(
    [*core_tests.EXPERIMENTS, *fuzz.EXPERIMENTS, *(module.EXPERIMENT for module in _MODULES)],
    key=lambda experiment: experiment.promise,
)
