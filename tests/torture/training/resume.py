"""Kills the trainer and resumes it, also on other numbers of processes, without loss or repeats."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastrecord.train import TrainError
from fastrecord.train.checkpoint import load_checkpoint
from fastrecord.train.meters import read_metrics
from tests.support.training import running, write_marked
from tests.torture.experiment import Experiment, Outcome, Rounds
from tests.torture.training.recorded_run import PLACES

RECORDS, GLOBAL_BATCH, EPOCHS = 52, 12, 3
STEPS = EPOCHS * -(-RECORDS // GLOBAL_BATCH)
_KILLS = 5  # per run
_LIMIT = 600  # seconds until a run counts as hung
NOT_KILLED = {"rank": -1, "step": 0, "where": None}

Images = list[list[int]]
"""Number of the record and checksum of the pixels of each image, in order."""


@dataclass
class Run:
    """A run of the trainer in its own folder, in one or several attempts.

    Attributes:
        folder: The folder of its output.
        options: Command-line options besides the batch size.
        steps: Step -> images of its global batch, from all attempts that reached it.
        problems: The detected problems.
    """

    folder: Path
    options: list[str]
    attempts: int = 0
    steps: dict[int, list[Images]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "out" / "checkpoints" / "last.pt"

    def saved_step(self) -> int:
        """Return the step of the last complete checkpoint; 0 before the first."""
        try:
            return int(load_checkpoint(self.checkpoint)["step"]) if self.checkpoint.exists() else 0
        except TrainError as error:
            self.problems.append(str(error))
            return 0

    def attempt(self, train: Path, world_size: int, plan: dict[str, Any]) -> bool:
        """Start or resume the command; return whether it finished."""
        self.attempts += 1
        before = self.saved_step()
        seen = self.folder / f"seen{self.attempts}"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        command: list[str | Path] = [
            *(launcher if world_size > 1 else []),
            "-m",
            "tests.torture.training.recorded_run",
            seen,
            json.dumps(plan),
        ]
        sizes = ["--batch-size", str(GLOBAL_BATCH // world_size)]
        with running(*command, train, "--out", self.folder / "out", *sizes, *self.options) as process:
            try:
                output, _ = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired:
                self.problems.append(f"attempt {self.attempts} on {world_size} processes hangs: {plan}")
                return False
        if process.returncode != 0 and plan["where"] is None:
            self.problems.append(f"attempt {self.attempts} on {world_size} processes failed: {output[-1500:]}")
        self._read(seen, world_size, before)
        return process.returncode == 0

    def _read(self, seen: Path, world_size: int, before: int) -> None:
        parts: dict[int, list[Images]] = defaultdict(list)
        for rank in range(world_size):
            log = Path(f"{seen}.{rank}.jsonl")
            for line in log.read_text().splitlines(keepends=True) if log.exists() else ():
                if line.endswith("\n"):
                    row = json.loads(line)
                    parts[row["step"]].append(row["images"])
        if parts and min(parts) != before:
            self.problems.append(f"attempt {self.attempts} began at step {min(parts)}, the checkpoint is of {before}")
        for step, images in parts.items():
            # A killed rank may leave a step without logging it.
            if len(images) == world_size:
                self.steps[step].append(sorted(image for part in images for image in part))

    def leftovers(self) -> list[str]:
        return [str(path) for path in (self.folder / "out").rglob("*") if path.name.startswith(".")]


def compare(run: Run, undisturbed: Run, *, weights: bool) -> list[str]:
    """Return the differences between a killed run and an uninterrupted one."""
    problems = [*run.problems, *undisturbed.problems]
    for step in range(STEPS):
        (expected,) = undisturbed.steps[step] or [[]]
        if len(expected) != GLOBAL_BATCH or not run.steps[step]:
            problems.append(f"step {step}: {len(expected)} images undisturbed, seen {len(run.steps[step])} times")
        problems += [
            f"step {step}: images {images}, undisturbed {expected}" for images in run.steps[step] if images != expected
        ]
    rows = [row["step"] for row in read_metrics(run.folder / "out" / "metrics.jsonl") if row["event"] == "train"]
    if rows != list(range(1, STEPS + 1)):
        problems.append(f"metrics.jsonl has the steps {rows}")
    if run.leftovers():
        problems.append(f"left over: {run.leftovers()}")
    if weights and not problems:
        ours, theirs = (load_checkpoint(one.checkpoint)["model"] for one in (run, undisturbed))
        differing = [name for name, value in theirs.items() if not torch.equal(value, ours[name])]
        if differing:
            problems.append(f"weights: {len(differing)} of {len(theirs)} tensors differ, the first is {differing[0]}")
    return problems


def one(folder: Path, rng: np.random.Generator, kills: int) -> tuple[int, list[str]]:
    """Kill a run this many times; return the number of kills, and what was wrong."""
    train = write_marked(folder / "train.frec", RECORDS)
    same = bool(rng.integers(2)) and kills > 2
    # DDP rearranges gradients after its first step, and a sum of three depends on the arrangement.
    world_sizes = [1, 2, 3] if kills > 2 and not same else [1, 2]
    first = int(rng.choice(world_sizes))
    options = ["--model", str(rng.choice(["shufflenet_v2_x0_5", "squeezenet1_1"])), "--epochs", str(EPOCHS)]
    options += ["--image-size", "32", "--device", "cpu", "--print-freq", "1", "--resume", "auto"]
    options += ["--seed", str(rng.integers(1000)), "--shuffle", str(rng.choice(["full", "blocks"]))]
    options += ["--checkpoint-every", str(rng.integers(1, 4)), "--threads", str(rng.integers(1, 3))]
    undisturbed, run = Run(folder / "undisturbed", options), Run(folder / "killed", options)
    for made in (undisturbed, run):
        made.folder.mkdir()
    undisturbed.attempt(train, first if same else 1, NOT_KILLED)
    done, killed = False, 0
    for number in range(kills):
        world_size = first if same else int(rng.choice(world_sizes)) if kills > 2 else number % 2 + 1
        where = str(rng.choice(PLACES))
        left = (STEPS - run.saved_step()) // (kills - number)
        plan = {"where": where, "step": run.saved_step() + int(rng.integers(0, max(1, left)))}
        # Only rank 0 writes checkpoints.
        plan["rank"] = 0 if where in ("half", "synced", "renamed") else int(rng.integers(-1, world_size))
        plan["delay"] = float(rng.uniform(0.001, 0.2))
        done = run.attempt(train, world_size, plan)
        killed += not done
        if done or run.problems:
            break
    if not done and not run.problems:
        run.attempt(train, first, NOT_KILLED)
    said = f"{' '.join(options)}, {'always' if same else 'first'} {first} processes"
    return killed, [f"{problem} ({said})" for problem in compare(run, undisturbed, weights=same)]


def run(count: int) -> Outcome:
    """Kill runs until there are this many kills."""
    rounds = Rounds(5 if count <= EXPERIMENT.short else None)
    rng = np.random.default_rng(rounds.seed)
    for number in rounds.until(count, "kills", each=0):
        with tempfile.TemporaryDirectory() as folder:
            times, wrong = one(Path(folder), rng, min(_KILLS, count - rounds.done))
        for problem in wrong:
            rounds.fail(f"run {number}: {problem}")
        rounds.done += times
        if number >= count:
            break
    return rounds.outcome(f"runs of {STEPS} steps on 1 to 3 processes; records, pixels and weights are compared")


EXPERIMENT = Experiment(
    *("resume", 9, "kills of a training run", 1, 100, run),
    where="tests/torture/training/resume.py, tests/torture/training/recorded_run.py",
)
