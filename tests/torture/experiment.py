"""`Experiment`, its `Outcome`, and `Rounds`: the loop that experiments share."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from random import Random
from typing import Any

from tqdm import tqdm

import fastrecord as fr
from tests.torture.apart import ROOT, apart

__all__ = ["ROOT", "Experiment", "Outcome", "Rounds", "measured"]
MOST_FAILURES = 20


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
        short, long: The count in `make test` and in `make torture`; seconds if `what` says so.
        run: The function; takes the count.
        where: The files of the experiment; "" for that of `run`.
        apart: Whether it runs in a process of its own, which imports only what it needs.
        in_tests: Whether test_torture.py runs the short one. Core tests run by themselves.
    """

    name: str
    promise: int
    what: str
    short: int
    long: int
    run: Callable[[int], Outcome]
    where: str = ""
    apart: bool = False
    in_tests: bool = True

    def __call__(self, count: int) -> Outcome:
        """Run it."""
        if not self.apart:
            return self.run(count)
        said = apart(self.run.__module__, count)
        return Outcome(0, [said]) if isinstance(said, str) else Outcome(**said)


def measured(experiment: Experiment, count: int) -> dict[str, Any]:
    """Run an experiment; return its row with the outcome, the seconds it took, and the date."""
    start = time.monotonic()
    outcome = experiment(count)
    row = {name: getattr(experiment, name) for name in ("name", "promise", "what")}
    row["where"] = experiment.where or experiment.run.__module__.replace(".", "/") + ".py"
    seconds = round(time.monotonic() - start, 1)
    return row | asdict(outcome) | {"seconds": seconds, "date": date.today().isoformat()}


class Rounds:
    """The rounds of an experiment: what is drawn, counted, and found wrong.

    Args:
        seed: Decides what happens; drawn if there is none.

    Attributes:
        draw: The generator of this seed.
        done: What has been counted.
        counts: How often each kind came.
        failures: What was wrong.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed
        self.draw = Random(self.seed)
        self.done = 0
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def until(self, count: int, unit: str, each: int = 1) -> Iterator[int]:
        """Yield the numbers of rounds until `done`, to which each adds this much, is `count`, or too much failed."""
        with tqdm(total=count, unit=f" {unit}", disable=None) as bar:
            for number in itertools.count():
                if self.done >= count or len(self.failures) >= MOST_FAILURES:
                    break
                yield number
                self.done += each
                bar.update(min(self.done, count) - bar.n)

    def fail(self, what: str) -> None:
        """Note a failure."""
        self.failures.append(f"seed {self.seed}, {what}")

    @contextmanager
    def trial(self, what: str) -> Iterator[None]:
        """Note an error as a failure, and go on."""
        try:
            yield
        except (AssertionError, KeyError, OSError, ValueError, fr.FastRecordError) as error:
            self.fail(f"{what}: {type(error).__name__}: {error}")

    def outcome(self, *details: str) -> Outcome:
        """Return what came of it."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
        told = "; ".join(filter(None, (f"seed {self.seed}", kinds, *details)))
        return Outcome(self.done, self.failures[:MOST_FAILURES], told)
