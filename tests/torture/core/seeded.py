"""Tests of rust/core/tests/all/safety with more cases than `cargo test` runs, and a fresh seed."""

from __future__ import annotations

import secrets

from tests.torture.experiment import Experiment, Outcome, cargo_test


def seeded(name: str, promise: int, what: str, short: int, long: int, module: str, test: str) -> Experiment:
    """Return the experiment that runs a test of rust/core/tests/all/safety/`module`.rs."""

    def run(count: int) -> Outcome:
        seed = secrets.randbelow(1 << 32)
        return cargo_test("all", f"safety::{module}::{test}", count, env={"FASTRECORD_SEED": str(seed)})

    where = f"rust/core/tests/all/safety/{module}.rs"
    return Experiment(name, promise, what, where, short, long, run, in_tests=False)


CRASH_STATES = seeded(
    *("crash-states", 1, "crash states", 20_000, 100_000, "crash_states"),
    "a_crash_or_a_kill_at_any_moment_leaves_a_whole_commit_and_the_next_writer_goes_on",
)
FAULTS = seeded(
    *("faults", 2, "failing calls", 1_500, 30_000, "faults"),
    "every_call_that_fails_is_told_with_what_is_safe_and_the_next_writer_goes_on",
)
# More bits than any small file has, so every bit is flipped.
BITS = seeded(
    *("bits", 3, "flipped bits", 3_000, 10_000_000, "bits"),
    "a_flipped_bit_anywhere_is_named_or_padding",
)
PAGES = seeded(
    *("bits-large", 3, "damages of a large file", 120, 3_000, "bits"),
    "damaged_pages_of_a_large_file_are_named_and_nothing_else_is",
)
REPAIRS = seeded(
    *("repair", 3, "damaged files", 150, 20_000, "repair"),
    "each_record_that_was_not_hit_is_saved_as_it_was_and_the_others_are_listed",
)
