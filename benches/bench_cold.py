"""Cold reads, after dropping the page cache: speed, and bytes read from the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray

import fastrecord as fr
from benches.bench_read import BATCH, extents
from benches.conftest import Data, make, note
from benches.support.native import Gather


def drop(*paths: Path) -> None:
    """Drop the pages of files that are not mapped from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        # Read-ahead of the previous round must not still be in progress.
        inflight = queue_of(path).parent / "inflight"
        for _ in range(100):
            if inflight.read_text().split() == ["0", "0"]:
                break
            time.sleep(0.01)


def queue_of(path: Path) -> Path:
    """The sysfs folder with the settings of the disk that holds a file."""
    device = os.stat(path).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return next(p / "queue" for p in (block, block.parent) if (p / "queue").exists())


@pytest.fixture(params=["as set", "128"])
def read_ahead(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The disk's read-ahead in KiB: the current setting, and 128."""
    setting = queue_of(folder) / "read_ahead_kb"
    before = setting.read_text()
    if request.param != "as set":
        if not os.access(setting, os.W_OK) or os.geteuid() != 0:
            pytest.skip("setting the disk's read-ahead needs root")
        setting.write_text(request.param)
    yield setting.read_text().strip()
    setting.write_text(before)


def disk_bytes() -> int:
    """Bytes that this process has read from disks."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


@pytest.fixture(scope="session")
def huge(folder: Path) -> Data:
    """400 records of 5 MB."""
    return make(folder, 400, 5_000_000, with_lmdb=False)


def against_pread(
    data: Data,
    gather: Gather,
    versus: Callable[..., None],
    chosen: list[NDArray[np.int64]],
    name: str,
    lmdb_target: float,
) -> None:
    """Time cold batches against lmdb and 32 pread threads (default and random advice)."""
    _, offsets, lengths = extents(data)
    out = np.empty(BATCH * data.size, np.uint8)
    out.fill(0)
    read: list[int] = []

    def ours() -> None:
        start = disk_bytes()
        with fr.Reader(data.frec) as reader:
            for rows in chosen:
                reader.read_batch_into(rows, "data", out, verify=False)
        read.append(disk_bytes() - start)

    def pread(advice: int) -> None:
        fd = os.open(data.frec, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, advice)
        for rows in chosen:
            gather(offsets[rows], lengths[rows], out, threads=32, fd=fd)
        os.close(fd)

    peers: dict[str, tuple[Callable[[], None], float, str]] = {
        "pread, 32 threads": (lambda: pread(os.POSIX_FADV_NORMAL), 0.9, "speedup"),
        "pread, 32 threads, random": (lambda: pread(os.POSIX_FADV_RANDOM), 0.9, "speedup"),
    }
    files = [data.frec]
    if lmdb_target:
        files.append(data.lmdb)

        def by_lmdb() -> None:
            with (
                lmdb.open(str(data.lmdb), subdir=False, readonly=True, lock=False) as environment,
                environment.begin() as transaction,
            ):
                for i in chosen[0]:
                    transaction.get(data.keys[i])

        # One batch is enough to measure its speed: more would take too long.
        peers[f"lmdb, 1 batch of {len(chosen)}"] = (by_lmdb, lmdb_target / len(chosen), "speedup")
    versus(ours, peers, rounds=5, before=lambda: drop(*files), scale=1e3 / len(chosen))
    asked = sum(int(lengths[rows].sum()) for rows in chosen)
    note(f"{name}: bytes from the disk", "bytes asked for", float(np.median(read)), asked, 1.1, "cost")


def test_cold_batches_of_110_kb(large: Data, gather: Gather, versus: Callable[..., None], read_ahead: str) -> None:
    """8 random batches of 256 records of 110 KB, without repeats."""
    rows = np.random.default_rng(2).permutation(large.records)[: 8 * BATCH]
    against_pread(large, gather, versus, list(rows.reshape(8, BATCH)), f"110 KB, read-ahead {read_ahead} KiB", 20)


def test_cold_batches_of_5_mb(huge: Data, gather: Gather, versus: Callable[..., None], read_ahead: str) -> None:
    """One random batch of 256 records of 5 MB."""
    rows = np.random.default_rng(2).permutation(huge.records)[:BATCH]
    against_pread(huge, gather, versus, [rows], f"5 MB, read-ahead {read_ahead} KiB", 0)
