"""The core's own tests: with many cases and fresh seeds, in model checkers, Miri, valgrind and ThreadSanitizer."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from tests.torture.core.fuzz import nightly_host
from tests.torture.experiment import ROOT, Experiment, Outcome

# A Rust test prints one such line: JSON with the key count, and optionally detail.
_REPORT = re.compile(r"^torture: (\{.*\})$", re.MULTILINE)
_PASSED = re.compile(r"^test result: ok\. (\d+) passed", re.MULTILINE)
# Modules with `unsafe` whose tests need no file or C library, and the threads that borrow memory.
_INTERPRETED = ["image::row::", "parallel::"]
# Tests that read mappings, call the C libraries, or fill one buffer from several threads.
_WATCHED = ["compression", "image", "roundtrip", "side_bytes", "stacking", "types"]
# Tests of threads that share memory, work and files; the library's own (`tests::`) come with them.
_THREADED = ["concurrent", "ingest", "loader", "stacking"]


def _cargo(words: list[str], detail: str | None = None, **env: str) -> Outcome:
    """Run tests; their output is the failure.

    Args:
        words: Arguments of cargo.
        detail: What passing shows; then passed tests are counted. Without, the cases that the tests report.
        env: Additional environment variables. `FASTRECORD_TORTURE` is the number of cases that a test uses.
    """
    done = subprocess.run(["cargo", *words], cwd=ROOT, capture_output=True, text=True, env=os.environ | env)
    reports = [json.loads(text) for text in _REPORT.findall(done.stdout)]
    cases = [report["count"] for report in reports] if detail is None else map(int, _PASSED.findall(done.stdout))
    details = dict.fromkeys(report.get("detail", "") for report in reports)
    count = sum(cases)
    if done.returncode == 0 and count > 0:
        return Outcome(count, detail=detail or "; ".join(filter(None, details)))
    said = (done.stdout + done.stderr)[-3000:]
    return Outcome(count, [f"cargo {' '.join(words)} ended with {done.returncode}: {said}"])


def _cases(
    name: str, promise: int, what: str, short: int, long: int, where: str, test: str = "", features: str = ""
) -> Experiment:
    """Return the experiment that runs tests with as many cases, and a fresh seed.

    Args:
        name, promise, what, short, long, where: The experiment.
        test: The test of the core; without, all tests of a file of rust/model, which share the cases.
        features: Features of the crate.
    """
    crate = (
        ["-p", "fastrecord-core", "--test", "all"] if test else ["-p", "fastrecord-model", "--test", Path(where).stem]
    )
    words = ["test", "--profile", "torture", *crate, *(["--features", features] if features else [])]
    words += ["--", "--include-ignored", "--nocapture", *(["--exact", test] if test else [])]
    # rust/model/tests/schedules.rs has seven scenarios, each with this number of schedules.
    scenarios = 7 if name == "schedules" else 1

    def run(count: int) -> Outcome:
        env = {"FASTRECORD_TORTURE": str(-(-count // scenarios)), "FASTRECORD_SEED": str(secrets.randbits(32))}
        return _cargo(words, **env)

    return Experiment(name, promise, what, short, long, run, where, in_tests=False)


def _safety(name: str, promise: int, what: str, short: int, long: int, test: str) -> Experiment:
    where = f"rust/core/tests/all/safety/{test.partition('::')[0]}.rs"
    return _cases(name, promise, what, short, long, where, f"safety::{test}")


def _checked(words: list[str], detail: str, **env: str) -> Outcome:
    """Run tests with fewer cases: each takes a hundred times as long."""
    return _cargo(words, detail, PROPTEST_CASES="4", FASTRECORD_TORTURE="20", **env)


def miri(_count: int) -> Outcome:
    """Interpret the tests of unsafe code: undefined behaviour ends them."""
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        return Outcome(0, ["Miri is not here: rustup toolchain install nightly --component miri,rust-src"])
    words = ["+nightly", "miri", "test", "-p", "fastrecord-core", "--lib", "--", *_INTERPRETED]
    words += ["--skip", "every_item_runs_once"]  # hours; model checkers cover its core
    flags = "-Zmiri-disable-isolation -Zmiri-strict-provenance"
    return _checked(words, "no undefined behaviour; strict provenance", MIRIFLAGS=flags)


def valgrind(_count: int) -> Outcome:
    """Run tests under memcheck, including the C libraries."""
    if shutil.which("valgrind") is None:
        return Outcome(0, ["valgrind is not here: install it"])
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    triple = next(line.removeprefix("host: ") for line in host.splitlines() if line.startswith("host: "))
    checker = "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite"
    # libjpeg-turbo's vector code also processes whole vectors beyond the end of a row: memcheck
    # reports the extra values as uninitialised.
    env = {f"CARGO_TARGET_{triple.upper().replace('-', '_')}_RUNNER": checker, "JSIMD_FORCENONE": "1"}
    words = ["test", "--profile", "torture", "--no-fail-fast", "-p", "fastrecord-core", "--test", "all"]
    words += ["--", *(f"{module}::" for module in _WATCHED)]
    return _checked(words, "memcheck: no invalid access, nothing uninitialised used, nothing lost", **env)


def tsan(_count: int) -> Outcome:
    """Run tests with every memory access checked, including the standard library's."""
    if (host := nightly_host()) is None:
        need = "ThreadSanitizer needs Rust's nightly: rustup toolchain install nightly --component rust-src"
        return Outcome(0, [need])
    words = ["+nightly", "test", "-Zbuild-std", "--target", host, "--no-fail-fast", "-p", "fastrecord-core"]
    words += ["--lib", "--test", "all", "--", "tests::", *(f"{module}::" for module in _THREADED)]
    env = {
        "RUSTFLAGS": "-Zsanitizer=thread",
        "CARGO_TARGET_DIR": str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tsan"),
        # The child of a threaded process may have threads: this is the tested case.
        "TSAN_OPTIONS": "halt_on_error=1 die_after_fork=0",
    }
    return _checked(words, "no data race", **env)


EXPERIMENTS = [
    _safety(
        *("crash-states", 1, "crash states", 20_000, 100_000),
        "crash_states::a_crash_or_a_kill_at_any_moment_leaves_a_whole_commit_and_the_next_writer_goes_on",
    ),
    _safety(
        *("faults", 2, "failing calls", 1_500, 30_000),
        "faults::every_call_that_fails_is_told_with_what_is_safe_and_the_next_writer_goes_on",
    ),
    # More bits than any small file has, so every bit is flipped.
    _safety("bits", 3, "flipped bits", 3_000, 10_000_000, "bits::a_flipped_bit_anywhere_is_named_or_padding"),
    _safety(
        *("bits-large", 3, "damages of a large file", 120, 3_000),
        "bits::damaged_pages_of_a_large_file_are_named_and_nothing_else_is",
    ),
    _safety(
        *("repair", 3, "damaged files", 150, 20_000),
        "repair::each_record_that_was_not_hit_is_saved_as_it_was_and_the_others_are_listed",
    ),
    _cases(
        *("schedules", 8, "random schedules of the pool's and the loader's threads", 14_000, 2_000_000),
        "rust/model/tests/schedules.rs",
    ),
    _cases(
        *("every-schedule", 8, "schedules of two and three threads: all there are, up to a bound of preemptions", 1, 1),
        where="rust/model/tests/every_schedule.rs",
        features="loom",
    ),
    Experiment("miri", 4, "tests", 1, 1, miri, in_tests=False),
    Experiment("valgrind", 4, "tests", 1, 1, valgrind, in_tests=False),
    Experiment("tsan", 8, "tests", 1, 1, tsan, in_tests=False),
]
