"""Everything that needs a GPU, on one card, in less than half an hour.

Training of ResNet-50 in bf16 on constant data on the device against the file in several forms, with
all cores; the ways of a batch to the device; precisions; the first batch; memory; the trainer's
ladder, also with nn.DataParallel and over NCCL; and the tests that need a GPU. Without a GPU each
row says so.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.harness import Bench, Contender, Contest
from benches.harness.process import ROOT
from benches.support.ladder import climb, write
from benches.support.pictures import make_images

NONE = "no CUDA device"
STEPS = "a step on data of each kind"
KEPT = "speed on the file, of the speed on constant data on the device"

# Names of files, and how `fastrecord pack` makes them.
STORED = {
    "fastrecord, original": (),
    "fastrecord, crop index": ("--crop-index",),
    "fastrecord, packed": ("--packed",),
    "fastrecord, short side 256": ("--short-side", "256"),
    "fastrecord, raw": ("--raw", "--short-side", "256"),
}
CONSTANT = {"constant, on the device": "constant", "constant, copied from the host": "constant on the host"}
PILLOW = {"original, DataLoader with Pillow": "DataLoader"}
BEST = "fastrecord, crop index"
WAYS = [
    f"{stream}, {memory}"
    for stream in ("copy stream", "training stream")
    for memory in ("pinned memory", "pageable memory")
]


@dataclass(frozen=True)
class Size:
    """How much is measured, and on what; another one than the default tries the experiment out.

    Attributes:
        device: "cuda" or "cpu".
        model, words: A classifier of torchvision, and its name.
        pixels: Height and width of its images.
        batch: Images a step, if they fit into the memory of the device.
        records: Records of each file.
        steps: Steps that count in each round.
        rounds: Rounds.
        precisions: What else than bf16 is measured: precision, and whether the model is compiled.
        ladder_steps: Steps on each rung of the ladder.
        tests: Arguments of pytest.
        seconds: Parts that have not begun after these are left out.
    """

    device: str = "cuda"
    model: str = "resnet50"
    words: str = "ResNet-50"
    pixels: int = 224
    batch: int = 256
    records: int = 4096
    steps: int = 40
    rounds: int = 5
    precisions: Sequence[tuple[str, bool]] = (("fp16", False), ("off", False), ("bf16", True))
    ladder_steps: int = 40
    tests: Sequence[str] = ("tests", "-m", "gpu")
    seconds: float = 1300.0

    def title(self, amp: str = "bf16", *, compiled: bool = False) -> str:
        """Return the model in words."""
        precision = {"off": "float32"}.get(amp, amp)
        return f"{self.words}, {self.pixels} pixels, {precision}{', compiled' if compiled else ''}"


@dataclass(frozen=True)
class Expected:
    """A row that a part adds; without a contender, any row of the case."""

    case: str
    contender: str
    unit: str


@dataclass
class Course:
    """One run of the experiment.

    Attributes:
        bench: The experiment.
        size: How much is measured.
        files: Names and paths of the files.
        written: The rows so far.
    """

    bench: Bench
    size: Size
    files: dict[str, str] = field(default_factory=dict)
    written: set[tuple[str, str]] = field(default_factory=set)

    def row(self, case: str, contender: str, unit: str, values: Sequence[float], **settings: Any) -> None:
        """Add a row."""
        self.written |= {(case, contender), (case, "")}
        self.bench.row(case, contender, unit, values, **settings)

    def not_measured(self, case: str, contender: str, why: str, *, unit: str = "") -> None:
        """Add the reason why something was not measured."""
        self.written.add((case, contender))
        self.bench.not_measured(case, contender, why, unit=unit)

    def training(self, amp: str = "bf16", *, compiled: bool = False) -> Contest:
        """Return a contest of one process with one model, so that a small card has room."""
        size = self.size
        settings: dict[str, Any] = {"device": size.device, "model": size.model, "pixels": size.pixels}
        settings |= {"batch": size.batch, "amp": amp, "compiled": compiled, "files": self.files}
        return self.bench.contest(
            [Contender(size.title(amp, compiled=compiled), "benches.support.training:Training", settings)]
        )


def call(contest: Contest, method: str, **arguments: Any) -> Any:
    """Call a method of a contest's only contender.

    Raises:
        RuntimeError: it fails, or cannot run here.
    """
    for name in contest.names:
        answer = contest.call(name, method, **arguments)
        if answer is not None:
            return answer.value
    raise RuntimeError("; ".join(contest.missing.values()))


def compare(course: Course, title: str, sources: dict[str, str], contest: Contest) -> None:
    """Train on all sources in turn, and add a row for each, and what of the speed the files keep."""
    size = course.size
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    about = call(contest, "about")
    for number in range(size.rounds):
        turn = number % len(sources)
        for name in [*sources][turn:] + [*sources][:turn]:
            found[name].append(call(contest, "train", source=sources[name], steps=size.steps))
    free = [answer["step_seconds"] for answer in found["constant, on the device"]]
    for name, answers in found.items():
        seconds = [answer["step_seconds"] for answer in answers]
        middle = sorted(seconds)[len(seconds) // 2]
        more = {"images_per_second": about["batch"] / middle, "data_wait": answers[len(answers) // 2]["data_wait"]}
        course.row(f"{title}: {STEPS}", name, "ms/step", [1e3 * value for value in seconds], **more, **about)
        if name not in CONSTANT:
            kept = [100 * there / here for there, here in zip(free, seconds, strict=True)]
            course.row(f"{title}: {KEPT}", name, "%", kept, better="more", **about)


def expect_comparison(title: str, sources: dict[str, str]) -> list[Expected]:
    """Return the rows of `compare`."""
    steps = [Expected(f"{title}: {STEPS}", name, "ms/step") for name in sources]
    return steps + [Expected(f"{title}: {KEPT}", name, "%") for name in sources if name not in CONSTANT]


def sources(*names: str) -> dict[str, str]:
    """Return the constant data, and some files."""
    return CONSTANT | {name: name for name in names}


class Part(ABC):
    """A part of the experiment: the rows that it adds, and what measures them."""

    def __init__(self, size: Size) -> None:
        self.size = size

    @abstractmethod
    def expected(self) -> list[Expected]:
        """Return the rows."""

    @abstractmethod
    def measure(self, course: Course) -> None:
        """Measure, and add them."""


class Files(Part):
    """Constant data against the file in all forms; then what else one model can tell."""

    def _ways(self) -> str:
        return f"{self.size.title()}: ways of a batch of indexed JPEGs to the device"

    def _first(self) -> str:
        return "first batch on the device, after CUDA has begun"

    def _memory(self, of: str) -> str:
        memory = {"device": "device memory", "host": "resident memory of the process, pages of the file included"}[of]
        return f"{self.size.title()}: most {memory}, during an epoch"

    def expected(self) -> list[Expected]:
        """See `Part`."""
        rows = expect_comparison(self.size.title(), sources(*STORED) | PILLOW)
        rows += [Expected(self._ways(), way, "images/s") for way in WAYS]
        rows += [Expected(self._first(), name, "s") for name in STORED]
        for of in ("device", "host"):
            rows += [Expected(self._memory(of), name, "bytes") for name in ("fastrecord, original", BEST)]
        return rows

    def measure(self, course: Course) -> None:
        """See `Part`."""
        size = self.size
        with course.training() as contest:
            compare(course, size.title(), sources(*STORED) | PILLOW, contest)
            about = call(contest, "about")
            speeds: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(size.rounds):
                for way in WAYS[number % 4 :] + WAYS[: number % 4]:
                    answer = call(contest, "train", source=BEST, steps=size.steps, way=way)
                    speeds[way].append(about["batch"] / answer["step_seconds"])
            for way, values in speeds.items():
                course.row(self._ways(), way, "images/s", values, better="more", **about)
            first = [[call(contest, "first_batch", source=name) for name in STORED] for _ in range(size.rounds)]
            for number, name in enumerate(STORED):
                course.row(self._first(), name, "s", [values[number] for values in first], **about)
            for name in ("fastrecord, original", BEST):
                taken = call(contest, "epoch", source=name)
                for of in ("device", "host"):
                    if f"{of}_bytes" in taken:
                        course.row(self._memory(of), name, "bytes", [taken[f"{of}_bytes"]], **about)


class GpuTests(Part):
    """The tests that need a GPU."""

    CASE = "the tests that need a GPU"

    def expected(self) -> list[Expected]:
        """See `Part`."""
        return [Expected(self.CASE, name, "tests") for name in ("passed", "failed")]

    def measure(self, course: Course) -> None:
        """See `Part`."""
        command = [sys.executable, "-m", "pytest", *self.size.tests, "-q", "-p", "no:cacheprovider"]
        log = course.bench.folder / "logs" / "gpu-tests.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            try:
                subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, timeout=600, check=False)
            except subprocess.TimeoutExpired:
                raise RuntimeError("the tests take more than 600 s") from None
        lines = [line.strip("= ") for line in log.read_text(errors="replace").splitlines() if line.strip()]
        closing = lines[-1] if lines else "no output"
        counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", closing)}
        if not counts:
            raise RuntimeError(closing)
        course.row(self.CASE, "passed", "tests", [counts.get("passed", 0)], better="more", line=closing)
        failed = counts.get("failed", 0) + counts.get("error", 0)
        names = [line for line in lines if line.startswith(("FAILED ", "ERROR "))][:20]
        course.row(self.CASE, "failed", "tests", [failed], line=closing, names=names)


class Precision(Part):
    """Constant data against the file in another precision, or with a compiled model."""

    def __init__(self, size: Size, amp: str, compiled: bool) -> None:
        super().__init__(size)
        self._amp, self._compiled = amp, compiled
        self._title = size.title(amp, compiled=compiled)

    def expected(self) -> list[Expected]:
        """See `Part`."""
        return expect_comparison(self._title, sources(BEST))

    def measure(self, course: Course) -> None:
        """See `Part`."""
        with course.training(self._amp, compiled=self._compiled) as contest:
            compare(course, self._title, sources(BEST), contest)


class Ladder(Part):
    """The trainer's ladder: alone, with nn.DataParallel, and over NCCL with a rank on each GPU."""

    def __init__(self, size: Size, words: str, options: Sequence[str] = (), *, launched: bool = False) -> None:
        super().__init__(size)
        self._title, self._options, self._launched = f"{size.title()}, the trainer's ladder, {words}", options, launched

    def expected(self) -> list[Expected]:
        """See `Part`."""
        return [Expected(f"{self._title}: {STEPS}", "", "ms/step")]

    def measure(self, course: Course) -> None:
        """See `Part`."""
        import torch

        size, out = self.size, course.bench.folder / "gpu-ladder"
        ranks = max(1, torch.cuda.device_count()) if self._launched else 1
        options = [course.files[BEST], "--ladder", "--out", out, "--model", size.model, "--image-size", size.pixels]
        options += ["-b", size.batch, "--max-steps", size.ladder_steps, "--device", size.device]
        options += ["--amp", "bf16", "--channels-last", *self._options]
        ladder = climb(options, out, ranks=ranks, launched=self._launched, seconds=400)
        write(course, self._title, ladder)


def parts(size: Size) -> list[Part]:
    """Return all parts, what tells most first."""
    return [
        Files(size),
        GpuTests(size),
        *(Precision(size, amp, compiled) for amp, compiled in size.precisions),
        Ladder(size, "1 process"),
        Ladder(size, "a rank on each GPU over NCCL", launched=True),
        Ladder(size, "nn.DataParallel over all GPUs", ("--parallel", "dp")),
    ]


def run(bench: Bench, size: Size | None = None, chosen: Sequence[Part] | None = None) -> None:
    """Measure all parts, or some; see the module."""
    import torch

    size = size or Size()
    course, start = Course(bench, size), time.monotonic()
    here = size.device == "cpu" or torch.cuda.is_available()
    if here:
        course.files = pack(bench.folder, size.records)
    for part in chosen or parts(size):
        late = time.monotonic() - start > size.seconds
        measure = (
            part.measure
            if here and not late
            else missing(f"no time is left after {size.seconds:g} s" if here else NONE)
        )
        try:
            measure(course)
            why = "it was not reached"
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            why = str(error).strip().splitlines()[-1]
        for row in part.expected():
            if (row.case, row.contender) not in course.written:
                bench.not_measured(row.case, row.contender or "fastrecord", why, unit=row.unit)


def missing(why: str) -> Callable[[Course], None]:
    """Return what stands for a part that cannot be measured."""

    def measure(_: Course) -> None:
        raise RuntimeError(why)

    return measure


def pack(folder: Path, records: int) -> dict[str, str]:
    """Return the files of `STORED`, and pack those that do not exist."""
    data = make_images(folder, records)
    files = {}
    for name, options in STORED.items():
        path = data.root / f"gpu-{name.partition(', ')[2].replace(' ', '-')}.frec"
        if not path.exists():
            command = [sys.executable, "-m", "fastrecord", "pack", *options, str(data.images), str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        files[name] = str(path)
    return files
