"""The loader against its peers: RandomResizedCrop(224) and flip, uint8, one core per thread.

All contenders load the same images. Each has a process of its own, bound to as many cores as it may
use threads. They run one epoch each in turn, repeatedly. Environment: FASTRECORD_BENCH_IMAGES, a
folder of JPEGs (default: generated images); FASTRECORD_BENCH_RECORDS, images per epoch;
FASTRECORD_BENCH_ROUNDS; FASTRECORD_BENCH_PYTHON, a Python with the peers; FASTRECORD_BENCH_LIMIT,
the time limit of an answer in seconds. Contenders that are missing, fail or hang are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benches.peers import Data
from benches.support.contest import ROUNDS, against, contest
from benches.support.pictures import make_images

pytestmark = pytest.mark.timeout(3600)

RECORDS = int(os.environ.get("FASTRECORD_BENCH_RECORDS", "1024"))
BATCH = 128
CORES = len(os.sched_getaffinity(0))

OURS = "fastrecord"
CROP_INDEX = "fastrecord, crop index"
CROP_READY = "fastrecord, crop-ready"
PERSISTENT = "ImageFolder + Pillow + DataLoader"
FRESH = "ImageFolder, new workers each epoch"
CONTENDERS = {
    OURS: "ours:original",
    CROP_INDEX: "ours:crop-index",
    CROP_READY: "ours:crop-ready",
    PERSISTENT: "folder:persistent",
    FRESH: "folder:fresh",
    "ImageFolder + torchcodec + DataLoader": "folder:torchcodec",
    "FFCV": "ffcv",
    "NVIDIA DALI, CPU": "dali",
    "SPDL": "spdl",
    "webdataset": "webdataset",
    "litdata": "litdata",
    "mosaicml-streaming": "streaming",
}
# Normalised float32 instead of uint8: TurboLoader offers only that.
RAW_FLOAT = "fastrecord, raw 256 x 256"
TURBO, TURBO_RAW = "TurboLoader", "TurboLoader, raw 256 x 256"
FLOATS = {
    OURS: "ours:original+float",
    CROP_INDEX: "ours:crop-index+float",
    CROP_READY: "ours:crop-ready+float",
    TURBO: "turboloader",
    RAW_FLOAT: "ours:raw-resized+float",
    TURBO_RAW: "turboloader:raw",
}
PEERS = [name for name in CONTENDERS if not name.startswith("fastrecord") and name not in {PERSISTENT, FRESH}]


@pytest.fixture(scope="session")
def images(folder: Path) -> Data:
    """The images."""
    if RECORDS < 1 or RECORDS % (2 * BATCH):
        raise ValueError(
            f"FASTRECORD_BENCH_RECORDS is a multiple of {2 * BATCH}, a batch for each worker, not {RECORDS}"
        )
    return make_images(folder, RECORDS)


@pytest.mark.parametrize("threads", [1, 2])
def test_random_resized_crops(images: Data, benchmark: Any, threads: int) -> None:
    """Original JPEGs, without and with a crop index, and crop-ready JPEGs against all others."""
    if threads > CORES:
        pytest.skip(f"{threads} threads need as many cores")
    seconds = contest(benchmark, {name: (module, threads, BATCH) for name, module in CONTENDERS.items()}, images)
    what = f"{threads} thread{'s' if threads > 1 else ''}, us an image"
    seconds["ImageFolder, the better"] = min(seconds[PERSISTENT], seconds[FRESH])
    for ours, target in {OURS: 3, CROP_INDEX: 3.8, CROP_READY: 3.8}.items():
        for name in ["ImageFolder, the better", *PEERS]:
            against(what, ours, name, seconds, target, records=RECORDS)


@pytest.mark.parametrize("threads", [1, 2])
def test_float_crops(images: Data, benchmark: Any, threads: int) -> None:
    """The same crops as normalised float32, of JPEGs and of raw pixels."""
    if threads > CORES:
        pytest.skip(f"{threads} threads need as many cores")
    seconds = contest(benchmark, {name: (module, threads, BATCH) for name, module in FLOATS.items()}, images)
    what = f"{threads} thread{'s' if threads > 1 else ''}, float32, us an image"
    against(what, OURS, TURBO, seconds, 1, records=RECORDS)
    against(what, CROP_INDEX, TURBO, seconds, 1, records=RECORDS)
    against(what, CROP_READY, TURBO, seconds, 1, records=RECORDS)
    against(what, RAW_FLOAT, TURBO_RAW, seconds, 1, records=RECORDS)


def test_two_threads_over_one(images: Data, benchmark: Any) -> None:
    """The same epoch on one core and on two."""
    if CORES < 2:
        pytest.skip("needs two cores")
    names = {"2 threads": ("ours:original", 2, BATCH), "1 thread": ("ours:original", 1, BATCH)}
    names |= {
        "crop-ready, 2 threads": ("ours:crop-ready", 2, BATCH),
        "crop-ready, 1 thread": ("ours:crop-ready", 1, BATCH),
    }
    seconds = contest(benchmark, names, images, rounds=2 * ROUNDS)
    against("us an image", "2 threads", "1 thread", seconds, 1.85, records=RECORDS)
    against("us an image", "crop-ready, 2 threads", "crop-ready, 1 thread", seconds, 1.85, records=RECORDS)


def test_small_batches(images: Data, benchmark: Any) -> None:
    """Batches of 8 against batches of 128."""
    threads = min(2, CORES)
    names = {"batches of 8": ("ours:original", threads, 8), "batches of 128": ("ours:original", threads, BATCH)}
    seconds = contest(benchmark, names, images, rounds=2 * ROUNDS)
    against(f"{threads} threads, us an image", "batches of 8", "batches of 128", seconds, 0.95, records=RECORDS)


@pytest.mark.parametrize("threads", [1, 2])
def test_raw_pixels(images: Data, benchmark: Any, threads: int) -> None:
    """RandomCrop(224) + flip of raw 256 x 256 images against a memcpy of the same bytes."""
    if threads > CORES:
        pytest.skip(f"{threads} threads need as many cores")
    names = {"raw 256 x 256, cropped": ("ours:raw", threads, BATCH), "memcpy": ("memcpy", threads, BATCH)}
    seconds = contest(benchmark, names, images, rounds=4 * ROUNDS)
    against(
        f"{threads} thread{'s' if threads > 1 else ''}, us an image",
        "raw 256 x 256, cropped",
        "memcpy",
        seconds,
        0.5,
        records=RECORDS,
    )
