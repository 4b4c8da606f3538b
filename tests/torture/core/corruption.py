"""Corruption is detected and repaired where possible: flipped bits, damaged pages, or both."""

from __future__ import annotations

from tests.torture.experiment import Experiment, seeded_test

# More bits than any small file has, so every bit is flipped.
BITS = Experiment(
    name="bits",
    promise=3,
    what="flipped bits",
    where="rust/core/tests/bits.rs",
    short=3000,
    long=10_000_000,
    run=seeded_test("bits", "a_flipped_bit_anywhere_is_named_or_padding"),
    in_tests=False,
)
PAGES = Experiment(
    name="bits-large",
    promise=3,
    what="damages of a large file",
    where="rust/core/tests/bits.rs",
    short=120,
    long=3000,
    run=seeded_test("bits", "damaged_pages_of_a_large_file_are_named_and_nothing_else_is"),
    in_tests=False,
)
REPAIRS = Experiment(
    name="repair",
    promise=3,
    what="damaged files",
    where="rust/core/tests/repair.rs",
    short=150,
    long=20_000,
    run=seeded_test("repair", "each_record_that_was_not_hit_is_saved_as_it_was_and_the_others_are_listed"),
    in_tests=False,
)
