"""The loader against its peers: RandomResizedCrop(224) + flip of the same images, uint8, on as many cores as threads.

Each contender has a process of its own, bound to as many cores as it may use threads; one epoch each in turn, over and
over. Environment: FASTRECORD_BENCH_IMAGES, a folder of JPEGs (default: made here); FASTRECORD_BENCH_RECORDS, images an
epoch; FASTRECORD_BENCH_ROUNDS; FASTRECORD_BENCH_PYTHON, a Python that has the peers. Those that it lacks are left out.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benches.conftest import leave_out, note
from benches.peers import Data
from benches.peers.process import Contender
from benches.pictures import make_images

pytestmark = pytest.mark.timeout(3600)

RECORDS = int(os.environ.get("FASTRECORD_BENCH_RECORDS", "1024"))
ROUNDS = int(os.environ.get("FASTRECORD_BENCH_ROUNDS", "3"))
BATCH = 128
CORES = len(os.sched_getaffinity(0))

OURS = "fastrecord"
CROP_READY = "fastrecord, crop-ready"
WHOLE = "fastrecord, whole images decoded"
PERSISTENT = "ImageFolder + Pillow + DataLoader"
FRESH = "ImageFolder, new workers each epoch"
CONTENDERS = {
    OURS: "ours:original",
    CROP_READY: "ours:crop-ready",
    WHOLE: "ours:whole",
    PERSISTENT: "folder:persistent",
    FRESH: "folder:fresh",
    "ImageFolder + torchvision.io + DataLoader": "folder:decode-jpeg",
    "FFCV": "ffcv",
    "NVIDIA DALI, CPU": "dali",
    "SPDL": "spdl",
    "webdataset": "webdataset",
    "litdata": "litdata",
    "mosaicml-streaming": "streaming",
}
PEERS = [name for name in CONTENDERS if not name.startswith("fastrecord") and name not in {PERSISTENT, FRESH}]

MEAN_DIFFERS = 4.0  # of 255: of an epoch's pixels, other crops being drawn; an image shown wrongly is far off


@pytest.fixture(scope="session")
def images(folder: Path) -> Data:
    """The images."""
    if RECORDS < 1 or RECORDS % (2 * BATCH):
        raise ValueError(
            f"FASTRECORD_BENCH_RECORDS is a multiple of {2 * BATCH}, a batch for each worker, not {RECORDS}"
        )
    return make_images(folder, RECORDS)


@contextmanager
def started(names: dict[str, tuple[str, int, int]], data: Data) -> Iterator[dict[str, Contender]]:
    """Contenders by what they are called: module, threads, batch. Each has made its files and run an epoch.

    One that cannot be measured is left out, which the summary tells; the first one has to run.

    Raises:
        ValueError: the images of one are not like those of the others.
    """
    with ExitStack() as stack:
        all_of_them = {
            name: stack.enter_context(Contender(module, data, threads=threads, batch=batch))
            for name, (module, threads, batch) in names.items()
        }
        for contender in all_of_them.values():
            stack.callback(contender.end)  # all of them, before any is waited for
        ready: dict[str, Contender] = {}
        means: dict[str, float] = {}
        first = next(iter(names))
        for name, contender in all_of_them.items():
            try:
                contender.wait()
                if contender.missing is None:
                    contender.ask("files")
                    means[name] = contender.ask("check 0")["mean"]
                    ready[name] = contender
                    continue
            except RuntimeError as error:
                if name == first:
                    raise
                contender.missing = str(error)
            leave_out(name, contender.missing.strip().splitlines()[-1])
        usual = statistics.median(means.values())
        for name, mean in means.items():
            if abs(mean - usual) > MEAN_DIFFERS:
                raise ValueError(f"{name}: the mean of its pixels is {mean:.2f}, that of the others {usual:.2f}")
        yield ready


@pytest.fixture
def contest(benchmark: Any) -> Callable[..., dict[str, float]]:
    """Run an epoch of each contender in turn, over and over; give the median seconds of each."""

    def run(names: dict[str, tuple[str, int, int]], data: Data, *, rounds: int = ROUNDS) -> dict[str, float]:
        with started(names, data) as contenders:
            first, *others = contenders
            seconds: dict[str, list[float]] = {name: [] for name in others}
            cpu: dict[str, list[float]] = {name: [] for name in contenders}

            def epoch(name: str) -> None:
                answer = contenders[name].ask(f"epoch {len(cpu[name]) + 1}")
                if answer["images"] != data.records:
                    raise ValueError(f"{name}: {answer['images']} images of {data.records}")
                cpu[name].append(answer["cpu_seconds"])

            def turns() -> None:
                for name in others:
                    start = time.perf_counter()
                    epoch(name)
                    seconds[name].append(time.perf_counter() - start)

            benchmark.pedantic(lambda: epoch(first), setup=turns, rounds=rounds)
            seconds = {first: list(benchmark.stats.stats.data), **seconds}
            benchmark.extra_info["images"] = data.records
            benchmark.extra_info["left_out"] = [name for name in names if name not in contenders]
            benchmark.extra_info["contenders"] = {
                name: {
                    "threads": names[name][1],
                    "batch": names[name][2],
                    "version": contender.version,
                    "seconds": seconds[name],
                    "cpu_seconds": cpu[name],
                }
                for name, contender in contenders.items()
            }
            return {name: statistics.median(times) for name, times in seconds.items()}

    return run


def against(name: str, ours: str, theirs: str, seconds: dict[str, float], target: float) -> None:
    """Note how much faster one is than the other, in us an image."""
    if ours in seconds and theirs in seconds:
        scale = 1e6 / RECORDS
        note(f"{name}: {ours}", theirs, seconds[ours] * scale, seconds[theirs] * scale, target, "speedup")


@pytest.mark.parametrize("threads", [1, 2])
def test_random_resized_crops(images: Data, contest: Callable[..., dict[str, float]], threads: int) -> None:
    """Original and crop-ready JPEGs against all others."""
    if threads > CORES:
        pytest.skip(f"{threads} threads need as many cores")
    seconds = contest({name: (module, threads, BATCH) for name, module in CONTENDERS.items()}, images)
    what = f"{threads} thread{'s' if threads > 1 else ''}, us an image"
    seconds["ImageFolder, the better"] = min(seconds[PERSISTENT], seconds[FRESH])
    against(what, OURS, "ImageFolder, the better", seconds, 2.5)
    against(what, OURS, WHOLE, seconds, 1.3)
    against(what, CROP_READY, "ImageFolder, the better", seconds, 3.2)
    against(what, CROP_READY, WHOLE, seconds, 1.6)
    for name in PEERS:
        against(what, OURS, name, seconds, 1)


def test_two_threads_over_one(images: Data, contest: Callable[..., dict[str, float]]) -> None:
    """The same epoch on one core and on two."""
    if CORES < 2:
        pytest.skip("needs two cores")
    names = {"2 threads": ("ours:original", 2, BATCH), "1 thread": ("ours:original", 1, BATCH)}
    names |= {
        "crop-ready, 2 threads": ("ours:crop-ready", 2, BATCH),
        "crop-ready, 1 thread": ("ours:crop-ready", 1, BATCH),
    }
    seconds = contest(names, images, rounds=2 * ROUNDS)
    against("us an image", "2 threads", "1 thread", seconds, 1.85)
    against("us an image", "crop-ready, 2 threads", "crop-ready, 1 thread", seconds, 1.85)


def test_small_batches(images: Data, contest: Callable[..., dict[str, float]]) -> None:
    """Batches of 8 against batches of 128."""
    threads = min(2, CORES)
    names = {"batches of 8": ("ours:original", threads, 8), "batches of 128": ("ours:original", threads, BATCH)}
    seconds = contest(names, images, rounds=2 * ROUNDS)
    against(f"{threads} threads, us an image", "batches of 8", "batches of 128", seconds, 0.95)


@pytest.mark.parametrize("threads", [1, 2])
def test_raw_pixels(images: Data, contest: Callable[..., dict[str, float]], threads: int) -> None:
    """RandomCrop(224) + flip of raw 256 x 256 images against a memcpy of as many bytes into one buffer."""
    if threads > CORES:
        pytest.skip(f"{threads} threads need as many cores")
    names = {"raw 256 x 256, cropped": ("ours:raw", threads, BATCH), "memcpy": ("memcpy", threads, BATCH)}
    seconds = contest(names, images, rounds=4 * ROUNDS)
    against(
        f"{threads} thread{'s' if threads > 1 else ''}, us an image", "raw 256 x 256, cropped", "memcpy", seconds, 0.5
    )
