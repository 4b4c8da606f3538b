"""Run one contender in a process of its own: `python -m benches.peers.child NAME ROOT RECORDS THREADS BATCH`.

Reads commands from standard input, a line each, and answers each with a line of JSON: `epoch N` runs an epoch;
`check N` runs one and looks at what came; `memory N` runs one and looks at what the process and its workers have for
themselves; `files` makes the contender's files. What loaders print goes to standard error.
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

from benches.peers import Data, Epochs, Options, arrays
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD

MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
LOOKS = 20  # how often an epoch's memory is looked at


def cpu() -> float:
    """Seconds of CPU time that this process, its workers, and those of them that have ended have used."""
    process = psutil.Process()
    times = [process.cpu_times()]
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since: its time is among that of the ended ones
            times.append(child.cpu_times())
    ended = times[0].children_user + times[0].children_system
    return float(sum(time.user + time.system for time in times) + ended)


def memory() -> int:
    """Bytes of this process and its workers that the system cannot take back; pages that they share count once."""
    process = psutil.Process()
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since, and has no memory
        lines = dict(line.split(":", 1) for line in text.splitlines()[1:])
        total += sum(int(lines[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))
    return total


def most_memory(epochs: Callable[[int], Iterable[Any]], number: int, batches: int) -> int:
    """Run an epoch; give the most memory of some looks at it."""
    every = max(1, batches // LOOKS)
    return max(memory() for at, _ in enumerate(epochs(number)) if at % every == every - 1)


def run(epochs: Epochs, number: int) -> int:
    """Take all batches of an epoch and drop them; give the number of images that came."""
    images = 0
    for batch, labels in epochs(number):
        images += len(batch)
        if len(labels) != len(batch):
            raise ValueError(f"{len(batch)} images, {len(labels)} labels")
    return images


def check(epochs: Epochs, number: int, data: Data, batch_size: int) -> dict[str, Any]:
    """Take all batches of an epoch and look at them.

    Raises:
        ValueError: An image is missing or came twice, or a batch is not what it is to be.
    """
    seen: list[int] = []
    means: list[float] = []
    for batch, labels in epochs(number):
        shape = tuple(batch.shape)
        if batch.dtype == torch.float32 and shape[1:] == (3, 224, 224):
            batch = 255 * (batch * STD + MEAN)  # as bytes would be
        elif batch.dtype != torch.uint8:
            raise ValueError(f"a batch of {batch.dtype}")
        if shape not in {(len(labels), 3, 224, 224), (len(labels), 224, 224, 3)}:
            raise ValueError(f"a batch of {batch.dtype} {shape} with {len(labels)} labels")
        if len(labels) != min(batch_size, data.records - len(seen)):
            raise ValueError(f"a batch of {len(labels)} behind {len(seen)} of {data.records} images")
        seen += [int(label) for label in labels]
        means.append(batch.float().mean().item() * len(labels))
    if sorted(seen) != list(range(data.records)):
        raise ValueError(f"{len(seen)} images came, {len(set(seen))} different ones; there are {data.records}")
    return {"records": len(seen), "mean": sum(means) / len(seen), "first": seen[:4]}


def main() -> int:
    """Serve until standard input ends."""
    name, root, records, threads, batch = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # loaders print
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
    # What an epoch is made of, and what is right about it, is another matter for arrays than for images.
    runs, checks = (arrays.run, arrays.check) if module.startswith("arrays_") else (run, check)
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
            answer = checks(epochs, int(number), data, options.batch)
        elif command == "memory":
            most = most_memory(epochs, int(number), -(-data.records // options.batch))
            answer = {"most_bytes": most, "without_bytes": without}
        else:
            before = cpu()
            answer = {"records": runs(epochs, int(number)), "cpu_seconds": cpu() - before}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
