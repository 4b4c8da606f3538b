"""Run one contender in a process of its own: `python -m benches.peers.child NAME ROOT RECORDS THREADS BATCH`.

Reads commands from standard input, one per line, and answers each with a line of JSON. `epoch N`
runs an epoch; `check N` runs one and checks its batches; `memory N` runs one and measures the
private memory of the process and its workers; `files` makes the contender's files. Output of the
loaders goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from benches.peers import Data, Epochs, Options
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD

MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
LOOKS = 20  # number of memory measurements per epoch


def cpu() -> float:
    """Seconds of CPU time of this process and all its workers, including ended ones."""
    process = psutil.Process()
    times = [process.cpu_times()]
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since: its time is included in the children's time
            times.append(child.cpu_times())
    ended = times[0].children_user + times[0].children_system
    return float(sum(time.user + time.system for time in times) + ended)


def memory() -> int:
    """Unreclaimable bytes of this process and its workers; shared pages count once."""
    process = psutil.Process()
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since and uses no memory
        lines = dict(line.split(":", 1) for line in text.splitlines()[1:])
        total += sum(int(lines[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))
    return total


def most_memory(epochs: Callable[[int], Iterable[Any]], number: int, batches: int) -> int:
    """Run an epoch; return the largest of several memory measurements."""
    every = max(1, batches // LOOKS)
    return max(memory() for at, _ in enumerate(epochs(number)) if at % every == every - 1)


def run(epochs: Epochs, number: int) -> int:
    """Consume all batches of an epoch; return the number of images."""
    images = 0
    for batch, labels in epochs(number):
        images += len(batch)
        if len(labels) != len(batch):
            raise ValueError(f"{len(batch)} images, {len(labels)} labels")
    return images


def check(epochs: Epochs, number: int, data: Data, batch_size: int) -> dict[str, Any]:
    """Consume all batches of an epoch and check them.

    Raises:
        ValueError: An image is missing or repeated, or a batch has a wrong form.
    """
    seen: list[int] = []
    means: list[float] = []
    for batch, labels in epochs(number):
        shape = tuple(batch.shape)
        if batch.dtype == torch.float32 and shape[1:] == (3, 224, 224):
            batch = 255 * (batch * STD + MEAN)  # the value range of bytes
        elif batch.dtype != torch.uint8:
            raise ValueError(f"a batch of {batch.dtype}")
        if shape not in {(len(labels), 3, 224, 224), (len(labels), 224, 224, 3)}:
            raise ValueError(f"a batch of {batch.dtype} {shape} with {len(labels)} labels")
        if len(labels) != min(batch_size, data.records - len(seen)):
            raise ValueError(f"a batch of {len(labels)} after {len(seen)} of {data.records} images")
        seen += [int(label) for label in labels]
        means.append(batch.float().mean().item() * len(labels))
    if sorted(seen) != list(range(data.records)):
        raise ValueError(f"{len(seen)} images came, {len(set(seen))} different ones; there are {data.records}")
    return {"records": len(seen), "mean": sum(means) / len(seen), "first": seen[:4]}


def main() -> int:
    """Serve commands until standard input ends."""
    name, root, records, threads, batch = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # loaders print to standard output
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: int(threads)])
    torch.set_num_threads(int(threads))
    data = Data(Path(root), int(records))
    module, _, variant = name.partition(":")
    options = Options(int(threads), int(batch), variant)
    try:
        contender = importlib.import_module(f"benches.peers.{module}")
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return 0
    print(json.dumps({"version": contender.version()}), file=answers, flush=True)
    epochs: Any = None
    without = 0
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        answer: dict[str, Any] = {}
        if epochs is None and command != "files":
            without = memory()
            epochs = contender.epochs(data, options)
        if command == "files":
            contender.prepare(data, variant)
        elif command == "check":
            answer = check(epochs, int(number), data, options.batch)
        elif command == "memory":
            most = most_memory(epochs, int(number), -(-data.records // options.batch))
            answer = {"most_bytes": most, "without_bytes": without}
        else:
            before = cpu()
            answer = {"records": run(epochs, int(number)), "cpu_seconds": cpu() - before}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
