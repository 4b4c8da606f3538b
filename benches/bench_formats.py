"""Import and export against `fastrecord pack` and the libraries of the formats; `pack_dataset`.

Each contender runs in a process of its own, one after the other in each round; the page cache is
warm, and whatever writes ends with a sync. FASTRECORD_BENCH_FORMAT_RECORDS sets the number of
images, FASTRECORD_BENCH_ROUNDS the number of rounds.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from benches.conftest import leave_out, note
from benches.support import libraries, own_formats

RECORDS = int(os.environ.get("FASTRECORD_BENCH_FORMAT_RECORDS", "10000"))
ROUNDS = int(os.environ.get("FASTRECORD_BENCH_ROUNDS", "5"))
SIZE = 110_000
ARRAYS = 50_000
MEMORY = 400e6

# Formats and the libraries that write and read them here. RecordIO's is not kept up: its source is
# written by our export.
LIBRARIES = {"webdataset": "webdataset", "lmdb": "lmdb", "tfrecord": "tfrecord", "parquet": "pyarrow", "hdf5": "h5py"}
IMPORTS = (*LIBRARIES, "recordio")


@pytest.fixture(scope="session")
def place(folder: Path) -> Path:
    """The folder of these files, among them `images`: files of 110 KB in 100 class folders."""
    root = folder / f"formats-{RECORDS}"
    if not (root / "images").exists():
        from io import BytesIO

        from PIL import Image

        head = BytesIO()
        Image.new("RGB", (500, 375)).save(head, "JPEG")
        noise = np.random.default_rng(0).integers(0, 256, 2 * SIZE, np.uint8).tobytes()
        shutil.rmtree(root, ignore_errors=True)
        for number in range(RECORDS):
            path = root / "images.tmp" / f"n{number % 100:08d}" / f"{number:08d}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            start = number * 7919 % SIZE
            path.write_bytes((head.getvalue() + noise[start : start + SIZE])[:SIZE])
        (root / "images.tmp").rename(root / "images")
    return root


class Contenders:
    """Functions in processes of their own, run in turn; `run` returns the median of each."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.pools: dict[str, ProcessPoolExecutor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process of a contender."""
        if name not in self.pools:
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            self.pools[name] = self.stack.enter_context(pool)
        return self.pools[name].submit(function, *arguments).result()

    def run(self, turns: dict[str, tuple[Callable[..., float], tuple[Any, ...], Path | None]]) -> dict[str, float]:
        """Run each contender once per round, and once before; remove what each writes.

        Args:
            turns: For each contender its function, which returns seconds, its arguments, and the
                path that it writes, if any.
        """
        seconds: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(1 + ROUNDS):
            for name, (function, arguments, out) in turns.items():
                if out is not None:
                    remove(out)
                os.sync()
                seconds[name].append(self.call(name, function, *arguments))
                if out is not None:
                    remove(out)
        return {name: statistics.median(times[1:]) for name, times in seconds.items()}


@pytest.fixture
def contenders() -> Iterator[Contenders]:
    """The processes of one benchmark."""
    with Contenders() as found:
        yield found


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def need(name: str) -> None:
    """Skip a format whose library is not installed."""
    if name in LIBRARIES and find_spec(LIBRARIES[name]) is None:
        leave_out(name, f"{LIBRARIES[name]} is not installed")
        pytest.skip(name)


def packed(place: Path, contenders: Contenders) -> Path:
    """The images as a .frec file."""
    path = place / "images.frec"
    if not path.exists():
        contenders.call("prepare", own_formats.pack, str(place / "images"), str(path))
    return path


def source_of(name: str, place: Path, contenders: Contenders) -> Path:
    """The images in a format, written by its library if there is one."""
    path = place / f"source.{name}"
    if not path.exists():
        temporary = place / f"tmp.{name}"
        remove(temporary)
        if name in LIBRARIES:
            contenders.call("prepare", libraries.write, name, str(place / "images"), str(temporary))
        else:
            contenders.call("prepare", own_formats.export, str(packed(place, contenders)), str(temporary), name)
        temporary.rename(path)
    return path


def report(name: str, peer: str, ours: float, theirs: float, target: float) -> None:
    """Note how much faster ours is; both are shown in us per image."""
    note(f"{name}, us/image", peer, ours / RECORDS * 1e6, theirs / RECORDS * 1e6, target, "speedup")


@pytest.mark.parametrize("name", IMPORTS)
def test_import(name: str, place: Path, contenders: Contenders) -> None:
    """Import of images of 110 KB: 0.8 of `fastrecord pack`, or 0.9 of the library where that is slower."""
    need(name)
    source = source_of(name, place, contenders)
    out, pack_out = place / "import.frec", place / "pack.frec"
    turns: dict[str, Any] = {
        "import": (own_formats.import_, (str(source), str(out), name, RECORDS), out),
        "pack": (own_formats.pack, (str(place / "images"), str(pack_out)), pack_out),
    }
    if name in LIBRARIES:
        turns["library"] = (libraries.read, (name, str(source), RECORDS), None)
    for path in (place / "images").glob("*/*"):
        path.read_bytes()
    found = contenders.run(turns)
    # A library that is slower than 0.8 of pack sets the pace instead.
    slow = found.get("library", 0) > found["pack"] / 0.8
    report(f"import {name}", "fastrecord pack", found["import"], found["pack"], 0 if slow else 0.8)
    if "library" in found:
        report(f"import {name}", "the library's read", found["import"], found["library"], 0.9 if slow else 0)
    peak = contenders.call("memory", own_formats.peak, own_formats.import_, str(source), str(out), name, RECORDS)
    note(f"import {name}: peak memory, bytes", "400 MB", peak, MEMORY, 1, "cost")
    remove(out)


@pytest.mark.parametrize("name", LIBRARIES)
def test_export(name: str, place: Path, contenders: Contenders) -> None:
    """Export of images of 110 KB: 0.9 of the library's own writer, fed from memory."""
    need(name)
    path = packed(place, contenders)
    out, other = place / f"export.{name}", place / f"library.{name}"
    found = contenders.run(
        {
            "export": (own_formats.export, (str(path), str(out), name), out),
            "library": (libraries.write, (name, str(place / "images"), str(other)), other),
        }
    )
    report(f"export {name}", "the library's writer", found["export"], found["library"], 0.9)
    peak = contenders.call("memory", own_formats.peak, own_formats.export, str(path), str(out), name)
    note(f"export {name}: peak memory, bytes", "400 MB", peak, MEMORY, 1, "cost")
    remove(out)


@pytest.mark.parametrize("kind", ["tuples", "dicts", "torch"])
def test_pack_dataset(kind: str, place: Path, contenders: Contenders) -> None:
    """50,000 arrays of 3 KB with labels: at least 100,000 records/s without workers."""
    out = place / "arrays.frec"
    found = contenders.run({kind: (own_formats.pack_arrays, (str(out), kind, ARRAYS), out)})
    note(f"pack_dataset of {kind}, us/record", "10 us", found[kind] / ARRAYS * 1e6, 10, 1, "cost")
