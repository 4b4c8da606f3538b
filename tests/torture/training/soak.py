"""Trains for a long time beside a writer that appends: `python -m tests.torture.training.soak SECONDS`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

import fastrecord as fr
from tests.torture.experiment import Experiment, Outcome
from tests.torture.loaders.leaks import slope
from tests.torture.processes import Use, apart, cpu_seconds, descendants, identity, still_there, use
from tests.torture.training.jobs import appender, said, signal_all, start_job, steps_of, write_data

# Share of a core for all processes of a job in long runs: it is stopped and continued.
_SHARE = 0.35
# Samples of a job: the first quarter is its warm-up.
_SAMPLES = 400
# Allowed growth of a job after the warm-up, all processes: memory, descriptors, threads.
_ROOM = (24 << 20, 4, 2)
# In short runs the first evaluation and checkpoint come late.
_WIDE_ROOM = (256 << 20, 24, 8)
# Seconds to start and to end on a busy machine.
_PATIENCE = 600


def tree(job: subprocess.Popen[bytes]) -> list[int]:
    """Return a job's processes."""
    return [job.pid, *(pid for pid, _ in descendants(job.pid))]


def held(pids: list[int]) -> Use | None:
    """Return the sum of what processes hold; None if one of them is gone."""
    try:
        uses = [use(pid) for pid in pids]
    except (FileNotFoundError, ProcessLookupError):
        return None
    sums = [sum(column) for column in zip(*(asdict(one).values() for one in uses), strict=True)]
    return Use(*sums)


def train_for(folder: Path, seconds: float, paced: bool, ranks: int, *options: str) -> tuple[list[str], str]:
    """Run a job for some seconds after its first steps; return problems and findings."""
    name = f"{' '.join(options)}, {max(ranks, 1)} ranks"
    more = ["--epochs", "1000000", "--checkpoint-every", "50", "--print-freq", "5", "--overwrite"]
    shutil.rmtree(folder / "out", ignore_errors=True)  # an earlier job's steps are not this one's
    job = start_job(folder, *more, *options, ranks=ranks)
    pids: list[int] = []
    samples: list[tuple[float, Use]] = []
    try:
        begin = time.monotonic()
        while not steps_of(folder):
            if job.poll() is not None or time.monotonic() > begin + _PATIENCE:
                return [f"{name}: no step in {_PATIENCE} s, or the end: {said(folder)}"], ""
            time.sleep(0.1)
        begin, first_step = time.monotonic(), steps_of(folder)
        pids = tree(job)
        spent = cpu_seconds(pids)
        with tqdm(total=round(seconds), desc=name, unit="s", disable=None) as bar:
            while (gone := time.monotonic() - begin) < seconds:
                if job.poll() is not None:
                    return [f"{name}: ended with {job.returncode}: {said(folder)}"], ""
                if gone * _SAMPLES / seconds >= len(samples):
                    pids = tree(job)
                    if (now := held(pids)) is not None:
                        samples.append((gone, now))
                        bar.set_postfix(asdict(now) | {"step": steps_of(folder)})
                if paced:
                    ahead = (cpu_seconds(pids) - spent) / _SHARE - gone
                    # The launcher stays awake.
                    signal_all(pids[1:] or pids, signal.SIGSTOP if ahead > 0 else signal.SIGCONT)
                time.sleep(0.2)
                bar.n = round(gone)
        steps = steps_of(folder) - first_step
        left = [identity(pid) for pid in tree(job)]
        signal_all(pids, signal.SIGCONT)
        job.send_signal(signal.SIGTERM)
        job.wait(_PATIENCE)
        failures = [f"{name}: left: {process}" for process in still_there(left)]
    finally:
        signal_all(pids, signal.SIGCONT)
        signal_all(tree(job) if job.poll() is None else [], signal.SIGKILL)
        job.wait()
    more_failures, told = grown(samples, name, _ROOM if paced else _WIDE_ROOM)
    return failures + more_failures, f"{steps:,} steps ({told}) with {name}"


def grown(samples: list[tuple[float, Use]], name: str, rooms: tuple[int, ...]) -> tuple[list[str], str]:
    """Compare the minima after the warm-up and at the end: checkpoints add short peaks."""
    later = samples[len(samples) // 4 :]
    part = max(1, len(later) // 3)
    failures, told = [], []
    for what, room in zip(("memory", "descriptors", "threads"), rooms, strict=True):
        values = [getattr(now, what) for _, now in later]
        more = min(values[-part:]) - min(values[:part])
        if more > room:
            failures.append(f"{name}: {what} grew by {more}: {values[:: max(1, len(values) // 20)]}")
        told.append(f"{more / (1 << 20):.1f} MiB" if what == "memory" else f"{more} {what}")
    times, memory = [round(1000 * gone) for gone, _ in later], [now.memory for _, now in later]
    hourly = f"; {slope(times, memory) * 3_600_000 / (1 << 20):.1f} MiB an hour" if times[-1] > 300_000 else ""
    return failures, f"grown by {', '.join(told)}{hourly}"


def run_here(seconds: int) -> Outcome:
    """Do everything in this process and its children."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    paced = seconds >= 60
    try:
        write_data(folder)
        with appender(folder) as writer:
            failures, told = train_for(
                folder, seconds * (0.6 if paced else 1), paced, 2 if paced else 0, "--threads", "1"
            )
            details = [told]
            if paced:
                more, told = train_for(folder, seconds * 0.4, paced, 0, "--loader", "torch", "--threads", "1")
                failures += more
                details.append(told)
            if writer.poll() is not None:
                failures.append(f"the writer ended with {writer.returncode}: {said(folder)}")
        with fr.Reader(folder / "train.frec") as reader:
            failures += reader.verify()["errors"][:3]
            details.append(f"{reader.commit:,} commits beside them")
        return Outcome(seconds, failures[:30], "; ".join(details))
    finally:
        shutil.rmtree(folder)


def run(seconds: int) -> Outcome:
    """See the module docstring; runs in a child process."""
    return apart("training.soak", seconds)


EXPERIMENT = Experiment(
    "soak",
    7,
    "seconds of training beside a writer",
    "tests/torture/training/soak.py, tests/torture/training/jobs.py",
    10,
    3600,
    run,
)

if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(run_here(int(sys.argv[1])))) + "\n")
