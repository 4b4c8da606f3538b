"""How training scales: ranks of torchrun on one node and on several, with networks of several rates.

The "nodes" are network namespaces of this machine (tests/support/machines/nodes.py), so all ranks
share its CPUs, its page cache and one file. The trainer's own parts take the steps: the native loader with one
thread a rank, DistributedDataParallel over gloo, ResNet-18. Rank r is pinned to CPU r modulo their
number, and its loader too, so decoding takes CPU time from the model; a GPU would not share. With
more ranks than CPUs the ideal line stays level: it is the rate of one rank times min(ranks, CPUs).

Each call takes some steps, and as many in which the gradients stay where they are (`no_sync`). The
parts of a step, on the slowest rank:

- data: waiting for the batch.
- compute: a step without exchange, less its wait for data. Ranks that share a CPU slow each other.
- all-reduce: what the exchange adds to a step. What hides behind the backward pass is not in it.

Read bytes and operations are the loader's: one `pread` an image, counted by the loader itself. They
come from the page cache. `disk` is what /proc/self/io counts as read from a disk.

benches/report/planned.py sets `fastrecord plan` beside the rows.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import fastrecord as fr
from benches.harness import Answer, Bench, Contender, Missing
from benches.support.pictures import sources
from tests.support.machines.nodes import NoNodesError, network, why_not

if TYPE_CHECKING:
    from fastrecord.train.batches.base import Batch, Batches

MODEL, BATCH, PIXELS, RECORDS = "resnet18", 32, 64, 1000
# Nodes, and ranks on each of them. All jobs of a contest stay alive, at 0.7 GB a rank.
ONE_NODE, SEVERAL = ((1, 1), (1, 2), (1, 4)), ((1, 1), (2, 1), (2, 2), (4, 1))
RATES = ("10gbit", "1gbit", "100mbit")
DELAY = "0.1ms"
# Seconds in which all ranks have to import torch and find each other, on a machine with few CPUs.
START = 300


class Job:
    """torchrun on some nodes, which waits for calls of `steps`."""

    version = f"fastrecord {fr.__version__}"

    def __init__(self, *, file: str, nodes: int, ranks: int) -> None:
        self._stack = ExitStack()
        atexit.register(self._stack.close)
        self._alone = nodes == 1
        # Seconds of a step, by rate.
        self._took: dict[str, float] = {}
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        heard = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        heard.bind(str(folder / "socket"))
        heard.listen(nodes * ranks)
        heard.settimeout(START)
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(ranks)]
        launch += ["--monitor-interval", "2"]
        work = ["-m", "benches.experiments.scaling", str(folder / "socket"), file]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if self._alone:
            process = subprocess.Popen([*launch, "--standalone", *work], stdout=sys.stderr, env=environment)
            self._stack.callback(end, process)
        else:
            if (why := why_not()) is not None:
                raise Missing(why)
            try:
                self._network = self._stack.enter_context(network(nodes))
            except NoNodesError as error:
                raise Missing(str(error)) from error
            place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29500", "--rdzv-id", "scaling"]
            for node in self._network.nodes:
                node.popen(*launch, *place, *work, stdout=sys.stderr, env=environment)
        self._ranks = [self._accept(heard) for _ in range(nodes * ranks)]
        self._parameters = self._told("describe")[0]["parameters"]

    def _told(self, request: str) -> list[Any]:
        """Return what each rank answers."""
        for rank in self._ranks:
            rank.write(f"{request}\n")
            rank.flush()
        answers = [rank.readline() for rank in self._ranks]
        if not all(answers):
            raise RuntimeError("a rank has ended")
        return [json.loads(answer) for answer in answers]

    def _accept(self, heard: socket.socket) -> TextIO:
        connection = self._stack.enter_context(heard.accept()[0])
        return self._stack.enter_context(connection.makefile("rw"))

    def steps(self, *, rate: str, seconds: float) -> dict[str, Any]:
        """Take steps for about so many seconds, with exchange and without, at least two of each.

        Args:
            rate: The rate of each node's link; one node has no network.
            seconds: How long.

        Returns:
            The parts of a step, and what was read.
        """
        delay = ""
        if self._alone:
            rate = ""
        else:
            self._network.limit(rate, DELAY)
            delay = f"delay {self._network.delay}"
        count = max(2, round(seconds / self._took[rate])) if rate in self._took else 2
        told = self._told(str(count))
        whole, plain = (max(one[name]["seconds"] for one in told) / count for name in ("exchange", "plain"))
        data, plain_data = (max(one[name]["waited"] for one in told) / count for name in ("exchange", "plain"))
        self._took[rate] = whole
        read = {name: sum(one["exchange"][name] for one in told) for name in ("bytes", "reads", "disk")}
        return {
            "images_per_second": len(told) * BATCH / whole,
            "step": whole,
            "data": data,
            "compute": plain - plain_data,
            "allreduce": max(0.0, whole - plain) if len(told) > 1 else 0.0,
            **{name: value / count / whole for name, value in read.items()},
            "parameters": self._parameters,
            "delay": delay,
        }


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a launcher whose ranks have been told to end."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()


def run(bench: Bench) -> None:
    """Measure all shapes at all rates, in turns."""
    file = make_file(bench.folder)
    contend(bench, file, ONE_NODE, ("",))
    contend(bench, file, *((SEVERAL, RATES) if bench.full else (SEVERAL[:3], RATES[:2])))


def contend(bench: Bench, file: Path, shapes: Sequence[tuple[int, int]], rates: Sequence[str]) -> None:
    """Measure shapes at each rate; one rank alone, which is among them, gives the ideal line."""
    contenders = [
        Contender(
            name_of(nodes, ranks),
            "benches.experiments.scaling:Job",
            {"file": str(file), "nodes": nodes, "ranks": ranks},
        )
        for nodes, ranks in shapes
    ]
    seconds = 2.0 if bench.full else 0.6
    with bench.contest(contenders) as contest:
        found = contest.rounds(
            "steps",
            rounds=bench.rounds * len(rates),
            warm_up=len(rates),
            arguments=lambda number: {"rate": rates[number % len(rates)], "seconds": seconds},
        )
        alone, cpus = name_of(1, 1), len(os.sched_getaffinity(0))
        if alone not in found:
            raise RuntimeError(f"{alone}: {contest.missing[alone]}")
        for turn, rate in enumerate(rates):
            case = f"training over a network of {words(rate)}" if rate else "training on one node"
            one = statistics.median(rates_of(found[alone][turn :: len(rates)]))
            for nodes, ranks in shapes:
                name = name_of(nodes, ranks)
                if name not in found:
                    bench.not_measured(case, name, contest.missing[name], unit="images/s")
                    continue
                answers, ideal = found[name][turn :: len(rates)], one * min(nodes * ranks, cpus)
                net = {"net": words(rate).replace(" ", "")} if nodes > 1 else {}
                row(bench, case, name, answers, ideal=ideal, nodes=nodes, ranks=nodes * ranks, **net)


def row(bench: Bench, case: str, name: str, answers: Sequence[Answer], *, ideal: float, **settings: Any) -> None:
    """Add the images/s of one shape at one rate; the parts of its step are medians of the rounds."""

    def median(part: str) -> float:
        return float(statistics.median(answer.value[part] for answer in answers))

    values = rates_of(answers)
    bench.row(
        case,
        name,
        "images/s",
        values,
        better="more",
        **settings,
        ideal=round(ideal, 1),
        efficiency=round(statistics.median(values) / ideal, 3),
        **{f"{part}_ms": round(1000 * median(part), 1) for part in ("step", "data", "compute", "allreduce")},
        read_mb_s=round(median("bytes") / 1e6, 2),
        reads_s=round(median("reads"), 1),
        disk_mb_s=round(median("disk") / 1e6, 2),
        model=f"{MODEL}, batch {BATCH}, {PIXELS} pixels",
        batch=BATCH,
        parameters=answers[0].value["parameters"],
        **({"delay": answers[0].value["delay"]} if answers[0].value["delay"] else {}),
    )


def rates_of(answers: Sequence[Answer]) -> list[float]:
    """Return the images/s of some calls."""
    return [float(answer.value["images_per_second"]) for answer in answers]


def name_of(nodes: int, ranks: int) -> str:
    """Return the name of a shape: "2 nodes x 1 rank"."""
    return f"{nodes} node{'s' if nodes > 1 else ''} x {ranks} rank{'s' if ranks > 1 else ''}"


def words(rate: str) -> str:
    """Return a rate of tc as people write it: "10 Gb/s"."""
    return rate.replace("gbit", " Gb/s").replace("mbit", " Mb/s")


def make_file(folder: Path) -> Path:
    """Pack the images, original JPEGs, into a file that all ranks read."""
    path = folder / f"scaling-{RECORDS}.frec"
    if not path.exists():
        images = sources()
        schema = fr.Schema({"image": fr.image(), "label": "int64"})
        with fr.Writer(path, schema, metadata={"classes": [str(number) for number in range(10)]}) as writer:
            for number in range(RECORDS):
                writer.append({"image": images[number % len(images)], "label": number % 10})
    return path


class Rank:
    """One process under torchrun: the trainer's loader and model."""

    def __init__(self, file: str, stack: ExitStack) -> None:
        import torch

        from fastrecord.train.batches.open import open_batches, open_on_all_ranks
        from fastrecord.train.config import TrainConfig
        from fastrecord.train.distributed import start_ranks
        from fastrecord.train.labels import class_names
        from fastrecord.train.learner import Learner
        from fastrecord.train.meters import TrainMeter
        from fastrecord.train.model import build_model

        torch.set_num_threads(1)
        config = TrainConfig(
            train=file, model=MODEL, batch_size=BATCH, image_size=PIXELS, threads=1, device="cpu", epochs=1
        )
        self._ranks = stack.enter_context(start_ranks("cpu"))
        dataset, _ = open_on_all_ranks(config, self._ranks)
        self._batches = open_batches(dataset, config, self._ranks, training=True)
        stack.callback(self._batches.close)
        self._learner = Learner(build_model(config, class_names(dataset)), config, self._ranks)
        self._meter = TrainMeter(self._ranks)
        self._drawn = endless(self._batches)

    def describe(self) -> dict[str, int]:
        """Return the number of trained parameters."""
        return {"parameters": sum(value.numel() for value in self._learner.module.parameters())}

    def measure(self, count: int) -> dict[str, dict[str, float]]:
        """Take steps with exchange, and as many without."""
        exchange = self._steps(count)
        ddp = self._learner._ddp
        if ddp is None:
            return {"exchange": exchange, "plain": exchange}
        with ddp.no_sync():
            return {"exchange": exchange, "plain": self._steps(count)}

    def _steps(self, count: int) -> dict[str, float]:
        waited, before, disk = 0.0, self._batches.stats(), disk_bytes()
        self._ranks.agree(0)
        start = time.perf_counter()
        for _ in range(count):
            asked = time.perf_counter()
            batch = next(self._drawn)
            waited += time.perf_counter() - asked
            self._ranks.agree(0)  # as the trainer does in each step
            # Weights stay as they are, on all ranks.
            self._learner.step([batch], learning_rate=0.0, meter=self._meter)
        self._ranks.agree(0)
        seconds = time.perf_counter() - start
        done = self._batches.stats()
        if before is None or done is None:
            raise RuntimeError("the loader counts nothing")
        read = done - before
        return {
            "seconds": seconds,
            "waited": waited,
            "bytes": read.bytes_read,
            "reads": read.reads,
            "disk": disk_bytes() - disk,
        }


def endless(batches: Batches) -> Iterator[Batch]:
    """Yield the batches of one epoch after the other."""
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def disk_bytes() -> int:
    """Return the bytes that this process has read from disks."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def serve(path: str, file: str) -> None:
    """Answer the job's calls from one rank, until it closes the connection."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["RANK"]) % len(cpus)]})
    with ExitStack() as stack:
        rank = Rank(file, stack)
        connection = stack.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(path)
        stream = stack.enter_context(connection.makefile("rw"))
        for line in stream:
            answer = rank.describe() if line == "describe\n" else rank.measure(int(line))
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
