"""A contest runs loaders in processes of their own, one epoch each in turn, repeatedly."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benches.conftest import leave_out, note
from benches.peers import Data
from benches.peers.process import Contender

ROUNDS = int(os.environ.get("FASTRECORD_BENCH_ROUNDS", "3"))

MEAN_DIFFERS = 4.0  # of 255: allowed difference of mean pixels, as crops differ; a wrong image differs by far more


@contextmanager
def started(
    names: dict[str, tuple[str, int, int]], data: Data, *, memory: bool = False
) -> Iterator[dict[str, Contender]]:
    """Start contenders by name (module, threads, batch); each makes its files and runs an epoch.

    With `memory`, that is the second epoch; the memory of the first one is measured, since checking
    takes memory, too.

    A contender that cannot be measured, or that later fails or hangs, is left out, and the summary
    reports it. The first contender must run.

    Raises:
        ValueError: the images of one contender differ from the images of the others.
    """
    with ExitStack() as stack:
        all_of_them = {
            name: stack.enter_context(Contender(module, data, threads=threads, batch=batch))
            for name, (module, threads, batch) in names.items()
        }
        for contender in all_of_them.values():
            stack.callback(contender.end)  # ends all of them before it waits for any
        ready: dict[str, Contender] = {}
        means: dict[str, float] = {}
        first = next(iter(names))
        for name, contender in all_of_them.items():
            try:
                contender.wait()
                if contender.missing is None:
                    contender.ask("files")
                    contender.memory = contender.ask("memory 0") if memory else {}
                    means[name] = contender.ask("check 0")["mean"]
                    ready[name] = contender
                    continue
            except RuntimeError as error:
                if name == first:
                    raise
                contender.missing = str(error)
            leave_out(name, contender.missing.strip().splitlines()[-1])
        usual = statistics.median(means.values())
        for name, mean in means.items():
            if abs(mean - usual) > MEAN_DIFFERS:
                raise ValueError(f"{name}: the mean of its pixels is {mean:.2f}, the others have {usual:.2f}")
        yield ready


def contest(
    benchmark: Any,
    names: dict[str, tuple[str, int, int]],
    data: Data,
    *,
    rounds: int = ROUNDS,
    unit: str = "images",
    memory: bool = False,
) -> dict[str, float]:
    """Run an epoch of each contender in turn, repeatedly.

    Args:
        benchmark: pytest-benchmark's; it times the first contender and records the results of all.
        names: Names of the contenders: module, threads, batch.
        data: The data that they load.
        rounds: Epochs of each.
        unit: The unit of an epoch's size.
        memory: Whether each runs an epoch in which its memory is measured.
    Returns:
        The median seconds of each contender.
    """
    with started(names, data, memory=memory) as contenders:
        first, *others = contenders
        seconds: dict[str, list[float]] = {name: [] for name in others}
        cpu: dict[str, list[float]] = {name: [] for name in contenders}

        def epoch(name: str) -> None:
            answer = contenders[name].ask(f"epoch {len(cpu[name]) + 1}")
            if answer["records"] != data.records:
                raise ValueError(f"{name}: {answer['records']} {unit} of {data.records}")
            cpu[name].append(answer["cpu_seconds"])

        def turns() -> None:
            for name in list(seconds):
                start = time.perf_counter()
                try:
                    epoch(name)
                except RuntimeError as error:
                    leave_out(name, str(error).strip().splitlines()[-1])
                    del seconds[name], contenders[name]
                    continue
                seconds[name].append(time.perf_counter() - start)

        benchmark.pedantic(lambda: epoch(first), setup=turns, rounds=rounds)
        seconds = {first: list(benchmark.stats.stats.data), **seconds}
        benchmark.extra_info[unit] = data.records
        benchmark.extra_info["left_out"] = [name for name in names if name not in contenders]
        benchmark.extra_info["contenders"] = {
            name: {
                "threads": names[name][1],
                "batch": names[name][2],
                "version": contender.version,
                "seconds": seconds[name],
                "cpu_seconds": cpu[name],
            }
            | contender.memory
            for name, contender in contenders.items()
        }
        return {name: statistics.median(times) for name, times in seconds.items()}


def against(name: str, ours: str, theirs: str, seconds: dict[str, float], target: float, *, records: int) -> None:
    """Note how much faster one contender is than the other, in us per record."""
    if ours in seconds and theirs in seconds:
        scale = 1e6 / records
        note(f"{name}: {ours}", theirs, seconds[ours] * scale, seconds[theirs] * scale, target, "speedup")
