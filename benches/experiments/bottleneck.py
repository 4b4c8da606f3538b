"""Where the bottleneck is: the trainer's ladder, where the model limits and where the data limit.

`python -m fastrecord.train FILE --ladder` trains on constant data through one more layer at a time,
and on the file; torchrun starts it with two ranks. Half of the CPUs compute, as many as there are
ranks at least, so that loading has the others: a GPU leaves it all of them.
`benches.experiments.gpu` climbs the same ladder on a GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.harness import Bench, Contender, Contest
from benches.support.ladder import climb, rung_of, write
from benches.support.pictures import make_images
from benches.support.transport import KINDS
from fastrecord.train.ladder import WARM_UP, rounds_of

NAME = "fastrecord"
# Enough that no epoch ends while something is measured that depends on it.
RECORDS = 1024
_RUNGS = 5  # of the ladder
_FEWEST_STEPS, _MOST_STEPS = 4, 150
# How much slower than the native loader's threads Pillow decodes.
_PILLOW = 3.0


@dataclass(frozen=True)
class Setting:
    """One ladder.

    Attributes:
        words: The model and its images.
        model: A classifier of torchvision.
        pixels: Height and width of its images.
        batch: Images a step, over all ranks.
        stored: Options of `fastrecord pack`.
        seconds: About how long it may take on the CPU, in a short run and in a full one.
        threads: Threads of the native loader, for each rank.
        ranks: Processes.
        full: Whether it is for full runs only.
    """

    words: str
    model: str
    pixels: int
    batch: int
    stored: tuple[str, ...]
    seconds: tuple[float, float]
    threads: int = 1
    ranks: int = 1
    full: bool = False

    @property
    def case(self) -> str:
        """The setting in words."""
        images = f"stored with {' '.join(self.stored)}" if self.stored else "original images"
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks (DDP)"
        return f"{self.words}, {self.pixels} pixels, {self.batch} images a step, {images}, {ranks}"


SMALLER = ("--short-side", "160")
# Decoding takes about 0.7 ms of a core for an image, ResNet-50 on it 50 ms, SqueezeNet 1 ms.
SETTINGS = (
    Setting("ResNet-50", "resnet50", 96, 4, (), (24, 240)),
    Setting("SqueezeNet", "squeezenet1_1", 32, 32, (), (5, 20), threads=2),
    Setting("ResNet-50", "resnet50", 96, 4, SMALLER, (24, 240), full=True),
    # Gradients of ResNet-50 would take longer to exchange by gloo than a step of that model takes.
    Setting("SqueezeNet", "squeezenet1_1", 32, 32, (), (5, 30), ranks=2, full=True),
)


def run(bench: Bench, settings: Sequence[Setting] = SETTINGS, records: int | None = None) -> None:
    """Climb the ladder in each setting; see the module."""
    data = make_images(bench.folder, records or RECORDS)
    contest = bench.contest([Contender(NAME, "benches.experiments.bottleneck:Ladders", {"root": str(data.root)})])
    speeds: dict[Setting, list[float]] = {}
    with contest:
        for setting in settings:
            if setting.full and not bench.full:
                continue
            found = climbed(contest, setting, bench.full)
            if "failed" in found:
                bench.not_measured(f"{setting.case}: a step on data of each kind", NAME, found["failed"])
                continue
            ladder = found["ladder"]
            write(bench, setting.case, ladder)
            loading(bench, setting, found)
            speeds[setting] = [setting.batch / seconds for seconds in rung_of(ladder, "gpu")["round_step_seconds"]]
    several(bench, speeds)
    handing_over(bench)


def handing_over(bench: Bench, batch: int = 64, pixels: int = 224, count: int = 50) -> None:
    """Add what it costs to get a batch from a thread, and from another process over ZeroMQ."""
    settings: dict[str, Any] = {"batch": batch, "pixels": pixels}
    target = "benches.support.transport:Transport"
    with bench.contest([Contender(kind, target, {"kind": kind, **settings}) for kind in KINDS]) as contest:
        answers = contest.rounds("receive", rounds=bench.rounds, warm_up=1, arguments=lambda _: {"count": count})
        case = f"handing over a constant batch of {batch} images of {pixels} pixels"
        for name, found in answers.items():
            values = [1e3 * answer.seconds / count for answer in found]
            bench.row(case, name, "ms", values, version=contest.versions[name], **settings)
        for name, why in contest.missing.items():
            bench.not_measured(case, name, why, unit="ms")


def climbed(contest: Contest, setting: Setting, full: bool) -> dict[str, Any]:
    """Return what `Ladders.climb` returns, or why it failed."""
    values = {name: getattr(setting, name) for name in ("model", "pixels", "batch", "stored", "threads", "ranks")}
    answer = contest.call(NAME, "climb", seconds=setting.seconds[full], **values) if contest.names else None
    return {"failed": contest.missing[NAME]} if answer is None else dict(answer.value)


def loading(bench: Bench, setting: Setting, value: Mapping[str, Any]) -> None:
    """Add the share of all CPU time that loading takes while the model trains at its own speed."""
    free = rung_of(value["ladder"], "gpu")["round_step_seconds"]
    share = [100 * value["image_cpu_seconds"] * setting.batch / (value["cpus"] * seconds) for seconds in free]
    case = f"{setting.case}: CPU time of reading, decoding and resizing, of all CPU time at the model's own speed"
    more = {"ms_an_image": 1e3 * value["image_cpu_seconds"], "cpus": value["cpus"]}
    bench.row(case, NAME, "%", share, **more)


def several(bench: Bench, speeds: Mapping[Setting, Sequence[float]]) -> None:
    """Add what a second rank changes, and nn.DataParallel."""
    case = "ranks that share the CPUs, constant data on the device"
    for setting, values in speeds.items():
        twin = [other for other in speeds if (other.model, other.stored) == (setting.model, setting.stored)]
        if {other.ranks for other in twin} > {1}:
            name = "1 rank" if setting.ranks == 1 else f"{setting.ranks} ranks (DDP over gloo)"
            words = f"{setting.words}, {setting.pixels} pixels, {setting.batch} images a step"
            bench.row(f"{words}: {case}", name, "images/s", values, better="more", ranks=setting.ranks)
    why = "it needs GPUs: the experiment gpu measures it where they are"
    bench.not_measured(f"one process for several GPUs: {case}", "nn.DataParallel", why, unit="images/s")


class Ladders:
    """The trainer's ladder in processes below this one, on its CPUs."""

    def __init__(self, *, root: str) -> None:
        import fastrecord as fr

        self.version = f"fastrecord {fr.__version__}"
        self._root = Path(root)

    def climb(
        self, *, model: str, pixels: int, batch: int, stored: Sequence[str], threads: int, ranks: int, seconds: float
    ) -> dict[str, Any]:
        """Return the content of ladder.json, and what an image costs.

        Args:
            model, pixels, batch, stored, threads, ranks: As in Setting.
            seconds: About how long the steps may take.
        """
        path = self._pack(stored)
        image = cpu_seconds(path, pixels)
        cpus = len(os.sched_getaffinity(0))
        out = self._root / "ladder"
        shutil.rmtree(out, ignore_errors=True)
        options = [path, "--ladder", "--out", out, "--model", model, "--image-size", pixels, "-b", batch // ranks]
        options += ["--threads", threads]
        try:
            computing = max(ranks, cpus // 2)
            step = step_seconds(model, pixels, batch // ranks, computing // ranks)
            steps = steps_within(seconds, step=step, data=image * batch / cpus)
            ladder = climb([*options, "--max-steps", steps, "--device", "cpu"], out, ranks=ranks, cpus=computing)
        except RuntimeError as error:
            return {"failed": str(error)}  # the other settings go on
        return {"ladder": ladder, "image_cpu_seconds": image, "cpus": cpus}

    def _pack(self, stored: Sequence[str]) -> Path:
        path = self._root / f"ladder{''.join(stored)}.frec"
        if not path.exists():
            command = [sys.executable, "-m", "fastrecord", "pack", *stored, str(self._root / "images"), str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path


def cpu_seconds(path: Path, pixels: int) -> float:
    """Return the CPU seconds of reading, decoding and resizing one image of a file in the page cache."""
    import fastrecord as fr

    crop = [fr.transforms.RandomResizedCrop(pixels), fr.transforms.RandomHorizontalFlip()]
    with fr.FastRecordLoader(path, 32, sample=crop, threads=1) as loader:
        next(iter(loader))
        start = time.process_time()
        images = sum(len(labels) for _, labels in loader)
        return (time.process_time() - start) / images


def step_seconds(model: str, pixels: int, batch: int, cpus: int) -> float:
    """Return about how long a step on constant data takes, computed by some threads."""
    import torch
    from torch.nn.functional import cross_entropy
    from torchvision import models

    torch.set_num_threads(cpus)
    module = models.get_model(model, weights=None, num_classes=100)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=0.9)
    images, labels = torch.zeros(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.int64)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        cross_entropy(module(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - start)
    return min(times)


def steps_within(seconds: float, *, step: float, data: float) -> int:
    """Return how many steps on each kind of data take about so many seconds in all.

    Args:
        seconds: For all rungs and rounds, with the steps that do not count.
        step: Seconds of a step on constant data.
        data: Seconds in which the native loader makes the images of a step.
    """
    all_rungs = (_RUNGS - 2) * step + max(step, data) + max(step, _PILLOW * data)
    fits = (n for n in range(_MOST_STEPS, _FEWEST_STEPS, -1) if (n + WARM_UP * rounds_of(n)) * all_rungs <= seconds)
    return next(fits, _FEWEST_STEPS)
