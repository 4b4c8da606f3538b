"""The trainer's ladder in a process of its own, and its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.harness import Bench

# The rungs of the file.
_REAL = ("native", "torch", "real")


def climb(options: Sequence[object], out: Path, *, ranks: int = 1) -> dict[str, Any]:
    """Run `python -m fastrecord.train` with some options and return the ladder that it writes to `out`.

    Raises:
        RuntimeError: it fails; the message is the end of its output.
    """
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    command = [sys.executable, "-m", *launch, "fastrecord.train", *map(str, options)]
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n", flush=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(f"the trainer ended with {done.returncode}: {lines[-1] if lines else 'no output'}")
    ladder: dict[str, Any] = json.loads((out / "ladder.json").read_text())
    return ladder


def write(bench: Bench, case: str, ladder: Mapping[str, Any]) -> None:
    """Add the rows of a ladder: a row for each rung, what could not be measured, and what limits."""
    shared = {
        "model": ladder["model"],
        "image_size": ladder["image_size"],
        "batch": ladder["batch_size"],
        "ranks": ladder["processes"],
        "steps": ladder["steps"],
        "device": ladder["device"],
        "amp": ladder["amp"],
        "version": f"fastrecord {ladder['fastrecord']}, torch {ladder['torch']}",
    }
    for rung in ladder["rungs"]:
        cost = rung["layer_seconds"]
        bench.row(
            f"{case}: a step on data of each kind",
            rung["layer"],
            "ms/step",
            [1e3 * seconds for seconds in rung["round_step_seconds"]],
            layer_ms=None if cost is None else 1e3 * cost,
            above=rung["above"],
            data_wait=rung["data_wait"],
            images_per_second=rung["images_per_second"],
            **shared,
        )
    for kind, why in ladder.get("left_out", {}).items():
        bench.not_measured(f"{case}: a step on data of each kind", kind, why, unit="ms/step")
    free = rung_of(ladder, "gpu")["round_step_seconds"]
    for rung in ladder["rungs"]:
        if rung["data"] in _REAL:
            kept = [100 * here / there for here, there in zip(free, rung["round_step_seconds"], strict=True)]
            judged = (
                {"limit": ladder["limit"], "verdict": ladder["verdict"]}
                if rung["data"] in (ladder["loader"], "real")
                else {}
            )
            bench.row(
                f"{case}: speed on the file, of the speed on constant data on the device",
                rung["layer"],
                "%",
                kept,
                better="more",
                **judged,
                **shared,
            )


def rung_of(ladder: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a rung of a ladder."""
    return next(rung for rung in ladder["rungs"] if rung["data"] == kind)
