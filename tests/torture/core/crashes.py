"""Crash states and faults: core tests with more cases than `cargo test` runs, and a fresh seed."""

from __future__ import annotations

from tests.torture.experiment import Experiment, seeded_test

CRASH_STATES = Experiment(
    name="crash-states",
    promise=1,
    what="crash states",
    where="rust/core/tests/crash_states.rs",
    short=20_000,
    long=100_000,
    run=seeded_test(
        "crash_states", "a_crash_or_a_kill_at_any_moment_leaves_a_whole_commit_and_the_next_writer_goes_on"
    ),
    in_tests=False,
)
FAULTS = Experiment(
    name="faults",
    promise=2,
    what="failing calls",
    where="rust/core/tests/faults.rs",
    short=1_500,
    long=30_000,
    run=seeded_test("faults", "every_call_that_fails_is_told_with_what_is_safe_and_the_next_writer_goes_on"),
    in_tests=False,
)
