"""examples/ray_train.py: a run that loses a worker ends with the weights of one that loses none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.machines.cluster import short_folder
from tests.torture.cluster.ray_training import train, unbroken, wait_for, words, workers, write_data
from tests.torture.processes import descendants

pytestmark = [pytest.mark.slow, pytest.mark.ddp]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # Ray's own
def test_a_run_that_loses_a_worker_ends_with_the_weights_of_plain_torch(tmp_path: Path, address: str) -> None:
    data, out = write_data(tmp_path / "train"), tmp_path / "out"

    def kill() -> None:
        wait_for(lambda: list(out.glob("killed/checkpoint*/state.pt")))
        own = workers(number for number, _ in descendants(os.getpid()))
        os.kill(own[0], signal.SIGKILL)

    with short_folder() as short:
        assert train(words(data, out, "killed", address), short, kill) == unbroken(data)
