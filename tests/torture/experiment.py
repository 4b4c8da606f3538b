"""`Experiment` and `Outcome`, and how to run an experiment that is a core test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# A Rust test prints one such line: JSON with the key count, and optionally detail.
_REPORT = re.compile(r"^torture: (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment.

    Attributes:
        count: Number of faults, states or inputs.
        failures: What was lost, crashed or leaked, a sentence each, with the data to reproduce it.
        detail: More for the table: the seed, and the kinds that were counted.
    """

    count: int
    failures: list[str] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True)
class Experiment:
    """One row of the table.

    Attributes:
        name: The name on the command line.
        promise: The number of the tested promise in docs/reliability.md.
        what: The counted unit: "crash states".
        where: The files of the experiment.
        short, long: The count in `make test` and in `make torture`; seconds if `what` says so.
        run: The function; takes the count.
        in_tests: Whether test_torture.py runs the short one. Core tests run by themselves.
    """

    name: str
    promise: int
    what: str
    where: str
    short: int
    long: int
    run: Callable[[int], Outcome]
    in_tests: bool = True


def measured(experiment: Experiment, count: int) -> dict[str, Any]:
    """Run an experiment; return its row with the outcome, the seconds it took, and the date."""
    start = time.monotonic()
    outcome = experiment.run(count)
    row = {name: getattr(experiment, name) for name in ("name", "promise", "what", "where")}
    seconds = round(time.monotonic() - start, 1)
    return row | asdict(outcome) | {"seconds": seconds, "date": date.today().isoformat()}


def cargo_test(
    target: str,
    name: str | None,
    count: int,
    *,
    package: str = "fastrecord-core",
    features: str = "",
    env: dict[str, str] | None = None,
) -> Outcome:
    """Run a crate's test with `FASTRECORD_TORTURE` = count, the number of cases that the test uses.

    The test prints `torture: {"count": ..., "detail": ...}` with the count of cases that it
    ran. If it fails, its output is the failure. The counts of several tests are added.

    Args:
        target: The file under the crate's tests, without its suffix, or "lib".
        name: The exact name of the test; None for all tests of the file.
        count: Number of cases.
        package: The crate.
        features: Features of the crate, for cargo.
        env: Additional environment variables.
    """
    command = ["cargo", "test", "--profile", "torture", "-p", package]
    command += ["--lib"] if target == "lib" else ["--test", target]
    command += ["--features", features] if features else []
    command += ["--", "--include-ignored", "--nocapture"]
    command += ["--exact", name] if name else []
    more = {"FASTRECORD_TORTURE": str(count)} | (env or {})
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | more)
    found = [json.loads(text) for text in _REPORT.findall(done.stdout)]
    if done.returncode != 0 or not found:
        said = (done.stdout + done.stderr)[-2000:]
        return Outcome(0, [f"{' '.join(command)} ended with {done.returncode}: {said}"])
    details = dict.fromkeys(report.get("detail", "") for report in found)
    return Outcome(sum(report["count"] for report in found), detail="; ".join(filter(None, details)))
