"""The loader at its limits: time to the first of a million records; memory for a large file."""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import fastrecord as fr
from benches.conftest import note
from benches.support.pictures import jpegs, sources

pytestmark = pytest.mark.timeout(3600)

MILLION = 1_000_000
BATCH = 128
THREADS = min(2, len(os.sched_getaffinity(0)))

FIRST_BATCH = """
import sys, time
from fastrecord import FastRecordDataset, FastRecordLoader
from fastrecord.transforms import RandomResizedCrop
start = time.perf_counter()
dataset = FastRecordDataset(sys.argv[1])
loader = FastRecordLoader(dataset, 128, shuffle=True, image=RandomResizedCrop(224), flip=True, threads=int(sys.argv[2]))
images, labels = next(iter(loader))
seconds = time.perf_counter() - start
assert images.shape == (128, 3, 224, 224) and len(loader) == 7813
print(seconds)
"""

# The sampling thread runs beside the loop. RssAnon is the process's private memory; RssFile are
# pages of files, which the system can reclaim.
MEMORY = """
import json, resource, sys, threading, time
from fastrecord import FastRecordDataset, FastRecordLoader
from fastrecord.transforms import RandomResizedCrop
path, threads, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
images, samples, over = 0, [], threading.Event()
start = time.perf_counter()
def sample():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    sizes = [int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "RssShmem")]
    samples.append([time.perf_counter() - start, images, *sizes])
def watch():
    while not over.wait(0.05):
        sample()
sample()
dataset = FastRecordDataset(path)
loader = FastRecordLoader(dataset, 128, shuffle=True, image=RandomResizedCrop(224), flip=True, threads=threads)
watcher = threading.Thread(target=watch)
watcher.start()
for batch, labels in loader:
    images += len(batch)
sample()
over.set()
watcher.join()
assert images == len(dataset)
print(json.dumps(samples))
"""


def write(path: Path, encoded: list[bytes], records: int) -> Path:
    """Write a file of the given number of records, with repeated images; kept between runs."""
    if not path.exists():
        schema = fr.Schema({"image": fr.image(), "label": fr.int64(), "key": fr.string()})
        with fr.Writer(path, schema) as writer:
            for number in range(records):
                image = encoded[number % len(encoded)]
                writer.append({"image": image, "label": number % 1000, "key": f"{number % 1000:04d}/{number:08d}.jpg"})
    return path


def output(script: str, *arguments: object) -> Any:
    """Return what a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def thumbnails() -> list[bytes]:
    """Images of 48 x 48."""
    small = []
    for encoded in jpegs(64):
        file = io.BytesIO()
        Image.open(io.BytesIO(encoded)).resize((48, 48)).save(file, "JPEG", quality=75)
        small.append(file.getvalue())
    return small


def test_first_batch_of_a_million_records(folder: Path, benchmark: Any) -> None:
    """Time from opening the data set to the first shuffled batch, without imports."""
    path = write(folder / f"loader-{MILLION}.frec", thumbnails(), MILLION)
    times: list[float] = []
    benchmark.pedantic(lambda: times.append(output(FIRST_BATCH, path, THREADS)), rounds=7, warmup_rounds=1)
    benchmark.extra_info["first_batch_seconds"] = times[1:]
    note("first batch of 1,000,000 records, s", "0.2 s", statistics.median(times[1:]), 0.2, 1, "cost")


def test_memory_over_an_epoch(folder: Path, benchmark: Any) -> None:
    """An epoch over a 2 GB file in a process with 1 GiB of private memory (RLIMIT_DATA)."""
    encoded = sources()
    limit, total = 1 << 30, 1 << 31
    path = folder / "loader-2-gib.frec"
    write(path, encoded, total * len(encoded) // sum(map(len, encoded)))
    size = path.stat().st_size
    assert size > 1.9 * limit
    samples = benchmark.pedantic(lambda: output(MEMORY, path, THREADS, limit), rounds=1)
    benchmark.extra_info |= {"file_bytes": size, "limit_bytes": limit, "samples": samples}
    images = samples[-1][1]
    own = [anonymous + shared for _, done, anonymous, _, shared in samples if done > images / 20]
    start = samples[0][2] + samples[0][4]
    what = f"{size / 1e9:.1f} GB epoch, own memory, MB"
    note(f"{what}: most", "at a twentieth of it", max(own) / 1e6, own[0] / 1e6, 1.05, "cost")
    # The consumer's batch, its replacement, two in progress and one spare; plus the largest image
    # for each thread.
    largest = max(image.width * image.height for image in map(Image.open, map(io.BytesIO, encoded)))
    room = 3 * (5 * BATCH * 224 * 224 + THREADS * largest)
    note(
        f"{what}: added by the loader",
        "five batches, an image a thread",
        (max(own) - start) / 1e6,
        room / 1e6,
        1,
        "cost",
    )
