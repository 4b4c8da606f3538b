"""A file is truncated, replaced, deleted or overwritten at a random moment while it is read.

`python -m tests.torture.files.mapping` is the reader: one process takes many files, so that thousands
can be broken. It compares everything it reads and reports how it ended. The other process breaks
the file. No signal may end the reader, and no read may return wrong data.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import fastrecord as fr
from fastrecord._core import Batch
from tests.conftest import encode
from tests.reader.test_mapping import COUNT, WAYS, write
from tests.torture.apart import Talker
from tests.torture.experiment import Experiment, Outcome, Rounds

# A reader that is silent for this many seconds hangs.
_PATIENCE = 120.0
_MODULE = "tests.torture.files.mapping"
# The damage to a file, and whether every read of it must then fail.
CHANGES = {"truncate": True, "truncate and extend": True, "overwrite": True, "replace": False, "delete": False}


def images(path: str, access: str) -> Iterable[Any]:
    """Decode images on threads."""
    data = fr.FastRecordDataset(path, access=access)
    return fr.FastRecordLoader(data, 1, shuffle=False, sample=[fr.transforms.CenterCrop(32)], threads=2)


def arrays(path: str, access: str) -> Iterable[Any]:
    """Stack arrays on threads."""
    data = fr.FastRecordDataset(path, access=access, fields=["row", "label"])
    return fr.FastRecordLoader(data, 1, shuffle=False, threads=2)


def workers(path: str, access: str) -> Iterable[Any]:
    """Read in a torch worker process."""
    data = fr.FastRecordDataset(path, access=access, decode=None)
    return DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=2, multiprocessing_context="fork")


LOADERS = {"images": images, "arrays": arrays, "workers": workers}
# Views are left out: reading one ends the process.
NAMES = [name for name in (*WAYS, *LOADERS) if name not in ("a checked view", "a checked batch", "workers")]


def opened(way: str, path: str, access: str) -> Callable[[], Any]:
    """Open a file; return a function that reads it and returns plain values."""
    if way in LOADERS:
        loader = LOADERS[way](path, access)
        return lambda: plain(list(loader))
    reader = fr.Reader(path, access, verify=True)
    return lambda: plain(WAYS[way](reader))


def plain(value: Any) -> Any:
    """Convert to values that can be compared."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return np.asarray(value).tolist()
    if isinstance(value, (dict, Batch)):
        return {name: plain(value[name]) for name in value}
    return value if isinstance(value, (str, int, float)) else [plain(item) for item in value]


def read_all() -> None:
    """Read the files named on standard input, each until an error or a stop request."""
    expected: dict[str, Any] = {}
    for line in sys.stdin:
        task = json.loads(line)
        way, stop, rounds = task["way"], Path(task["path"] + ".stop"), 0
        try:
            if way not in expected:
                expected[way] = opened(way, task["whole"], "mmap")()
            read = opened(way, task["path"], task["access"])
            say("open")
            while not stop.exists():
                if read() != expected[way]:
                    say(json.dumps({"wrong": f"round {rounds} read other data"}))
                    break
                rounds += 1
            else:
                say(json.dumps({"rounds": rounds}))
        except (fr.FastRecordError, OSError, RuntimeError) as error:
            say(json.dumps({"error": f"{type(error).__name__}: {error}"}))


def say(line: str) -> None:
    """Report to the process that breaks files."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def ask(reader: Talker, task: dict[str, Any], between: Callable[[], None]) -> str:
    """Have a file read, call `between` once it is open; return how it ended, "" if the reading process ended."""
    timer = threading.Timer(_PATIENCE, reader.process.kill)
    timer.start()
    try:
        reader.tell(task)
        if not reader.hear():
            return ""
        between()
        return reader.hear()
    finally:
        timer.cancel()


def change(kind: str, path: Path, other: Path, rng: Random) -> None:
    """Break a file."""
    size = path.stat().st_size
    if kind.startswith("truncate"):
        os.truncate(path, rng.choice((0, 4096, rng.randrange(size), size - rng.randrange(1, 4096))))
        if kind == "truncate and extend":
            os.truncate(path, size)
    elif kind == "overwrite":
        shutil.copyfile(other, path)
    elif kind == "replace":
        os.replace(other, path)
    else:
        path.unlink()


def trial(reader: Talker, folder: Path, number: int, seed: int) -> tuple[str, str | None]:
    """Read a file and break it; return the damage and what was wrong with the outcome."""
    rng = Random(f"{seed} {number}")
    way = rng.choice(NAMES) if number % 20 else "workers"  # which start another process
    kind = rng.choice([name for name in CHANGES if way != "unchecked copies" or name != "overwrite"])
    access = rng.choice(("mmap", "mmap", "pread"))
    name = f"{way}, {access}, {kind}"
    path, other = folder / f"{number}.frec", folder / f"{number}.other"
    shutil.copyfile(folder / "whole.frec", path)
    shutil.copyfile(folder / "other.frec", other)
    stop = Path(f"{path}.stop")

    def between() -> None:
        time.sleep(rng.random() * (0.3 if way in LOADERS else 0.03))
        change(kind, path, other, rng)
        if not CHANGES[kind]:
            time.sleep(0.01)
            stop.touch()

    task = {"path": str(path), "whole": str(folder / "whole.frec"), "way": way, "access": access, "seed": number}
    end = ask(reader, task, between)
    for leftover in (path, other, stop):
        leftover.unlink(missing_ok=True)
    if not end:
        return name, "the reader's process ended"
    if "wrong" in end:
        return name, end
    if "error" in end:
        return name, None if str(path) in end else f"an error that does not name the file: {end}"
    return name, f"no error: {end}" if CHANGES[kind] else None


def run(count: int) -> Outcome:
    """Break this many files."""
    rounds = Rounds()
    with tempfile.TemporaryDirectory(prefix="fastrecord-mapping-") as name:
        folder = Path(name)
        for first, file in ((0, "whole.frec"), (1, "other.frec")):
            write(folder / file, first)
            fr.files.add_field(folder / file, "image", fr.image(), [encode(first + i % 20) for i in range(COUNT)])
        reader = Talker(_MODULE)
        for number in rounds.until(count, "files"):
            what, wrong = trial(reader, folder, number, rounds.seed)
            rounds.counts[what.rsplit(", ", 1)[1]] += 1
            if wrong is None:
                continue
            if reader.process.poll() is not None or wrong.startswith("the reader's"):
                wrong += f", status {reader.end()}"
                reader = Talker(_MODULE)
            rounds.fail(f"number {number}: {what}: {wrong}")
        if (status := reader.end()) != 0:
            rounds.fail(f"the reader's process ended with {status}")
    return rounds.outcome()


EXPERIMENT = Experiment(
    *("truncation", 6, "files cut short, replaced, deleted or written over while they are read", 20, 5000, run),
    in_tests=False,  # tests/reader/test_mapping.py covers each case once
)

if __name__ == "__main__":
    read_all()
