"""The core's own tests under Miri, valgrind and ThreadSanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.torture.core.fuzz import nightly_host
from tests.torture.experiment import ROOT, Experiment, Outcome

_PASSED = re.compile(r"^test result: ok\. (\d+) passed", re.MULTILINE)
# Modules with `unsafe` whose tests need no file or C library, and the threads that borrow memory.
_INTERPRETED = ["image::row::", "parallel::"]
# Tests that read mappings, call the C libraries, or fill one buffer from several threads.
_WATCHED = ["compression", "image", "roundtrip", "side_bytes", "stacking", "types"]
# Tests of threads that share memory, work and files; the library's own (`tests::`) come with them.
_THREADED = ["concurrent", "ingest", "loader", "stacking"]
# Each test takes a hundred times as long under Miri.
_FEWER = {"PROPTEST_CASES": "4", "FASTRECORD_TORTURE": "20"}


def _run(command: list[str], env: dict[str, str], detail: str) -> Outcome:
    """Run tests; count the passed ones."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | _FEWER | env)
    passed = sum(int(found) for found in _PASSED.findall(done.stdout))
    if done.returncode == 0 and passed > 0:
        return Outcome(passed, detail=detail)
    return Outcome(passed, [f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}"])


def miri(_count: int) -> Outcome:
    """Interpret the tests of unsafe code: undefined behaviour ends them."""
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        return Outcome(0, ["Miri is not here: rustup toolchain install nightly --component miri,rust-src"])
    command = ["cargo", "+nightly", "miri", "test", "-p", "fastrecord-core", "--lib", "--", *_INTERPRETED]
    command += ["--skip", "every_item_runs_once"]  # hours; model checkers cover its core
    flags = "-Zmiri-disable-isolation -Zmiri-strict-provenance"
    return _run(command, {"MIRIFLAGS": flags}, "no undefined behaviour; strict provenance")


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
    command = ["cargo", "test", "--profile", "torture", "--no-fail-fast", "-p", "fastrecord-core", "--test", "all"]
    command += ["--", *(f"{module}::" for module in _WATCHED)]
    return _run(command, env, "memcheck: no invalid access, nothing uninitialised used, nothing lost")


def tsan(_count: int) -> Outcome:
    """Run tests with every memory access checked, including the standard library's."""
    host = nightly_host()
    if host is None:
        return Outcome(
            0, ["ThreadSanitizer needs Rust's nightly: rustup toolchain install nightly --component rust-src"]
        )
    tests = ["--lib", "--test", "all", "--", "tests::", *(f"{module}::" for module in _THREADED)]
    command = ["cargo", "+nightly", "test", "-Zbuild-std", "--target", host, "--no-fail-fast", "-p", "fastrecord-core"]
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tsan"
    env = {
        "RUSTFLAGS": "-Zsanitizer=thread",
        "CARGO_TARGET_DIR": str(folder),
        # The child of a threaded process may have threads: this is the tested case.
        "TSAN_OPTIONS": "halt_on_error=1 die_after_fork=0",
    }
    return _run([*command, *tests], env, "no data race")


MIRI = Experiment("miri", 4, "tests", "tests/torture/core/sanitizers.py", 1, 1, miri, in_tests=False)
VALGRIND = Experiment("valgrind", 4, "tests", "tests/torture/core/sanitizers.py", 1, 1, valgrind, in_tests=False)
TSAN = Experiment("tsan", 8, "tests", "tests/torture/core/sanitizers.py", 1, 1, tsan, in_tests=False)
