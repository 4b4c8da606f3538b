"""Shared fixtures of all benchmarks, and `versus`, which times ours and its peers in turn."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import fastrecord as fr
from benches.support.native import Gather

_ROWS: list[tuple[str, str, float, float, float, str]] = []


@pytest.fixture(scope="session")
def folder() -> Path:
    """The folder of the data, kept between runs. FASTRECORD_BENCH_DIR selects another disk."""
    path = Path(os.environ.get("FASTRECORD_BENCH_DIR", Path(__file__).parent.parent / ".cache" / "bench"))
    path.mkdir(parents=True, exist_ok=True)
    return path


@dataclass
class Data:
    """The same payloads as a .frec file and as an LMDB environment (key = record number as decimal digits)."""

    frec: Path
    lmdb: Path
    records: int
    size: int
    keys: list[bytes] = field(default_factory=list)


def make(folder: Path, records: int, size: int, *, with_lmdb: bool = True) -> Data:
    """Make records of `size` random bytes (the size of each varies by up to 1 %)."""
    data = Data(folder / f"{records}x{size}.frec", folder / f"{records}x{size}.lmdb", records, size)
    data.keys = [str(i).encode() for i in range(records)]
    noise = np.random.default_rng(0).integers(0, 256, 2 * size + 4096, np.uint8).tobytes()

    def payload(i: int) -> bytes:
        start = (i * 7919) % size
        return noise[start : start + size - (i % 100) * size // 10_000]

    if not data.frec.exists():
        schema = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})
        with fr.Writer(data.frec, schema, "w") as writer:
            for i in range(records):
                writer.append({"data": payload(i), "label": i % 1000, "key": f"n{i % 1000:08d}/{i:08d}.bin"})
    if with_lmdb and not data.lmdb.exists():
        temporary = data.lmdb.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        environment = lmdb.open(str(temporary), map_size=4 * records * (size + 4096), subdir=False, lock=False)
        for start in range(0, records, 10_000):
            with environment.begin(write=True) as transaction:
                for i in range(start, min(start + 10_000, records)):
                    transaction.put(data.keys[i], payload(i))
        environment.sync(True)
        environment.close()
        temporary.rename(data.lmdb)
    return data


@pytest.fixture(scope="session")
def large(folder: Path) -> Data:
    """10,000 records of 110 KB."""
    return make(folder, 10_000, 110_000)


@pytest.fixture(scope="session")
def small(folder: Path) -> Data:
    """1,000,000 records of 100 B."""
    return make(folder, 1_000_000, 100)


@pytest.fixture(scope="session")
def gather(folder: Path) -> Gather:
    """The C yardstick."""
    return Gather(folder)


@pytest.fixture
def versus(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Time `ours` and each of `peers` in turn (one round each) and note the median ratio.

    pytest-benchmark times ours. The peers are timed in the set-up of each round, so that all see
    the same machine.
    """

    def run(
        ours: Callable[[], Any],
        peers: dict[str, tuple[Callable[[], Any], float, str]],
        *,
        rounds: int = 30,
        before: Callable[[], Any] = lambda: None,
        scale: float = 1.0,
    ) -> None:
        times: dict[str, list[float]] = {name: [] for name in peers}

        def set_up() -> None:
            for name, (call, _, _) in peers.items():
                before()
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
            before()

        benchmark.pedantic(ours, setup=set_up, rounds=rounds, warmup_rounds=2)
        mine = benchmark.stats.stats.median
        for name, (_, target, kind) in peers.items():
            theirs = statistics.median(times[name][2:])
            # A speedup (their time over ours) must reach the target; a cost (ours over theirs) must
            # not exceed it.
            ratio = theirs / mine if kind == "speedup" else mine / theirs
            benchmark.extra_info[name] = {"seconds": theirs, "ratio": ratio, "target": target, "kind": kind}
            _ROWS.append((request.node.name, name, mine * scale, theirs * scale, ratio, _verdict(ratio, target, kind)))

    return run


def _verdict(ratio: float, target: float, kind: str) -> str:
    met = ratio >= target if kind == "speedup" else ratio <= target
    return f"{'>=' if kind == 'speedup' else '<='} {target:g} {'met' if met else 'NOT MET'}"


def note(name: str, peer: str, mine: float, theirs: float, target: float, kind: str) -> None:
    """Add a row to the table for a value that is not a time (for example, bytes)."""
    ratio = theirs / mine if kind == "speedup" else mine / theirs
    _ROWS.append((name, peer, mine, theirs, ratio, _verdict(ratio, target, kind)))


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add cores and memory to the --benchmark-json output, and leave out the machine's name."""
    machine_info.pop("node", None)
    machine_info["cores"] = len(os.sched_getaffinity(0))
    machine_info["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the ratios."""
    if _ROWS:
        terminalreporter.section("ratios of medians, interleaved in one run")
        terminalreporter.write_line(f"{'what':58} {'against':26} {'ours':>11} {'theirs':>11} {'ratio':>7}  target")
        for name, peer, mine, theirs, ratio, verdict in _ROWS:
            terminalreporter.write_line(f"{name:58} {peer:26} {mine:11.6g} {theirs:11.6g} {ratio:7.2f}  {verdict}")
