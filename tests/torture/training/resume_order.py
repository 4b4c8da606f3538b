"""Samplers of many ranks stop and resume: their global batches equal an uninterrupted run's."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tests.support.resuming import Case, Files, problem
from tests.torture.experiment import Experiment, Outcome

_LISTED = 20


def run(count: int) -> Outcome:
    """Draw and check this many cases."""
    seed = 9 if count <= EXPERIMENT.short else secrets.randbits(32)
    rng = np.random.default_rng(seed)

    def pick(low: int, high: int) -> int:
        return int(rng.integers(low, high, dtype=np.uint64, endpoint=True))

    failures: list[str] = []
    stops = 0
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for number in tqdm(range(count), "resume-order", disable=None):
            case = Case.drawn(pick)
            stops += len(case.legs) - 1
            wrong = problem(case, files)
            if wrong is not None and len(failures) < _LISTED:
                failures.append(f"seed {seed}, case {number}: {wrong}: {case}")
    return Outcome(count, failures, f"seed {seed}; {stops:,} stops, each gone on on a number of ranks of its own")


EXPERIMENT = Experiment(
    name="resume-order",
    promise=9,
    what="interrupted epochs",
    where="tests/torture/training/resume_order.py, tests/support/resuming.py",
    short=100,
    long=200_000,
    run=run,
    in_tests=False,  # tests/sampler/test_resume_order.py draws cases of its own
)
