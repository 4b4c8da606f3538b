"""Looking into files: `fastrecord stats`, `browse` and `diff` as commands, from start to end, against limits."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from benches.conftest import note
from benches.support.pictures import sources

ROUNDS = 5
MILLION = 1_000_000


@pytest.fixture(scope="session")
def million(folder: Path) -> Path:
    """1,000,000 records with an image of a few pixels, a label and a key."""
    path = folder / "look-1000000.frec"
    if not path.exists():
        rng = np.random.default_rng(0)
        sides = rng.integers(1, 9, (MILLION, 2)).tolist()
        noise = rng.bytes(4096)
        labels = np.minimum(rng.exponential(200, MILLION).astype(np.int64), 999)
        schema = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
        with fr.Writer(path, schema, "w", metadata={"classes": [f"n{i:08d}" for i in range(1000)]}) as writer:
            for start in range(0, MILLION, 10_000):
                numbers = range(start, start + 10_000)
                images = [
                    b"P6 %d %d 255\n" % (width, height) + noise[i % 3000 : i % 3000 + 3 * width * height]
                    for i, (width, height) in zip(numbers, sides[start : start + 10_000], strict=True)
                ]
                keys = [f"n{labels[i]:08d}/n{labels[i]:08d}_{i}.JPEG" for i in numbers]
                writer.extend({"image": images, "label": labels[start : start + 10_000], "key": keys})
    return path


@pytest.fixture(scope="session")
def photos(folder: Path) -> Path:
    """200 images, 110 KB on average."""
    path = folder / "look-photos.frec"
    schema = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
    with fr.Writer(path, schema, "w", metadata={"classes": [f"class {i}" for i in range(20)]}) as writer:
        for number, image in enumerate(sources()[:200]):
            writer.append({"image": image, "label": number % 20, "key": f"{number % 20}/{number}.JPEG"})
    return path


def seconds(*arguments: object) -> float:
    """Return the median time of a command, with a warm page cache and the start of Python."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        command = [sys.executable, "-m", "fastrecord", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def test_stats_of_a_million_records(million: Path) -> None:
    """Sizes, images, classes and duplicates of 1,000,000 records."""
    note("stats of 1,000,000 records, s", "5 s", seconds("stats", million), 5, 1, "cost")


def test_browse_of_200_photographs(photos: Path, folder: Path) -> None:
    """A page with 200 thumbnails of images of 110 KB, and with 200 chosen of 1,000,000 records."""
    page = folder / "sheet.html"
    took = seconds("browse", photos, "-o", page, "--overwrite")
    note("browse of 200 images of 110 KB, s", "3 s", took, 3, 1, "cost")
    note("browse of 200 images of 110 KB, bytes", "5 MB", page.stat().st_size, 5e6, 1, "cost")


def test_browse_of_a_million_records(million: Path, folder: Path) -> None:
    """A page of 200 records that meet a condition, of 1,000,000."""
    options = ("-o", folder / "sheet.html", "--overwrite", "--where", "label == 3 and image.width > 4")
    note("browse where ..., 1,000,000 records, s", "3 s", seconds("browse", million, *options), 3, 1, "cost")


def test_diff_of_a_million_records(million: Path, folder: Path) -> None:
    """The same 1,000,000 records in another order."""
    shuffled = folder / "look-shuffled.frec"
    fr.files.shuffle(million, shuffled, seed=1, overwrite=True)
    note("diff of 1,000,000 records, s", "10 s", seconds("diff", million, shuffled), 10, 1, "cost")
