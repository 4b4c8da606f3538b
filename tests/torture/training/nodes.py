"""The trainer under torchrun on two nodes: a process is killed, then a node. The records stay the same.

Needs root, or unprivileged user namespaces.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from tests.torture.experiment import Experiment, Outcome, Rounds


def run(count: int) -> Outcome:
    """Run so many jobs, in this process and its children."""
    from tests.train.test_many_nodes import lose

    torch.set_num_threads(1)
    rounds = Rounds()
    for number in rounds.until(count, "jobs"):
        patch = pytest.MonkeyPatch.context()
        with tempfile.TemporaryDirectory() as folder, patch as monkeypatch, rounds.trial(f"job {number}"):
            lose(["process", "node"], Path(folder), monkeypatch)
    return rounds.outcome("each by a killed process and a killed node")


EXPERIMENT = Experiment(
    *("nodes", 9, "jobs on two nodes", 1, 20, run),
    where="tests/torture/training/nodes.py, tests/train/test_many_nodes.py",
    apart=True,
    in_tests=False,  # tests/train/test_many_nodes.py kills a node
)
