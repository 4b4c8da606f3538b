"""Schedules of the thread pool and the loader, explored by the model checkers of rust/model."""

from __future__ import annotations

import secrets

from tests.torture.experiment import Experiment, Outcome, cargo_test

PACKAGE = "fastrecord-model"
# Scenarios in rust/model/tests/schedules.rs, and the number of schedules of each.
SCENARIOS = 7


def _random(count: int) -> Outcome:
    env = {"FASTRECORD_SEED": str(secrets.randbits(32))}
    return cargo_test("schedules", None, -(-count // SCENARIOS), package=PACKAGE, env=env)


def _every(count: int) -> Outcome:
    return cargo_test("every_schedule", None, count, package=PACKAGE, features="loom")


RANDOM_SCHEDULES = Experiment(
    "schedules",
    8,
    "random schedules of the pool's and the loader's threads",
    "rust/model/tests/schedules.rs",
    14_000,
    2_000_000,
    _random,
    in_tests=False,
)
EVERY_SCHEDULE = Experiment(
    "every-schedule",
    8,
    "schedules of two and three threads: all there are, up to a bound of preemptions",
    "rust/model/tests/every_schedule.rs",
    1,
    1,
    _every,
    in_tests=False,
)
