"""`measure_store`: how long an object store takes to answer, and how many bytes a second come."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from functools import partial

from fastrecord.dataset.shards import Named, find_sets
from fastrecord.inspect.findings import Answer
from fastrecord.store.requests import PARALLEL, PART, at_once
from fastrecord.store.store import Store

_ANSWERS = 9
# Bytes of one request alone, and the most of the parallel ones, by which the speed is measured.
_ALONE, _MOST = 4 << 20, 128 << 20


@dataclass(frozen=True, slots=True)
class StoreReport(Answer):
    """What `measure_store` found.

    Attributes:
        url: The data set or file.
        latency: Median seconds until a byte comes.
        one: Bytes a second of one request.
        parallel: Bytes a second of all requests that are made at once.
        requests: How many these are.
        limit: What limits reading, in a sentence.
    """

    url: str
    latency: float
    one: float
    parallel: float
    requests: int
    limit: str


def measure_store(url: str, *, store: Store | None = None) -> StoreReport:
    """Measure reading of a data set in an object store: some seconds, at most about 130 MB.

    Args:
        url: A data set or a .frec file.
        store: Options of the object store.

    Raises:
        FileNotFoundError: it does not exist. FastRecordError: the store does not answer.
    """
    (found,) = find_sets(url, store)
    if not isinstance(found, Named) or found.source is None:
        raise FileNotFoundError(f"{url}: is not in an object store")
    folder, columns = found.source.folder, found.manifest.columns
    name, size = max(zip(columns["name"], columns["bytes"], strict=True), key=lambda shard: shard[1])
    times = []
    for number in range(_ANSWERS):
        start = time.perf_counter()
        folder.get(name, number, 1)
        times.append(time.perf_counter() - start)
    latency = statistics.median(times[1:])  # the first one connects
    start = time.perf_counter()
    alone = len(folder.get(name, 0, min(size, _ALONE)).data)
    one = alone / (time.perf_counter() - start)
    part = min(PART, max(1 << 16, size // PARALLEL))
    places = range(0, min(size, _MOST), part)
    start = time.perf_counter()
    answers = at_once(*(partial(folder.get, name, at, min(part, size - at)) for at in places))
    parallel = sum(len(answer.data) for answer in answers) / (time.perf_counter() - start)
    return StoreReport(url, latency, one, parallel, min(PARALLEL, len(places)), _limit(latency, one, parallel))


def _limit(latency: float, one: float, parallel: float) -> str:
    if parallel < 1.5 * one:
        return "the bandwidth: one request has nearly all of it, and more of them gain little"
    if latency * one > 1 << 20:
        return "the latency of single requests: larger batches and shards hide it, as many requests run side by side"
    if (os.cpu_count() or 1) <= 2:
        return "perhaps this machine: it has few CPUs, and each request needs some"
    return "the speed of a single connection: many requests side by side hide it"
