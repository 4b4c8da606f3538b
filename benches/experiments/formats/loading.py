"""Images/s of loaders: RandomResizedCrop(224) and a random flip, uint8, one core a thread.

All contenders load the same JPEGs. FASTRECORD_BENCH_IMAGES may name a folder of other images.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benches.contenders import FORMATS
from benches.harness import Bench, Contender, Contest
from benches.peers import Data
from benches.support.pictures import make_images

BATCH = 128
MEAN_DIFFERS = 4.0  # of 255: allowed difference of mean pixels, as crops differ; a wrong image differs by far more
MILLION = 1_000_000

OURS = {
    "fastrecord": "ours:original",
    "fastrecord, crop index": "ours:crop-index",
    "fastrecord, packed": "ours:packed",
    "fastrecord, short side 256": "ours:short-side",
}
PERSISTENT = "ImageFolder, Pillow"
TORCHCODEC = "ImageFolder, torchcodec"
OTHERS = {
    PERSISTENT: "folder:persistent",
    "ImageFolder, Pillow, new workers each epoch": "folder:fresh",
    TORCHCODEC: "folder:torchcodec",
    "WebDataset": "webdataset",
    "LitData": "litdata",
    "MosaicML Streaming": "streaming",
    "FFCV": "ffcv",
    "NVIDIA DALI, CPU": "dali",
    "SPDL": "spdl",
}
# What of benches/contenders needs no loader of its own: the others have one above.
OWN = ("fastrecord", "class folder", "WebDataset", "LitData", "MosaicML", "FFCV")
STORES = {name: f"stores:{store}" for name, store in FORMATS.items() if not name.startswith(OWN)}
# What a short run has of the formats, and of two ranks.
SHORT_STORES = ("LMDB", "TFRecord", "HDF5", "numpy memmap")
SHARED = ("fastrecord", "fastrecord, packed", TORCHCODEC, "LMDB")
# Normalised float32 instead of uint8: TurboLoader offers only that.
FLOATS = {
    "fastrecord": "ours:original+float",
    "fastrecord, crop index": "ours:crop-index+float",
    "fastrecord, packed": "ours:packed+float",
    "TurboLoader": "turboloader",
}
RAW_FLOATS = {"fastrecord": "ours:raw-resized+float", "TurboLoader": "turboloader:raw"}
MEMCPY = "memcpy of the same bytes"
RAW = {"fastrecord": "ours:raw", MEMCPY: "memcpy"}


@dataclass(frozen=True)
class Course:
    """Loaders of the same images.

    Attributes:
        bench: The experiment.
        data: The images.
        threads: Threads, or workers, of each.
        batch: Images in a batch.
    """

    bench: Bench
    data: Data
    threads: int
    batch: int = BATCH

    @property
    def settings(self) -> dict[str, Any]:
        """What explains the rows."""
        return {"threads": self.threads, "batch": self.batch}

    def case(self, what: str) -> str:
        """Return a case's name with the number of threads."""
        return f"{what}, {self.threads} thread{'s' if self.threads > 1 else ''} or workers each"

    def contender(self, name: str, module: str, *, copies: int = 1, **more: Any) -> Contender:
        """Return a loader as a contender."""
        made = {"module": module, "root": str(self.data.root), "records": self.data.records}
        return Contender(name, "benches.peers.loader:Loader", made | self.settings | more, self.threads, copies)

    def rates(self, what: str, modules: Mapping[str, str], *, rounds: int = 1, copies: int = 1) -> None:
        """Measure images/s of loaders, by name."""
        contenders = [self.contender(name, module, copies=copies) for name, module in modules.items()]
        with self.bench.contest(contenders) as contest:
            ready(contest, self.data)
            self.race(self.case(what), contest, rounds)

    def usage(self, modules: Mapping[str, str]) -> None:
        """Measure images/s, the time to the first batch, and memory."""
        what, bench = f"random crops of 224 pixels, batches of {self.batch}", self.bench
        with bench.contest([self.contender(name, module) for name, module in modules.items()]) as contest:
            contest.each("files")
            first = contest.each("first_batch")
            memory = checked(contest, self.data)
            self.race(self.case(what), contest, 1)
            for name in contest.names:
                more = {"version": contest.versions[name], **self.settings, "records": self.data.records}
                case = self.case(f"first batch after opening, {what}")
                bench.row(case, name, "s", [first[name].seconds], **more)
                case = self.case(f"most private memory in an epoch, {what}")
                bench.row(case, name, "bytes", [memory[name]], **more)

    def race(self, case: str, contest: Contest, rounds: int) -> None:
        """Run epochs in turn: `rounds` times the experiment's rounds."""
        # The check was the warm-up.
        answers = contest.rounds(
            "epoch", rounds=rounds * self.bench.rounds, warm_up=0, arguments=lambda number: {"number": number + 1}
        )
        more = {**self.settings, "of": {MEMCPY: {"yardstick": True}}}
        self.bench.rows(case, answers, contest, records=self.data.records, unit="images/s", **more)


def ready(contest: Contest, data: Data) -> None:
    """Make all contenders' files, and check an epoch of each."""
    contest.each("files")
    checked(contest, data)


def checked(contest: Contest, data: Data) -> dict[str, float]:
    """Check an epoch of each contender; return the most memory that it took.

    Raises:
        ValueError: an image is missing or repeated, or differs from the others' images.
    """
    means, memory = {}, {}
    for name, answer in contest.each("check", memory=True).items():
        parts = answer.value if isinstance(answer.value, list) else [answer.value]
        labels = [label for part in parts for label in part["labels"]]
        if sorted(labels) != list(range(data.records)):
            raise ValueError(f"{name}: {len(labels)} images, {len(set(labels))} different ones, of {data.records}")
        means[name] = statistics.mean(part["mean"] for part in parts)
        memory[name] = float(answer.most_bytes)
    usual = statistics.median(means.values()) if means else 0.0
    for name, mean in means.items():
        if abs(mean - usual) > MEAN_DIFFERS:
            raise ValueError(f"{name}: the mean of its pixels is {mean:.2f}, the others have {usual:.2f}")
    return memory


def run(bench: Bench) -> None:
    """Measure all."""
    cores = len(os.sched_getaffinity(0))
    counts = [threads for threads in (1, 2) if threads <= cores]
    some = counts if bench.full else counts[-1:]
    data, many = make_images(bench.folder, 512 if bench.full else 256), make_images(bench.folder, 1024)
    stores = STORES if bench.full else {name: STORES[name] for name in SHORT_STORES}
    everyone = OURS | OTHERS | stores
    for threads in some:
        Course(bench, data, threads).usage(everyone)
    for threads in some:
        crops = f"random crops of 224 pixels as normalised float32, batches of {BATCH}"
        Course(bench, data, threads).rates(crops, FLOATS)
        course = Course(bench, many, threads)
        course.rates(f"normalised float32 from raw pixels of 256 x 256, batches of {BATCH}", RAW_FLOATS)
        course.rates(f"random crops of raw pixels of 256 x 256, batches of {BATCH}", RAW, rounds=4)
    if cores > 1:
        shared = OURS | {TORCHCODEC: everyone[TORCHCODEC]} | stores
        shared = shared if bench.full else {name: shared[name] for name in SHARED}
        Course(bench, data, 1).rates("two ranks over one file, images of both", shared, copies=2)
    small_batches(Course(bench, many if bench.full else data, counts[-1]))
    limited(bench, counts[-1])
    if bench.full:
        first_of_a_million(bench, counts[-1])


def small_batches(course: Course) -> None:
    """Batches of 8 against batches of 128."""
    sizes = (8, BATCH)
    contenders = [course.contender(f"fastrecord, batches of {size}", "ours:original", batch=size) for size in sizes]
    with course.bench.contest(contenders) as contest:
        ready(contest, course.data)
        course.race(course.case("small and large batches of crops"), contest, 2)


def limited(bench: Bench, threads: int) -> None:
    """An epoch over a file that is larger than the private memory that the process may have."""
    case = "most private memory in an epoch of a file larger than the process may have memory"
    limit = 1 << 30  # torch alone has 0.8 GB, most of it never touched
    data = make_images(bench.folder, limit // (50_000 if bench.full else 90_000), links=True)
    course = Course(bench, data, threads)
    size = sum(path.stat().st_size for path in data.files())
    with bench.contest([course.contender("fastrecord", "ours:original", limit_bytes=limit)]) as contest:
        contest.each("files")
        for name, most in checked(contest, data).items():
            more = {"records": data.records, "limit_bytes": limit, "file_bytes": size, **course.settings}
            bench.row(course.case(case), name, "bytes", [most], version=contest.versions[name], **more)
        for name, why in contest.missing.items():
            bench.not_measured(course.case(case), name, why, unit="bytes")


def first_of_a_million(bench: Bench, threads: int) -> None:
    """From opening a file of a million images to the first shuffled batch."""
    course = Course(bench, Data(bench.folder / f"loader-thumbnails-{MILLION}", MILLION), threads)
    seconds = []
    for number in range(bench.rounds + 1):  # each in a new process; the first one warms the page cache
        with bench.contest([course.contender("fastrecord", "ours:thumbnails")]) as contest:
            contest.each("files")
            seconds += [answer.seconds for answer in contest.each("first_batch").values() if number]
    case = course.case(f"first shuffled batch of {MILLION:,} images, from opening")
    bench.row(case, "fastrecord", "s", seconds, **course.settings)
