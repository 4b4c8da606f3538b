"""torchrun on several nodes: namespaces with a network between them. Processes and nodes that end.

As a program it is the trainer, which also reports the records of each step that it finishes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastrecord.train import TrainConfig, train
from fastrecord.train.__main__ import main
from fastrecord.train.engine import _Run
from fastrecord.train.learner import Learner
from tests.support.machines.nodes import Network, network, why_not
from tests.support.training import MODEL, losses, numbers_of, read_until, running, write_numbered

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.ddp,
    pytest.mark.slow,
    # Each start imports torch once for each process: minutes on busy cores.
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=f"no nodes: {why_not()}"),
]

RECORDS, GLOBAL_BATCH, EPOCHS = 144, 12, 2
STEPS = RECORDS // GLOBAL_BATCH
# How soon torchrun gives a silent node up, and how long it waits for another one to join.
CONF = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=4"
# Each start has a store of its own: nobody finds addresses of the one before.
ELASTIC = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def options(folder: Path) -> dict[str, Any]:
    return {
        "train": str(folder / "train.frec"),
        "out": folder / "out",
        "model": MODEL,
        "epochs": EPOCHS,
        "global_batch": GLOBAL_BATCH,
        "batch_size": 6,
        "image_size": 32,
        "augment": "none",
        "threads": 1,
        "device": "cpu",
        "print_freq": 1,
        "checkpoint_every": 3,
    }


class Witness:
    """Reports the records of each finished step of the trainer in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[dict[str, Any]] = []
        self.step = -1
        seed_step, learn = _Run._seed_step, Learner.step

        def begin(run: _Run) -> None:
            self.step = run.step
            seed_step(run)

        def finish(learner: Learner, batches: Any, **options: Any) -> None:
            learn(learner, batches, **options)
            self.note([number for images, _ in batches for number in numbers_of(images)])

        monkeypatch.setattr(_Run, "_seed_step", begin)
        monkeypatch.setattr(Learner, "step", finish)

    def note(self, numbers: list[int]) -> None:
        self.rows.append({"step": self.step, "numbers": numbers})


class Speaker(Witness):
    """Reports through a named pipe, from a process under torchrun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pipe: str) -> None:
        super().__init__(monkeypatch)
        monkeypatch.setattr("fastrecord.train.engine.plot_metrics", lambda *_: False)
        self.pipe, self.lost = os.open(pipe, os.O_WRONLY), Path(pipe).with_name("lost")

    def note(self, numbers: list[int]) -> None:
        # Shorter than PIPE_BUF: the lines of several processes do not mix.
        known = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
        row = {"step": self.step, "numbers": numbers, **known}
        os.write(self.pipe, json.dumps(row).encode() + b"\n")
        # Alone before a node is lost: the other one is late. It must find a job that it can join.
        while row["WORLD_SIZE"] == 1 and not self.lost.exists():
            time.sleep(0.1)


class Job:
    """The trainer under torchrun on all nodes, each with one process."""

    def __init__(self, net: Network, folder: Path, *more: str) -> None:
        self.net, self.folder = net, folder
        pipe = folder / "seen"
        os.mkfifo(pipe)
        # Also for writing: it does not end when no process has it open.
        self.pipe = os.open(pipe, os.O_RDWR)
        given = options(folder)
        words = [given.pop("train"), *more]
        for name, value in given.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)} | ELASTIC
        self.agents = []
        for node in net.nodes:
            command = f"-m torch.distributed.run --nnodes 1:{len(net.nodes)} --nproc-per-node 1 --max-restarts 5"
            place = f"--rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id job --rdzv-conf {CONF}"
            with (folder / f"{node.name}.log").open("w") as log:
                self.agents.append(
                    node.popen(
                        *(sys.executable, *command.split(), *place.split()),
                        *("-m", "tests.train.test_many_nodes", pipe, *words, "--resume", "auto"),
                        stdout=log,
                        stderr=log,
                        env=environment,
                    )
                )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the reports until the first node's torchrun ends."""
        heard = b""
        while True:
            over = self.agents[0].poll() is not None
            while select.select([self.pipe], [], [], 0 if over else 0.2)[0]:
                heard += os.read(self.pipe, 1 << 16)
                *lines, heard = heard.split(b"\n")
                yield from map(json.loads, lines)
            if over:
                return

    def told(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-4000:]}" for path in sorted(self.folder.glob("*.log")))


SILENT = """
import os, signal, sys
import torch.distributed as dist
from fastrecord.train.distributed import start_ranks

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
with start_ranks("cpu", timeout=5) as ranks:
    ranks.agree(0)
    if rank == 1:
        print("silent", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        ranks.agree(0)
    except RuntimeError as error:
        print("gave up:", error, flush=True)
        os._exit(0)
"""


def test_a_process_waits_for_a_silent_one_as_long_as_timeout_says(tmp_path: Path) -> None:
    with (
        running("-c", SILENT, "1", tmp_path / "join") as silent,
        running("-c", SILENT, "0", tmp_path / "join") as first,
    ):
        read_until(silent, "silent")
        assert "imed out" in read_until(first, "gave up:")
        silent.kill()


def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the records of each global batch of a run in this process."""
    witness = Witness(monkeypatch)
    train(TrainConfig(**{**options(folder), "out": folder / "alone"}))
    return [sorted(row["numbers"]) for row in witness.rows]


def lose(kills: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on two nodes, kill a "process" or a "node" where it says so, and check that nothing else changes."""
    write_numbered(folder / "train.frec", RECORDS)
    seen: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    killed: list[str] = []
    last = None
    with network(2) as net:
        job = Job(net, folder)
        for row in job.rows():
            attempt = row["WORLD_SIZE"], row["MASTER_PORT"]
            seen[attempt][row["step"]] += row["numbers"]
            left = kills[len(killed) :]
            if not left or row["WORLD_SIZE"] < 2 or attempt == last or row["step"] < (4, 10)[len(killed)]:
                continue
            if left[0] == "process":
                (victim,) = [
                    number for number, values in net.nodes[1].processes().items() if values.get("RANK") is not None
                ]
                os.kill(victim, signal.SIGKILL)
            else:
                net.nodes[1].kill()
                (folder / "lost").touch()
            killed.append(left[0])
            last = attempt
        assert job.agents[0].wait() == 0, job.told()
    assert killed == [*kills], job.told()
    expected = undisturbed(folder, monkeypatch)
    assert len(expected) == EPOCHS * STEPS
    taken: dict[int, list[int]] = {}
    for (world_size, _), steps in seen.items():
        for step, numbers in steps.items():
            # A step that not all of them finished was taken again, after the last checkpoint.
            if len(numbers) == GLOBAL_BATCH:
                assert sorted(numbers) == expected[step], f"step {step} of {world_size} processes"
                taken[step] = sorted(numbers)
    assert [taken.get(step) for step in range(len(expected))] == expected
    assert {world_size for world_size, _ in seen} == {1, 2}
    assert list(losses(folder / "out")) == list(range(1, EPOCHS * STEPS + 1))


def test_a_node_is_killed_and_the_job_trains_on_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(["node"], tmp_path, monkeypatch)  # tests/torture/training/nodes.py also kills a process before


if __name__ == "__main__":
    Speaker(pytest.MonkeyPatch(), sys.argv.pop(1))
    main()
