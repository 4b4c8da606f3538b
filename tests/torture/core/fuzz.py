"""The fuzz targets of rust/fuzz under libFuzzer and AddressSanitizer, for Rust and C code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from tests.torture.experiment import ROOT, Experiment, Outcome

FUZZ = ROOT / "rust" / "fuzz"
# Interesting inputs and findings of the fuzzer; the next run starts from them.
KEPT = ROOT / ".cache" / "fuzz"
# Limits per input, seconds and memory: for the C libraries, as the targets bound the Rust code.
TIMEOUT, MEMORY_MIB = 25, 2048
# The longest input of each target: enough for every feature of the format.
MOST_BYTES = {
    "open": 20480,
    "read": 160,
    "index": 1024,
    "schema": 2048,
    "payload": 1024,
    "decode": 4096,
    "crop_index": 4096,
    "packed": 4096,
    "append": 160,
    "augment": 256,
}
# The flags of cargo-fuzz: counters at each edge and the sanitizer's memory checks. They omit the
# trace of comparisons, which takes a third of the time. The targets fix checksums or find magic
# numbers in words/, so the fuzzer need not guess them.
_RUST = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Zsanitizer=address",
]
_C = "-O2 -g1 -fno-omit-frame-pointer -fsanitize=address -fsanitize-coverage=trace-pc"
_UNITS = re.compile(r"^stat::number_of_executed_units: +(\d+)", re.MULTILINE)
_DONE = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+)", re.MULTILINE)


def nightly_host() -> str | None:
    """The host triple of the nightly toolchain; None if there is none."""
    try:
        done = subprocess.run(["rustc", "+nightly", "-vV"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    found = re.search(r"^host: (\S+)", done.stdout, re.MULTILINE)
    return found[1] if done.returncode == 0 and found else None


def build(target: str, host: str) -> Path:
    """Build a target and its dependencies with the sanitizer; return the program.

    Raises:
        subprocess.CalledProcessError: the build failed; stderr names the cause.
    """
    folder = Path(os.environ.get("CARGO_TARGET_DIR", FUZZ / "target"))
    folder.mkdir(parents=True, exist_ok=True)
    counters = folder / "counters.o"
    subprocess.run(["cc", "-O2", "-c", FUZZ / "counters.c", "-o", counters], check=True, capture_output=True, text=True)
    more = {
        "RUSTFLAGS": " ".join([*_RUST, f"-Clink-arg={counters}"]),
        # For the target only: build scripts are built without it.
        f"CFLAGS_{host.replace('-', '_')}": _C,
        # libjpeg-turbo's build also links programs.
        "LDFLAGS": str(counters),
        "CARGO_TARGET_DIR": str(folder),
    }
    command = ["cargo", "+nightly", "rustc", "--release", "--locked", "--target", host, "--bin", target]
    command += ["--", "-Clink-arg=-Wl,--wrap=__sanitizer_cov_trace_pc"]
    subprocess.run(command, cwd=FUZZ, check=True, capture_output=True, text=True, env=os.environ | more)
    return folder / host / "release" / target


def fuzz(target: str, count: int) -> Outcome:
    """Run a target this often, from the committed corpus and the inputs that earlier runs added."""
    host = nightly_host()
    if host is None:
        return Outcome(0, ["fuzzing needs Rust's nightly toolchain: rustup toolchain install nightly"])
    try:
        program = build(target, host)
    except subprocess.CalledProcessError as error:
        return Outcome(0, [f"{error.cmd} ended with {error.returncode}: {error.stderr[-2000:]}"])
    kept = KEPT / target
    (kept / "corpus").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: libFuzzer runs in any folder but writes its current input.
        ours = shutil.copytree(FUZZ / "corpus" / target, Path(folder) / "corpus")
        command = [
            *(str(program), str(kept / "corpus"), str(ours)),
            *(f"-runs={count}", f"-max_len={MOST_BYTES[target]}", f"-timeout={TIMEOUT}"),
            *(f"-rss_limit_mb={MEMORY_MIB}", f"-malloc_limit_mb={MEMORY_MIB // 2}", "-detect_leaks=0"),
            *("-print_final_stats=1", f"-artifact_prefix={kept}/"),
            # Weighing inputs by the rarity of their edges takes longer than many inputs.
            "-entropic=0",
        ]
        words = FUZZ / "words" / target
        command += [f"-dict={words}"] if words.exists() else []
        # Rust's compiler refuses locals that outlive their frame, so this is not checked. Freed
        # memory stays poisoned for some thousand inputs, not for a hundred thousand.
        options = {
            "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=0:detect_stack_use_after_return=0:"
            "malloc_context_size=4:quarantine_size_mb=32"
        }
        with (kept / "log").open("w") as log:
            done = subprocess.run(command, cwd=folder, stdout=log, stderr=log, env=os.environ | options)
    text = (kept / "log").read_text(errors="replace")
    units, progress = _UNITS.search(text), list(_DONE.finditer(text))
    executed = int(units[1]) if units else int(progress[-1][1]) if progress else 0
    covered = f"{int(progress[-1][2]):,} edges covered, " if progress else ""
    failures = [] if done.returncode == 0 else [f"{' '.join(command)} ended with {done.returncode}: {text[-3000:]}"]
    return Outcome(executed, failures, f"{covered}inputs of up to {MOST_BYTES[target]:,} bytes, AddressSanitizer")


EXPERIMENTS = [
    Experiment(
        *(f"fuzz-{target.replace('_', '-')}", 4, "executions", 10_000, 10_000_000, partial(fuzz, target)),
        where=f"rust/fuzz/src/{target}.rs, rust/core/tests/all/safety/hostile.rs",
        in_tests=False,
    )
    for target in MOST_BYTES
]
