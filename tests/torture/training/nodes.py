"""The trainer under torchrun on two nodes: a process is killed, then a node. The records stay the same.

Needs root, or unprivileged user namespaces.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from tests.torture.experiment import Experiment, Outcome
from tests.torture.processes import apart, print_outcome


def run_here(count: int) -> Outcome:
    """Do everything in this process and its children."""
    from tests.train.test_many_nodes import lose

    torch.set_num_threads(1)
    failures = []
    for number in tqdm(range(count), unit="job", disable=None):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
            try:
                lose(["process", "node"], Path(folder), monkeypatch)
            except AssertionError as error:
                failures.append(f"job {number}: {error}")
    return Outcome(count, failures, "each by a killed process and a killed node")


def run(count: int) -> Outcome:
    """See the module docstring; runs in a child process."""
    return apart("training.nodes", count)


EXPERIMENT = Experiment(
    name="nodes",
    promise=9,
    what="jobs on two nodes",
    where="tests/torture/training/nodes.py, tests/train/test_many_nodes.py",
    short=1,
    long=20,
    run=run,
    in_tests=False,  # tests/train/test_many_nodes.py kills a node
)

if __name__ == "__main__":
    print_outcome(run_here)
