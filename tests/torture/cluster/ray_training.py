"""examples/ray_train.py on two nodes in networks of their own; each run loses a worker of the other node.

What such a run must end with is computed here, by plain torch in one process. Needs root, or
unprivileged user namespaces.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fastrecord as fr
from tests.support.machines.cluster import VARIABLES, short_folder
from tests.support.machines.nodes import Network, network
from tests.support.training import CLASSES, write_marked
from tests.torture.apart import environment
from tests.torture.experiment import ROOT, Experiment, Outcome, Rounds

RECORDS, BATCH, WORKERS, EPOCHS, EVERY = 96, 4, 2, 2, 5
# Nodes on a network, not only loopback.
_REAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}


def write_data(folder: Path) -> Path:
    """Write a data set of one shard."""
    folder.mkdir()
    write_marked(folder / "a.frec", RECORDS)
    return folder


def words(data: Path, out: Path, name: str, address: str) -> list[str]:
    """Return the command that runs the example on a cluster."""
    given = f"--out {out} --name {name} --workers {WORKERS} --model tiny --epochs {EPOCHS} --batch-size {BATCH}"
    rest = f"--image-size 32 --threads 1 --checkpoint-every {EVERY} --deterministic --address {address}"
    return [sys.executable, "examples/ray_train.py", str(data), *given.split(), *rest.split()]


def unbroken(data: Path) -> dict[str, Any]:
    """Return the last metrics of a run that loses no worker: all ranks in this process, without Ray.

    The sum of two gradients is the same in any order, so the weights are those of two processes.
    torch must compute with one thread, as it does there.
    """
    import torch

    example = runpy.run_path(str(ROOT / "examples/ray_train.py"))
    dataset = fr.FastRecordDataset(data)
    loaders = [
        fr.FastRecordLoader(
            dataset,
            batch_sampler=fr.FastRecordBatchSampler(dataset, BATCH, drop_last=True, rank=rank, world_size=WORKERS),
            sample=[fr.transforms.RandomResizedCrop(32), fr.transforms.RandomHorizontalFlip()],
            threads=1,
            delivery=fr.Delivery(dtype=torch.float32),
        )
        for rank in range(WORKERS)
    ]
    torch.manual_seed(0)
    model = example["make_model"]("tiny", len(CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    step, losses = 0, [torch.zeros(())]
    for _ in range(EPOCHS):
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad(set_to_none=True)
            losses = [torch.nn.functional.cross_entropy(model(images), labels) for images, labels in batches]
            (sum(losses[1:], losses[0]) / WORKERS).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
    return {"step": step, "epoch": EPOCHS, "loss": losses[0].item(), "weights": example["digest"](model)}


def here(*command: str, **options: Any) -> subprocess.Popen[str]:
    """Start a program on this machine, in the project's folder."""
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def train(
    command: list[str],
    short: Path,
    meanwhile: Callable[[], None],
    start: Callable[..., subprocess.Popen[str]] = here,
    **variables: str,
) -> dict[str, Any]:
    """Run the example; return its last metrics.

    Raises:
        RuntimeError: it failed; the text is the end of what it said.
    """
    own = environment(**VARIABLES | {"RAY_TMPDIR": str(short)} | variables)
    with (short / "log").open("w") as log:
        process = start(*command, stdout=subprocess.PIPE, stderr=log, env=own)
    with process:
        try:
            meanwhile()
            told = process.stdout.read() if process.stdout is not None else ""
            if process.wait(120) != 0:
                raise RuntimeError((short / "log").read_text()[-4000:])
        finally:
            process.kill()
    found = json.loads(told.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    """Return the first result that is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.02)
    return found


def workers(processes: Any) -> list[int]:
    """Return the workers of Ray Train among processes, by their numbers."""
    found = []
    for number in processes:
        try:
            name = Path(f"/proc/{number}/cmdline").read_text()
        except OSError:
            continue
        if name.startswith("ray::") and "TrainWorker" in name:
            found.append(number)
    return found


def _has_started(log: Path) -> bool:
    return "Ray runtime started" in log.read_text()


@contextmanager
def _two_raylets(short: Path) -> Iterator[tuple[Network, str]]:
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--disable-usage-stats", "--block"]
    start += ["--object-store-memory=150000000"]
    with network(2) as net:
        head = f"{net.nodes[0].address}:6379"
        roles = (["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={short}/r"], [f"--address={head}"])
        for node, role in zip(net.nodes, roles, strict=True):
            told = short / node.name
            own = environment(**VARIABLES | {"RAY_TMPDIR": str(short)} | _REAL)
            with told.open("w") as log:
                node.popen(*start, *role, f"--node-ip-address={node.address}", stdout=log, stderr=log, env=own)
            wait_for(partial(_has_started, told))
        yield net, head


def run(count: int) -> Outcome:
    """Train so often, in this process and its children."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    rounds = Rounds()
    with short_folder() as short, _two_raylets(short) as (net, address):
        data, out = write_data(short / "train"), short / "out"
        expected = unbroken(data)
        for number in rounds.until(count, "runs"):
            name = f"run{number}"

            def kill(name: str = name) -> None:
                wait_for(lambda: list(out.glob(f"{name}/checkpoint*/state.pt")))
                os.kill(workers(net.nodes[1].processes())[0], signal.SIGKILL)

            command = words(data, out, name, address)
            found = train(command, short, kill, net.nodes[0].popen, **_REAL, GLOO_SOCKET_IFNAME="eth0")
            if found != expected:
                rounds.fail(f"{name}: ended with {found}, not {expected}")
    return rounds.outcome("weights are compared with those of plain torch")


EXPERIMENT = Experiment(
    *("ray-training", 9, "trainings on two nodes of a Ray cluster, each with a killed worker", 1, 10, run),
    apart=True,
    in_tests=False,  # tests/ray/test_ray_train.py does it with two workers on one node
)
