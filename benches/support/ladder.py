"""The trainer's ladder in a process of its own, and its rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

# The rungs of the file.
_REAL = ("native", "torch", "real")


class Rows(Protocol):
    """What takes rows, such as `Bench`."""

    def row(self, case: str, contender: str, unit: str, values: Sequence[float], **settings: Any) -> None:
        """Add a measurement."""
        ...

    def not_measured(self, case: str, contender: str, why: str, *, unit: str = "") -> None:
        """Add the reason why something was not measured."""
        ...


def climb(
    options: Sequence[object],
    out: Path,
    *,
    ranks: int = 1,
    cpus: int | None = None,
    launched: bool = False,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Run `python -m fastrecord.train` with some options and return the ladder that it writes to `out`.

    Args:
        options: The options, with --ladder and --out.
        out: The folder that --out names.
        ranks: Processes.
        cpus: How many CPUs the models of all ranks compute on. Default: all.
        launched: Whether torchrun starts also a single process.
        seconds: How long it may take.

    Raises:
        RuntimeError: it fails or takes longer; the message is the end of its output.
    """
    launch: list[str] = []
    if launched or ranks > 1:
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command = [sys.executable, "-m", *launch, "fastrecord.train", *map(str, options)]
    threads = {"OMP_NUM_THREADS": str(max(1, (cpus or len(os.sched_getaffinity(0))) // ranks))}
    with subprocess.Popen(
        command,
        env=os.environ | threads,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=None if seconds is None else 0,  # without a limit it ends with the caller's group
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            if seconds is None:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)  # with its workers and ranks
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"the ladder takes more than {seconds:g} s") from None
            raise
    print(output, file=sys.stderr, flush=True)
    if process.returncode:
        lines = [line for line in output.splitlines() if line.strip()]
        raise RuntimeError(f"the trainer ended with {process.returncode}: {lines[-1] if lines else 'no output'}")
    ladder: dict[str, Any] = json.loads((out / "ladder.json").read_text())
    return ladder


def write(bench: Rows, case: str, ladder: Mapping[str, Any]) -> None:
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
