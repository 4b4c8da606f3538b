"""Small batches of arrays against other formats: uint8 patch pairs of 32x32 and 128x128, shuffled.

Each contender has a process of its own, bound to as many cores as it may use threads or workers.
The contenders run one epoch each in turn, repeatedly. Environment: FASTRECORD_BENCH_PAIRS, pairs
per epoch; FASTRECORD_BENCH_ROUNDS; FASTRECORD_BENCH_PYTHON, a Python with the peers. Missing peers
are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benches.peers import Data
from benches.support.contest import against, contest
from benches.support.pairs import make_pairs

pytestmark = pytest.mark.timeout(3600)

PAIRS = int(os.environ.get("FASTRECORD_BENCH_PAIRS", "20000"))
THREADS = min(2, len(os.sched_getaffinity(0)))
BATCHES = [8, 128]

OURS = "fastrecord"
OURS_LZ4 = "fastrecord, lz4"
MEMMAP = ".npy memmap, whole batches, no workers"
# With a DataLoader that has as many worker processes as our loader has threads.
BY_WORKERS = f"{THREADS} worker{'s' if THREADS > 1 else ''}"
WORKERS = {
    f"LMDB, lz4, {BY_WORKERS}": "arrays.lmdb:lz4",
    f"LMDB, {BY_WORKERS}": "arrays.lmdb",
    f"HDF5, {BY_WORKERS}": "arrays.hdf5",
    f"HDF5, a chunk for each record, {BY_WORKERS}": "arrays.hdf5:chunked",
    f"webdataset, {BY_WORKERS}": "arrays.webdataset",
    f"webdataset, .npy members, {BY_WORKERS}": "arrays.webdataset:npy",
    f".npy memmap, {BY_WORKERS}": "arrays.npy",
    f".npy memmap, {BY_WORKERS}, new ones each epoch": "arrays.npy:fresh",
    f".npy memmap, whole batches, {BY_WORKERS}": "arrays.npy:batches",
}
# In the training process, which waits during the reads.
ALONE = {
    MEMMAP: "arrays.npy:batches+no-workers",
    ".npy memmap, no workers": "arrays.npy:no-workers",
    "LMDB, no workers": "arrays.lmdb:no-workers",
    "HDF5, no workers": "arrays.hdf5:no-workers",
}
CONTENDERS = {OURS: "arrays.ours", OURS_LZ4: "arrays.ours:lz4", **ALONE, **WORKERS}


@pytest.fixture(scope="session")
def pairs(folder: Path) -> Data:
    """The pairs, and the folder for each contender's files."""
    data = Data(folder / "arrays", PAIRS)
    data.root.mkdir(exist_ok=True)
    make_pairs(data.root, PAIRS)
    return data


@pytest.mark.parametrize("batch", BATCHES)
def test_pairs_against_other_formats(pairs: Data, benchmark: Any, batch: int) -> None:
    """Loaders with workers (target: 20 times the best, in batches of 8), and loaders without."""
    names = {name: (module, THREADS, batch) for name, module in CONTENDERS.items()}
    seconds = contest(benchmark, names, pairs, unit="pairs", memory=True)
    what = f"batches of {batch}, us a pair"
    measured = [name for name in WORKERS if name in seconds]
    if measured:
        best = min(measured, key=seconds.__getitem__)
        against(what, OURS, best, seconds, 20 if batch == 8 else 1, records=PAIRS)
    for name in (*ALONE, *measured):
        against(what, OURS, name, seconds, 1, records=PAIRS)
    against(what, OURS_LZ4, f"LMDB, lz4, {BY_WORKERS}", seconds, 1, records=PAIRS)
