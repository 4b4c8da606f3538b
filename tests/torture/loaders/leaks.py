"""Ends loaders in every way and measures leaks."""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from tqdm import tqdm

from tests.torture.experiment import Experiment, Outcome, Rounds
from tests.torture.processes import Use, descendants, use

# Tolerated bytes per loader: memory is counted in pages, and lasting allocations come in steps.
_LEAST_LEAK = 512
# From this many loaders on, check the slope; below it, check the total.
_ENOUGH = 2000
_ROOM = 32 << 20
_HUNDRED = 100
# Per this many hundreds, trace this many in a row, always from the same number on. Tracing doubles
# the time.
_PERIOD, _TRACED = 50, 10
# Objects that replace older, untraced ones look like growth at first: torch's table of shared
# memory holds 128, and Python keeps some of each size. Hundreds until all have been replaced:
_REPLACED = 4
# Tolerated bytes of Python objects per loader: over so few hundreds the table's state shows.
_LEAST_TRACED = 64


@dataclass
class Samples:
    """What the process held after some loaders, which have all ended.

    Attributes:
        made: Number of loaders so far.
        memory: Bytes of the process.
        blocks: Bytes of Python's allocator.
        traced: Bytes of Python objects per loader, over hundreds of them in a row.
    """

    made: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    traced: list[float] = field(default_factory=list)

    def leaks(self) -> tuple[list[str], str]:
        """Return what grows but should not, and the growth of every quantity."""
        if self.made[-1] < _ENOUGH:
            grown = self.memory[-1] - self.memory[0]
            failures = [f"{grown} bytes more in the end"] if grown > _ROOM else []
            return failures, f"memory grew by {grown / 1024:.0f} KiB"
        # By then everything that is made once and kept exists, such as message tables.
        later = len(self.made) // 5
        made = self.made[later:]
        memory, blocks = slope(made, self.memory[later:]), slope(made, self.blocks[later:])
        traced = min(self.traced)
        failures = [f"{memory:.0f} bytes are left of each loader"] if memory > _LEAST_LEAK else []
        if traced > _LEAST_TRACED:
            failures.append(f"{traced:.0f} bytes of Python's objects are left of each loader")
        told = f"{memory:.0f} bytes of memory, {blocks:.2f} blocks and {traced:.0f} bytes of Python's objects a loader"
        return failures, f"in all {(self.memory[-1] - self.memory[later]) / 1024:.0f} KiB more; {told}"


def slope(made: Iterable[int], held: Iterable[float]) -> float:
    """Return the growth per loader: the median over all pairs of moments (Theil and Sen)."""
    points = list(zip(made, held, strict=True))
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2))


def settled(first: Use) -> Use:
    """Return what this process holds once its ending threads are gone, or after a minute."""
    end = time.monotonic() + 60
    while (now := use()).threads > first.threads and time.monotonic() < end:
        time.sleep(0.01)
    return now


def shared_memory(pids: Iterable[int]) -> list[str]:
    """Return what processes have put into shared memory by torch; the processes may be gone."""
    folder, mine = Path("/dev/shm"), set(pids)
    found = [(path.name, re.match(r"torch_(\d+)_", path.name)) for path in folder.iterdir()] if folder.exists() else []
    return [name for name, match in found if match is not None and int(match[1]) in mine]


Step = Callable[[], None]


def watch(count: int, often: Sequence[Step], rarely: Sequence[Step], rare: int) -> tuple[list[str], Samples]:
    """Do `count` steps, measure after each hundred, and return what has changed.

    Args:
        count: Number of steps.
        often: Steps that run in turn.
        rarely: Steps that run in turn instead of each step number `rare`.
        rare: Interval of the `rarely` steps.
    """
    hundred = min(_HUNDRED, max(1, count // 6))
    # Before the first count: it has a thread.
    hundreds = tqdm(range(0, count, hundred), unit="x100", disable=None)
    for step in [*often, *rarely] * (3 if count >= _ENOUGH else 1):
        step()
    first, samples = use(), Samples()
    failures: list[str] = []
    traced: list[tuple[int, int]] = []
    for start in hundreds:
        stop = min(start + hundred, count)
        place = start // hundred % _PERIOD - _TRACED
        if place == 0:
            tracemalloc.start()
        for number in range(start, stop):
            steps = rarely if rarely and number % rare == rare - 1 else often
            steps[(number // rare if steps is rarely else number) % len(steps)]()
        now = settled(first)
        if any(getattr(now, what) > getattr(first, what) for what in ("descriptors", "threads", "mappings")):
            failures.append(f"after {stop}: {now}, before the first one {first}")
        if tracemalloc.is_tracing():
            traced.append((stop, tracemalloc.get_traced_memory()[0]))
            # The traces also take memory.
            if place < _TRACED - 1:
                continue
            tracemalloc.stop()
            samples.traced.append(slope(*zip(*traced[_REPLACED:], strict=True)))
            traced.clear()
        samples.made.append(stop)
        samples.memory.append(use().memory)
        samples.blocks.append(sys.getallocatedblocks())
    tracemalloc.stop()
    return failures, samples


def run(count: int) -> Outcome:
    """See the module docstring."""
    from tests.torture.loaders import ways

    rounds = Rounds()
    with tempfile.TemporaryDirectory(prefix="leaks-") as folder:
        files, draw = ways.write_files(Path(folder)), rounds.draw
        often, rarely = ([lambda way=way: way(files, draw) for way in some] for some in (ways.OFTEN, ways.RARELY))
        failures, samples = watch(count, often, rarely, ways.RARE)
    failures += [f"left in shared memory: {name}" for name in shared_memory(ways.WORKERS)]
    failures += [f"a process is left: {process}" for process in descendants(os.getpid())]
    more, told = samples.leaks()
    rounds.failures, rounds.done = failures + more, count
    return rounds.outcome(told)


EXPERIMENT = Experiment(
    *("leaks", 7, "loaders made and ended in every way", 60, 10_000, run),
    where="tests/torture/loaders/leaks.py, tests/torture/loaders/ways.py",
    apart=True,
)
