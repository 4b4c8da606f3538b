"""A file is truncated, replaced, deleted or overwritten at a random moment while it is read.

`python -m tests.torture.files.mapping` is the reader: one process takes many files, so that thousands
can be broken. It compares everything it reads and reports how it ended. The other process breaks
the file. No signal may end the reader, and no read may return wrong data.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tqdm import tqdm

import fastrecord as fr
from tests.conftest import encode
from tests.torture.experiment import ROOT, Experiment, Outcome

RECORDS, SIZE = 48, 20_000
SCHEMA = fr.Schema(
    {
        "data": fr.bytes_(),
        "packed": fr.bytes_(compression="lz4"),
        "row": fr.array("float32", (300,)),
        "label": fr.int64(),
        "key": fr.string(),
        "image": fr.image(),
    }
)
Read = Callable[[], None]
# A reader that is silent for this many seconds hangs.
_PATIENCE = 120.0
_MOST_FAILURES = 30
# The damage to a file, and whether every read of it must then fail.
CHANGES = {"truncate": True, "truncate and extend": True, "overwrite": True, "replace": False, "delete": False}


def content(number: int, seed: int) -> dict[str, Any]:
    """Return a record; another seed gives other records."""
    rng = np.random.default_rng((seed, number))
    return {
        "data": rng.bytes(SIZE),
        "packed": rng.bytes(40) * 50,
        "row": rng.random(300, np.float32),
        "label": int(rng.integers(1 << 40)),
        "key": f"{seed}/{number}",
        "image": encode(seed * RECORDS + number),
    }


def write(path: Path, seed: int) -> Path:
    """Write a file of these records."""
    with fr.Writer(path, SCHEMA) as writer:
        for number in range(RECORDS):
            writer.append(content(number, seed))
    return path


class WrongDataError(AssertionError):
    """The read data differ from the written data."""


def check(right: object, what: str) -> None:
    """Raise if a condition is false."""
    if not right:
        raise WrongDataError(what)


class Reading:
    """A file that is read repeatedly; each method opens it and returns a reading function.

    Args:
        task: The reader's task: path, access, seed, and `whole`, an unbroken copy of the file.
        known: The expected records.
    """

    def __init__(self, task: dict[str, Any], known: list[dict[str, Any]]) -> None:
        self._path, self._access, self._whole = task["path"], task["access"], task["whole"]
        self._rng, self._known = Random(task["seed"]), known

    def copies(self, *, verify: bool = True) -> Read:
        """Copy payloads."""
        reader = fr.Reader(self._path, self._access)

        def read() -> None:
            rows = [self._rng.randrange(RECORDS) for _ in range(32)]
            out = bytearray(len(rows) * SIZE)
            reader.read_batch_into(rows, "data", out, verify=verify)
            check(out == b"".join(self._known[row]["data"] for row in rows), "payloads")

        return read

    def unchecked(self) -> Read:
        """Copy payloads without their checksums."""
        return self.copies(verify=False)

    def batch(self) -> Read:
        """Read all fields but images."""
        reader = fr.Reader(self._path, self._access)
        names = [name for name in SCHEMA if name != "image"]

        def read() -> None:
            rows = [self._rng.randrange(RECORDS) for _ in range(16)]
            batch = reader.read_batch(rows, names, verify=True, copy=True)
            for at, row in enumerate(rows):
                for name in names:
                    value, known = batch[name][at], self._known[row][name]
                    value = bytes(value) if isinstance(value, memoryview) else value
                    check(np.array_equal(value, known), f"record {row}, field {name}")

        return read

    def single(self) -> Read:
        """Read values one by one, and a column."""
        reader = fr.Reader(self._path, self._access)
        labels = [known["label"] for known in self._known]

        def read() -> None:
            row = self._rng.randrange(RECORDS)
            for name in ("data", "packed", "label", "key", "image"):
                value = reader.get(row, name, verify=True, copy=True)
                check(value == self._known[row][name], f"record {row}, field {name}")
            check(reader.column("label", copy=True).tolist() == labels, "a column")

        return read

    def images(self) -> Read:
        """Decode an epoch of images."""
        rows, crop = [[number] for number in range(RECORDS)], fr.transforms.CenterCrop(32)
        data, whole = fr.FastRecordDataset(self._path, access=self._access), fr.FastRecordDataset(self._whole)
        pixels = [images for images, _ in fr.FastRecordLoader(whole, batch_sampler=rows, image=crop, threads=2)]
        loader = fr.FastRecordLoader(data, batch_sampler=rows, image=crop, threads=2)

        def read() -> None:
            for number, (images, labels) in enumerate(loader):
                check((images == pixels[number]).all(), f"pixels of record {number}")
                check(int(labels[0]) == self._known[number]["label"], f"label of record {number}")

        return read

    def arrays(self) -> Read:
        """Stack an epoch of arrays."""
        data = fr.FastRecordDataset(self._path, access=self._access, fields=["row", "label"])
        rows = [[number] for number in range(RECORDS)] * 4
        loader = fr.FastRecordLoader(data, batch_sampler=rows, threads=2)

        def read() -> None:
            for batch, (number,) in zip(loader, rows, strict=True):
                known = self._known[number]
                check((batch["row"][0].numpy() == known["row"]).all(), f"row of record {number}")
                check(int(batch["label"][0]) == known["label"], f"label of record {number}")

        return read

    def workers(self) -> Read:
        """Read an epoch in a torch worker process."""
        from torch.utils.data import DataLoader

        data = fr.FastRecordDataset(self._path, access=self._access, decode=None)
        loader = DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=2, multiprocessing_context="fork")

        def read() -> None:
            for number, (image, label) in enumerate(loader):
                known = self._known[number]
                check((image, label) == (known["image"], known["label"]), f"image of record {number}")

        return read


WAYS: dict[str, Callable[[Reading], Read]] = {
    "copies": Reading.copies,
    "unchecked": Reading.unchecked,
    "batch": Reading.batch,
    "single": Reading.single,
    "images": Reading.images,
    "arrays": Reading.arrays,
    "workers": Reading.workers,
}
# Each starts another process, so rarely.
_RARE = "workers"


def read_all() -> None:
    """Read the files named on standard input, each until an error or a stop request."""
    known = [content(number, 0) for number in range(RECORDS)]
    for line in sys.stdin:
        task = json.loads(line)
        stop, rounds = Path(task["path"] + ".stop"), 0
        try:
            read = WAYS[task["way"]](Reading(task, known))
            say("open")
            while not stop.exists():
                read()
                rounds += 1
            say(json.dumps({"rounds": rounds}))
        except WrongDataError as error:
            say(json.dumps({"wrong": str(error)}))
        except (fr.FastRecordError, OSError, RuntimeError) as error:
            say(json.dumps({"error": f"{type(error).__name__}: {error}"}))


def say(line: str) -> None:
    """Report to the process that breaks files."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Child:
    """The reader's process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.torture.files.mapping"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, task: dict[str, Any], between: Callable[[], None]) -> str:
        """Have a file read, call `between` once it is open; return how it ended.

        The result is "" if the reading process ended.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(task) + "\n")
        stdin.flush()
        timer = threading.Timer(_PATIENCE, self.process.kill)
        timer.start()
        try:
            if stdout.readline() == "":
                return ""
            between()
            return stdout.readline().strip()
        finally:
            timer.cancel()

    def end(self) -> int:
        """Return the exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(_PATIENCE)


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


def trial(child: Child, folder: Path, number: int, seed: int) -> tuple[str, str | None]:
    """Read a file and break it; return the damage and what was wrong with the outcome."""
    rng = Random(f"{seed} {number}")
    way = rng.choice([name for name in WAYS if name != _RARE]) if number % 20 else _RARE
    kind = rng.choice([name for name in CHANGES if way != "unchecked" or name != "overwrite"])
    access = rng.choice(("mmap", "mmap", "pread"))
    name = f"{way}, {access}, {kind}"
    path, other = folder / f"{number}.frec", folder / f"{number}.other"
    shutil.copyfile(folder / "whole.frec", path)
    shutil.copyfile(folder / "other.frec", other)
    stop = Path(f"{path}.stop")

    def between() -> None:
        time.sleep(rng.random() * (0.3 if way == _RARE else 0.03))
        change(kind, path, other, rng)
        if not CHANGES[kind]:
            time.sleep(0.01)
            stop.touch()

    task = {"path": str(path), "whole": str(folder / "whole.frec"), "way": way, "access": access, "seed": number}
    end = child.ask(task, between)
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
    seed = int.from_bytes(os.urandom(4), "little")
    failures: list[str] = []
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fastrecord-mapping-") as name:
        folder = Path(name)
        write(folder / "whole.frec", 0)
        write(folder / "other.frec", 1)
        child = Child()
        for number in _progress(count):
            what, wrong = trial(child, folder, number, seed)
            done[what.rsplit(", ", 1)[1]] += 1
            if wrong is not None:
                failures.append(f"seed {seed}, number {number}: {what}: {wrong}")
                if child.process.poll() is not None or wrong.startswith("the reader's"):
                    failures[-1] += f", status {child.end()}"
                    child = Child()
            if len(failures) >= _MOST_FAILURES:
                break
        if (status := child.end()) != 0:
            failures.append(f"the reader's process ended with {status}")
    total = sum(done.values())
    return Outcome(total, failures, f"seed {seed}; " + ", ".join(f"{n:,} {kind}" for kind, n in sorted(done.items())))


def _progress(count: int) -> Iterator[int]:
    yield from tqdm(range(count), disable=None)


EXPERIMENT = Experiment(
    name="truncation",
    promise=6,
    what="files cut short, replaced, deleted or written over while they are read",
    where="tests/torture/files/mapping.py",
    short=20,
    long=5000,
    run=run,
    in_tests=False,  # tests/reader/test_mapping.py covers each case once
)

if __name__ == "__main__":
    read_all()
