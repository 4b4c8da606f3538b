"""The effect of each shuffle mode on randomness and on reads: the tables of docs/order.md.

`python -m benches.shuffles` prints them; `--file train.frec` reads that file from its disk instead
of a generated one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastrecord as fr
from benches.bench_cold import disk_bytes, drop
from benches.conftest import make
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler

# As in ImageNet: 1000 classes in order, 110 KB per image, so that default blocks have 32 records.
RECORDS, CLASSES, BYTES, BATCH = 1_281_167, 1000, 110_000, 256
KINDS: dict[str, dict[str, Any]] = {
    "full": {"shuffle": True},
    **{
        f"blocks of 32, window of {window}": {"shuffle": fr.Blocks(records=32, window=window)}
        for window in (16, 64, 128, 256, 1024)
    },
    "blocks of 128, window of 128": {"shuffle": fr.Blocks(records=128, window=128)},
    "none": {"shuffle": False},
}

DEFAULT = "blocks of 32, window of 128"


def sampler(n: int, **options: Any) -> FastRecordBatchSampler:
    return FastRecordBatchSampler(range(n), BATCH, drop_last=True, **options)


def mixing(batches: FastRecordBatchSampler) -> tuple[float, float, float, float]:
    """Measure the class diversity of 200 batches spread over an epoch.

    Returns distinct classes, entropy of the classes in bits, neighbours of one class, and the
    distinct classes of 20 consecutive batches together.
    """
    seen, entropies, neighbours, stretches = [], [], [], []
    for number in np.linspace(0, len(batches) - 20, 200).astype(int).tolist():
        labels = batches.indices(number, epoch=0) * CLASSES // RECORDS
        counts = np.unique(labels, return_counts=True)[1]
        share = counts / len(labels)
        seen.append(len(counts))
        entropies.append(-(share * np.log2(share)).sum())
        neighbours.append((labels[1:] == labels[:-1]).mean())
        stretch = np.concatenate([batches.indices(n, epoch=0) for n in range(number, number + 20)])
        stretches.append(len(np.unique(stretch * CLASSES // RECORDS)))
    return statistics.mean(seen), statistics.mean(entropies), statistics.mean(neighbours), statistics.mean(stretches)


def requests(batches: FastRecordBatchSampler, numbers: range, look_ahead: bool) -> Iterator[NDArray[np.int64]]:
    """Read requests per batch, ascending: the prefetched ones with blocks, else the batch's own."""
    ahead = batches._read_ahead(batches._epoch(0)) if look_ahead else None
    for number in numbers:
        yield np.sort(batches.indices(number, epoch=0)) if ahead is None else ahead.indices(number)


def runs_of(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def modelled(batches: FastRecordBatchSampler, *, look_ahead: bool = True) -> tuple[float, float]:
    """Compute the bytes per read, and the bytes per second of a 7200 rpm disk.

    Its head moves in 1 to 10 ms, by the square root of the distance, then waits half a turn. It
    reads 180 MB/s.
    """
    runs = [run for rows in requests(batches, range(400), look_ahead) for run in runs_of(rows) if len(run)]
    head, seconds, reads = 0, 0.0, 0
    for run in runs:
        if run[0] != head:
            seconds += 1e-3 + 9e-3 * (abs(int(run[0]) - head) / RECORDS) ** 0.5 + 0.5 / 120
            reads += 1
        seconds += len(run) * BYTES / 180e6
        head = int(run[-1]) + 1
    total = sum(map(len, runs)) * BYTES
    return total / max(reads, 1), total / seconds


def cold(path: Path, field: str, batches: FastRecordBatchSampler, *, look_ahead: bool) -> tuple[float, float]:
    """Read one epoch with a cold page cache: bytes per second, and bytes from the disk per byte."""
    drop(path)
    before = disk_bytes()
    with fr.Reader(path) as reader:
        out = np.zeros(int(reader.lengths(field).max()) * BATCH, np.uint8)
        ahead = batches._read_ahead(batches._epoch(0)) if look_ahead else None
        drop(path)
        start, read = time.perf_counter(), 0
        for number in range(len(batches)):
            rows = batches.indices(number, epoch=0)
            if ahead is not None:
                reader.prefetch(ahead.indices(number), field)
            read += int(reader.read_batch_into(rows, field, out, verify=False)[-1])
        seconds = time.perf_counter() - start
    return read / seconds, (disk_bytes() - before) / read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--field", default="data")
    arguments = parser.parse_args()

    print(f"{RECORDS} records of {CLASSES} classes in order, {BYTES} bytes each; batches of {BATCH}")
    print("| order | classes | bits | neighbours | classes of 20 batches | KB a read | MB/s, modelled |")
    for name, options in KINDS.items():
        classes, bits, neighbours, stretch = mixing(sampler(RECORDS, **options))
        size, speed = modelled(sampler(RECORDS, **options))
        print(
            f"| {name} | {classes:.0f} | {bits:.2f} | {neighbours:.2%} | {stretch:.0f} | {size / 1e3:.0f} | "
            f"{speed / 1e6:.0f} |"
        )

    size, speed = modelled(sampler(RECORDS, **KINDS[DEFAULT]), look_ahead=False)
    print(f"{DEFAULT}, without reading ahead: {size / 1e3:.0f} KB a read, {speed / 1e6:.0f} MB/s")

    path = arguments.file
    if path is None:
        folder = Path(os.environ.get("FASTRECORD_BENCH_DIR", Path(__file__).parent.parent / ".cache" / "bench"))
        folder.mkdir(parents=True, exist_ok=True)
        path = make(folder, 20_000, BYTES, with_lmdb=False).frec
    with fr.Reader(path) as reader:
        n = len(reader)
    print(f"\n{path}: an epoch of {n} records, cold, median of 3\n| order | MB/s | bytes from the disk per byte |")
    kinds = {
        "full": ({"shuffle": True}, False),
        DEFAULT: (KINDS[DEFAULT], True),
        "the same, without reading ahead": (KINDS[DEFAULT], False),
        "none": ({"shuffle": False}, False),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _, (name, (options, look_ahead)) in itertools.product(range(3), kinds.items()):
        found[name].append(cold(path, arguments.field, sampler(n, **options), look_ahead=look_ahead))
    for name, rounds in found.items():
        speeds, shares = zip(*rounds, strict=True)
        print(f"| {name} | {statistics.median(speeds) / 1e6:.0f} | {statistics.median(shares):.2f} |")


if __name__ == "__main__":
    main()
