"""examples/ray_train.py: a run that loses a worker ends with the weights of one that loses none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.support.cluster import VARIABLES, short_folder
from tests.support.nodes import network, why_not
from tests.support.training import write_numbered
from tests.torture.processes import descendants, environment

pytestmark = [pytest.mark.slow, pytest.mark.ddp, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
RECORDS, BATCH, WORKERS, EPOCHS, EVERY = 96, 4, 2, 2, 5
# Nodes on a network, not only loopback.
REAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
STEPS = EPOCHS * RECORDS // (BATCH * WORKERS)


@pytest.fixture
def short() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    folder.mkdir()
    write_numbered(folder / "a.frec", RECORDS)
    fr.set_metadata(folder / "a.frec", classes=["a", "b", "c", "d"])
    return folder


def words(data: Path, out: Path, name: str, *more: str) -> list[str]:
    given = f"--out {out} --name {name} --workers {WORKERS} --model tiny --epochs {EPOCHS} --batch-size {BATCH}"
    rest = f"--image-size 32 --threads 1 --checkpoint-every {EVERY} --deterministic"
    return ["examples/ray_train.py", str(data), *given.split(), *rest.split(), *more]


def variables(short: Path, **more: str) -> dict[str, str]:
    return environment(**VARIABLES | {"RAY_TMPDIR": str(short)} | more)


def train(command: list[str], short: Path, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run the example; return its last metrics."""
    with (short / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=variables(short), stdout=subprocess.PIPE, stderr=log, text=True
        )
    with process:
        try:
            meanwhile()
            told = process.stdout.read() if process.stdout is not None else ""
            assert process.wait(120) == 0, (short / "log").read_text()[-4000:]
        finally:
            process.kill()
    found = json.loads(told.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def ranks() -> list[int]:
    """Return the processes of Ray Train's workers in the cluster that this process runs."""
    found = []
    for number, _ in descendants(os.getpid()):
        try:
            name = Path(f"/proc/{number}/cmdline").read_text()
        except OSError:
            continue
        if name.startswith("ray::") and "TrainWorker" in name:
            found.append(number)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # Ray's own
def test_a_run_that_loses_a_worker_ends_as_one_that_loses_none(
    data: Path, tmp_path: Path, short: Path, address: str
) -> None:
    out = tmp_path / "out"
    whole = train(words(data, out, "whole", "--address", address), short)
    assert whole["step"] == STEPS

    def kill() -> None:
        wait_for(lambda: list(out.glob("killed/checkpoint*/state.pt")))
        os.kill(ranks()[0], signal.SIGKILL)

    killed = train(words(data, out, "killed", "--address", address), short, kill)
    assert killed == whole


@contextmanager
def two_raylets(short: Path) -> Iterator[tuple[Any, str]]:
    with network(2) as net:
        first, second = net.nodes
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--num-cpus=1",
            "--disable-usage-stats",
            "--block",
        ]
        start += ["--object-store-memory=150000000"]
        address = f"{first.address}:6379"
        own = variables(short, **REAL)
        alone = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={short}/r"]
        with (short / "head").open("w") as log:
            first.popen(
                *start,
                *alone,
                f"--node-ip-address={first.address}",
                stdout=log,
                stderr=log,
                env=own,
            )
        wait_for(lambda: "Ray runtime started" in (short / "head").read_text())
        with (short / "other").open("w") as log:
            second.popen(
                *(*start, f"--address={address}", f"--node-ip-address={second.address}"),
                stdout=log, stderr=log, env=own,
            )  # fmt: skip
        wait_for(lambda: "Ray runtime started" in (short / "other").read_text())
        yield net, address


@pytest.mark.skipif(why_not() is not None, reason=f"no nodes: {why_not()}")
def test_two_raylets_in_two_networks_train_one_model(data: Path, tmp_path: Path, short: Path) -> None:
    with two_raylets(short) as (net, address), (short / "log").open("w") as log:
        process = net.nodes[0].popen(
            *(sys.executable, *words(data, tmp_path / "out", "two", "--address", address)),
            stdout=subprocess.PIPE,
            stderr=log,
            env=variables(short, **REAL, GLOO_SOCKET_IFNAME="eth0"),
        )
        with process:
            told = process.stdout.read() if process.stdout is not None else ""
            assert process.wait(120) == 0, (short / "log").read_text()[-4000:]
        assert json.loads(told.splitlines()[-1])["step"] == STEPS
