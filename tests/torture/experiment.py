"""What an experiment is, what came of it, and how one that is a test of the core's is run."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# A Rust test prints one such line, of JSON with the keys count, and optionally detail.
_REPORT = re.compile(r"^torture: (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        count: How many faults, states or inputs there were.
        failures: What was lost, crashed or leaked, a sentence each, with what is needed to see it again.
        detail: What else a reader of the table wants to know: the seed, what the counted were.
    """

    count: int
    failures: list[str] = field(default_factory=list)
    detail: str = ""


@dataclass(frozen=True)
class Experiment:
    """One row of the table.

    Attributes:
        name: What the command line calls it.
        promise: The number of the promise in docs/reliability.md that it holds.
        what: What is counted: "crash states".
        where: The files that do it, for those who want to read how.
        short, long: How many there are in `make test` and in `make torture`; seconds if `what` says so.
        run: Does that many.
        in_tests: Whether tests/torture/test_torture.py runs the short one; the core's tests run by themselves.
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
    """Run an experiment and return its row: what it is, what came of it, the seconds it took, and the day."""
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
    """Run a test of a crate with `FASTRECORD_TORTURE` = count, which it takes for its own number of cases.

    The test prints `torture: {"count": ..., "detail": ...}`, with the count of what it really did; if it fails, what it
    printed is the failure. The counts of several are added.

    Args:
        target: The file under the crate's tests, without its ending, or "lib".
        name: The test's name, exactly; None for all of the file's.
        count: How many.
        package: The crate.
        features: Of the crate, for cargo.
        env: Further variables.
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


def seeded_test(target: str, name: str) -> Callable[[int], Outcome]:
    """Return what runs a test of the core's, as `cargo_test` does, of a fresh seed each time."""

    def run(count: int) -> Outcome:
        return cargo_test(target, name, count, env={"FASTRECORD_SEED": str(secrets.randbelow(1 << 32))})

    return run
