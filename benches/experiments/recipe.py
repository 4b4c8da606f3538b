"""Whether accuracy depends on the number of ranks, or on how the images are stored.

demo/digits.toml trains on real images, scikit-learn's handwritten digits, with three seeds for
each contender:

- 1, 2 and (in the full run) 4 ranks at one global batch. A pass has as many images on any number of
  ranks, so that batch normalisation sees as many; fewer ranks take more passes a step.
- the images as they are, with a crop index, and with a short side of 64 pixels instead of 128.

One CPU does the arithmetic of a rank; runs that fit beside each other run at the same time, since
nothing here is timed. What it says is limited by the seeds: each row has, in its settings, the
difference of its mean from the first one's, and the 95 % interval of that difference.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastrecord as fr
from benches.harness import Bench
from benches.harness.process import LIMIT, ROOT
from fastrecord.train.meters import read_metrics

RECIPE = ROOT / "demo" / "digits.toml"
SEEDS = (0, 1, 2)
GLOBAL_BATCH = 64
FORMS: dict[str, dict[str, Any]] = {
    "original": {},
    "crop index": {"crop_index": True},
    "short side": {"short_side": 64},
}
RANKS_CASE, FORMS_CASE = "accuracy at one global batch", "accuracy from files of three forms"
UNIT = "accuracy %"
# Of Student's t with 4 degrees of freedom: two contenders with three seeds each.
QUANTILE = 2.776


@dataclass(frozen=True)
class Job:
    """One training run; `passes` is over all ranks."""

    ranks: int
    form: str
    seed: int
    passes: int
    epochs: int

    def out(self, data: Path) -> Path:
        """Return the folder of the run."""
        return data / f"run-{self.ranks}-{self.form.replace(' ', '-')}-{self.seed}"

    def command(self, data: Path) -> list[str]:
        """Return what a user would type."""
        if self.ranks == 1:
            start = ["-m", "fastrecord.train"]
        else:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
            start = [*launcher, "-m", "fastrecord.train"]
        options = {
            "--config": RECIPE,
            "--val": file(data, "val", self.form),
            "--epochs": self.epochs,
            "--batch-size": GLOBAL_BATCH // self.passes,
            "--accumulate": self.passes // self.ranks,
            "--seed": self.seed,
            "--threads": 1,
            "--device": "cpu",
            "--out": self.out(data),
        }
        words = [sys.executable, *start, file(data, "train", self.form), "--overwrite"]
        return [*map(str, words), *(str(word) for option in options.items() for word in option)]


def run(bench: Bench) -> None:
    """Write a row for each number of ranks and each form of file: one accuracy a seed."""
    ranks = (1, 2, 4) if bench.full else (1, 2)
    # A step has as many passes as the most ranks, so that each of them has one.
    size = {"passes": max(ranks), "epochs": 12 if bench.full else 3}
    data = bench.folder / "recipe"
    try:
        make_files(data)
    except ImportError as error:
        for case, name in [*((RANKS_CASE, words(n)) for n in ranks), *((FORMS_CASE, form) for form in FORMS)]:
            bench.not_measured(case, name, f"no images: {error}", unit=UNIT)
        return
    jobs = [Job(number, "original", seed, **size) for number in ranks for seed in SEEDS]
    jobs += [Job(1, form, seed, **size) for form in FORMS if form != "original" for seed in SEEDS]
    reached: dict[tuple[int, str], dict[int, float]] = {}
    failed: dict[tuple[int, str], str] = {}
    for job, why in run_all(jobs, data):
        if why:
            failed[job.ranks, job.form] = why
            continue
        found = accuracy(job.out(data))
        reached.setdefault((job.ranks, job.form), {})[job.seed] = found
        bench.say(f"{words(job.ranks)}, {job.form}, seed {job.seed}: {found:.2f} %")
    settings = {"epochs": size["epochs"], "global_batch": GLOBAL_BATCH, "seeds": list(SEEDS)}
    by_ranks = {words(n): (n, "original") for n in ranks}
    by_form = {form: (1, form) for form in FORMS}
    for case, runs in ((RANKS_CASE, by_ranks), (FORMS_CASE, by_form)):
        values = {name: [reached[run][seed] for seed in SEEDS] for name, run in runs.items() if run not in failed}
        for name, run in runs.items():
            if run in failed:
                bench.not_measured(case, name, failed[run], unit=UNIT)
                continue
            about = reading(next(iter(values.values())), values[name])
            bench.row(case, name, UNIT, values[name], better="more", **settings, **about)


def words(ranks: int) -> str:
    """Return a number of ranks in words."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def reading(first: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Return the mean and spread of values, and the difference from the first contender's mean.

    Returns:
        `mean` and `deviation` (standard deviation) of the values; `difference`: mean less the
        first's; `interval`: half the 95 % interval of that difference, by Student's t with a common
        deviation. All in points of accuracy.
    """
    variance = (statistics.variance(first) + statistics.variance(values)) / 2
    return {
        "mean": statistics.mean(values),
        "deviation": statistics.stdev(values),
        "difference": statistics.mean(values) - statistics.mean(first),
        "interval": QUANTILE * math.sqrt(2 * variance / len(SEEDS)),
    }


def accuracy(run_folder: Path) -> float:
    """Return the accuracy of the last evaluation of a run, in percent."""
    last = [row for row in read_metrics(run_folder / "metrics.jsonl") if row["event"] == "val"][-1]
    return 100 * float(last["correct1"]) / float(last["count"])


def file(data: Path, split: str, form: str) -> Path:
    """Return the packed file of a split."""
    return data / f"{split}-{form.replace(' ', '-')}.frec"


def make_files(data: Path) -> None:
    """Write the digits as JPEGs of 128 x 128 pixels, every third held out, and pack them in each form.

    Raises:
        ImportError: scikit-learn, which ships the digits, is not installed.
    """
    from demo.digits import write_digits

    if (data / "made").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    write_digits(data / "images", size=128, held_out_every=3)
    for split in ("train", "val"):
        for form, options in FORMS.items():
            fr.pack(data / "images" / split, file(data, split, form), recode=fr.Recode(**options))
    (data / "made").touch()


def run_all(jobs: Sequence[Job], data: Path) -> Iterator[tuple[Job, str]]:
    """Run all jobs, as many at a time as the CPUs have ranks for.

    Yields:
        Each when it has ended, and why it failed: empty, or the end of its log.
    """
    cores = len(os.sched_getaffinity(0))
    # The large ones first, so that small ones fill up what is left.
    waiting = sorted(jobs, key=lambda job: -job.ranks)
    running: dict[Job, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            for job in list(waiting):
                if not running or sum(each.ranks for each in running) + job.ranks <= cores:
                    waiting.remove(job)
                    running[job] = start(job, data)
            time.sleep(0.2)
            for job, process in list(running.items()):
                silent = time.time() - job.out(data).with_suffix(".log").stat().st_mtime
                if process.poll() is not None:
                    del running[job]
                    status = process.returncode
                    yield job, f"{job} ended with {status}: {told(job, data)}" if status else ""
                elif silent > LIMIT:
                    end(running.pop(job))
                    yield job, f"{job} wrote nothing for {LIMIT:g} s (FASTRECORD_BENCH_LIMIT): {told(job, data)}"
    finally:
        for process in running.values():
            end(process)


def start(job: Job, data: Path) -> subprocess.Popen[bytes]:
    """Start a run; its output goes to a log beside its folder."""
    path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
    with job.out(data).with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            job.command(data),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def told(job: Job, data: Path) -> str:
    """Return the end of a run's log."""
    return job.out(data).with_suffix(".log").read_text(errors="replace")[-1500:]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run: torchrun ends its ranks when it is asked to, not when it is killed."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(45)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
