"""Samplers of many ranks stop and resume: their global batches equal an uninterrupted run's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tests.support.resuming import Case, Files, problem
from tests.torture.experiment import Experiment, Outcome, Rounds


def run(count: int) -> Outcome:
    """Draw and check this many cases."""
    rounds = Rounds(9 if count <= EXPERIMENT.short else None)
    rng = np.random.default_rng(rounds.seed)

    def pick(low: int, high: int) -> int:
        return int(rng.integers(low, high, dtype=np.uint64, endpoint=True))

    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for number in rounds.until(count, "cases"):
            case = Case.drawn(pick)
            rounds.counts["stops, each gone on on a number of ranks of its own"] += len(case.legs) - 1
            if (wrong := problem(case, files)) is not None:
                rounds.fail(f"case {number}: {wrong}: {case}")
    return rounds.outcome()


EXPERIMENT = Experiment(
    *("resume-order", 9, "interrupted epochs", 100, 200_000, run),
    where="tests/torture/training/resume_order.py, tests/support/resuming.py",
    in_tests=False,  # tests/sampler/test_resume_order.py draws cases of its own
)
