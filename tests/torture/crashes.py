"""Crash states and faults: tests of the core's, with more cases than `cargo test` runs, and of a fresh seed."""

from __future__ import annotations

import random

from tests.torture.experiment import Experiment, Outcome, cargo_test


def _fresh() -> dict[str, str]:
    return {"FASTRECORD_SEED": str(random.SystemRandom().randrange(1 << 32))}


def _states(count: int) -> Outcome:
    name = "a_crash_or_a_kill_at_any_moment_leaves_a_whole_commit_and_the_next_writer_goes_on"
    return cargo_test("crash_states", name, count, env=_fresh())


def _faults(count: int) -> Outcome:
    name = "every_call_that_fails_is_told_with_what_is_safe_and_the_next_writer_goes_on"
    return cargo_test("faults", name, count, env=_fresh())


CRASH_STATES = Experiment(
    name="crash-states",
    promise=1,
    what="crash states",
    where="rust/core/tests/crash_states.rs",
    short=20_000,
    long=100_000,
    run=_states,
    in_tests=False,
)
FAULTS = Experiment(
    name="faults",
    promise=2,
    what="failing calls",
    where="rust/core/tests/faults.rs",
    short=1_500,
    long=30_000,
    run=_faults,
    in_tests=False,
)
