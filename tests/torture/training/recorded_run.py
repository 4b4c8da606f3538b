"""The trainer's command, which logs its input and is killed at a planned place.

`python -m tests.torture.training.recorded_run SEEN PLAN ARGUMENTS...`: SEEN is the prefix of the log files,
one per rank. They get a line before each optimizer step: its number, and the record number and
pixel checksum of each image. PLAN is JSON: `rank` (-1: all), first `step`, and `where` to kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fastrecord.train import engine, files
from fastrecord.train.__main__ import main
from fastrecord.train.batches.base import Batch
from fastrecord.train.learner import Learner
from tests.support.training import numbers_of

PLACES = ("begin", "end", "time", "half", "synced", "renamed")
"""Before a step, after it, some milliseconds after it began; a checkpoint half written, on disk, and in its place."""


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class Plan:
    def __init__(self, plan: dict[str, Any]) -> None:
        mine = plan["rank"] in (-1, int(os.environ.get("RANK", "0")))
        self.where = plan["where"] if mine else None
        self.from_step = plan["step"]
        self.delay = plan.get("delay", 0.0)
        self.step = 0

    def reach(self, where: str) -> bool:
        return where == self.where and self.step >= self.from_step

    def die_at(self, where: str) -> None:
        if self.reach(where):
            die()


class Disk:
    """`os`, as the module that writes checkpoints uses it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        if ".pt." in os.readlink(f"/proc/self/fd/{descriptor}") and self._plan.reach("half"):
            # As if only this much had been written.
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            die()
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        is_checkpoint = target.suffix == ".pt"
        if is_checkpoint:
            self._plan.die_at("synced")
        os.replace(source, target)
        if is_checkpoint:
            self._plan.die_at("renamed")


def run() -> None:
    seen, plan = sys.argv[1], Plan(json.loads(sys.argv[2]))
    log = Path(f"{seen}.{os.environ.get('RANK', '0')}.jsonl").open("w", buffering=1)  # noqa: SIM115  # until it ends
    take_step, seed_step = Learner.step, engine._Run._seed_step

    def noted_step(self: Learner, batches: Sequence[Batch], **more: Any) -> None:
        numbers = [number for images, _ in batches for number in numbers_of(images)]
        sums = [zlib.crc32(image.contiguous().numpy().tobytes()) for images, _ in batches for image in images]
        log.write(json.dumps({"step": plan.step, "images": list(zip(numbers, sums, strict=True))}) + "\n")
        plan.die_at("begin")
        if plan.reach("time"):
            # No handler: it kills like any signal, wherever the process is by then.
            signal.setitimer(signal.ITIMER_REAL, plan.delay)
            plan.where = None
        take_step(self, batches, **more)
        plan.die_at("end")

    def noted_seed(self: engine._Run) -> None:
        plan.step = self.step
        seed_step(self)

    Learner.step = noted_step  # type: ignore[method-assign]
    engine._Run._seed_step = noted_seed  # type: ignore[method-assign]
    vars(files)["os"] = Disk(plan)
    main(sys.argv[3:])


if __name__ == "__main__":
    run()
