"""Threads of several processes read through one cache that is too small for what they read.

Each read returns the right values, or the error that the cache is too small; none waits for ever.
"""

from __future__ import annotations

import faulthandler
import random
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import fastrecord as fr
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import read_values
from tests.support.packing import write_shards
from tests.torture.experiment import Experiment, Outcome, Rounds

_SHARDS = (1, 2, 5, 20, 40)
_EACH, _BYTES = 12, 27_000
# Bytes of the cache, in shards.
_SIZES = (0.5, 0.8, 1, 1.1, 1.5, 2.5, 2.5, 5, 10)
_PROCESSES, _READS = 3, 6
_PATIENCE = 120
_TOO_SMALL = "too small"


def _value(row: int) -> bytes:
    return np.random.default_rng(row).bytes(_BYTES)


def _read(url: str, cache: str, size: int, seed: str) -> Counter[str]:
    """Read some rows several times, as one of several threads; count what comes."""
    draws, found = random.Random(seed), Counter[str]()
    shards = Shards.open(url, store=fr.Store(cache=cache, cache_size=size))
    for _ in range(_READS):
        _go_on()
        rows = np.array(sorted(draws.sample(range(len(shards)), draws.choice((1, 2, 4, 6)))))
        try:
            values = read_values(shards, rows, ["data", "row"], verify=True)
        except fr.FastRecordError as error:
            found[_TOO_SMALL if error.code == "FR212" else f"{seed}: {error}"] += 1
            continue
        right = values["row"].tolist() == rows.tolist() and [*map(bytes, values["data"])] == [*map(_value, rows)]
        found["reads" if right else f"{seed}: other values than those of {rows}"] += 1
    return found


def _go_on() -> None:
    """End the process, which fails, if nothing comes for some time."""
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)


def _load(url: str, cache: str, size: int, seed: str) -> Counter[str]:
    """Read an epoch by a loader; a cache that is large enough has a plan."""
    draws, count = random.Random(seed), 0
    dataset = fr.FastRecordDataset(url, fields=("data", "row"), store=fr.Store(cache=cache, cache_size=size))
    loader = fr.FastRecordLoader(dataset, 4, shuffle=draws.choice((True, fr.Blocks(window=2))))
    try:
        for batch in loader:
            _go_on()
            if [*map(bytes, batch["data"])] != [*map(_value, batch["row"].tolist())]:
                return Counter([f"{seed}: other values than those of {batch['row']}"])
            count += 1
    except fr.FastRecordError as error:
        return Counter([_TOO_SMALL if error.code == "FR212" else f"{seed}: {error}"])
    return Counter({"batches": count})


def _rounds(folder: str, seed: int, process: int, count: int) -> Counter[str]:
    """One of the processes; what others draw too says what a round is."""
    found = Counter[str]()
    for number in range(count):
        _go_on()
        try:
            found.update(_round(folder, seed, process, number))
        finally:
            faulthandler.cancel_dump_traceback_later()
    return found


def _round(folder: str, seed: int, process: int, number: int) -> Counter[str]:
    draws = random.Random(f"{seed} {number}")
    shards, threads, size = draws.choice(_SHARDS), draws.choice((1, 2, 4, 8)), draws.choice(_SIZES)
    loads = number % 20 == 19
    url, cache = Path(folder, str(min(shards, 5 if loads else 40))).as_uri(), f"{folder}/caches/{number}"
    reads = [partial(_load if loads and not n else _read, url, cache) for n in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seeds = [f"seed {seed}, round {number}, process {process}, thread {n}" for n in range(threads)]
        futures = [pool.submit(read, int(size * _EACH * _BYTES), one) for read, one in zip(reads, seeds, strict=True)]
        return sum((future.result() for future in futures), Counter[str]())


def run(count: int) -> Outcome:
    """Run so many rounds."""
    rounds = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "caches").mkdir()
        schema = fr.Schema({"data": fr.bytes_(), "row": "int64"})
        for shards in _SHARDS:
            write_shards(
                Path(folder, str(shards)), schema, shards, _EACH, lambda row: {"data": _value(row), "row": row}
            )
        with ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
            futures = [pool.submit(_rounds, folder, rounds.seed, process, count) for process in range(_PROCESSES)]
            for future in futures:
                try:
                    rounds.counts.update(future.result())
                except Exception as error:  # noqa: BLE001 - a process that hangs is ended, and breaks the pool
                    rounds.fail(f"{type(error).__name__}: {error}")
    rounds.failures += [kind for kind in rounds.counts if kind not in ("reads", "batches", _TOO_SMALL)]
    if count >= 8 and not rounds.counts["reads"]:
        rounds.fail("no read was right")
    rounds.done = count
    return rounds.outcome()


EXPERIMENT = Experiment(
    *("small-caches", 8, "rounds of threads and processes that share a cache that is too small", 12, 1000, run),
    apart=True,
)
