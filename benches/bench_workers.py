"""DataLoader workers: time to the first batch, 1,000,000 records against 1,000."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benches.conftest import Data, make, note

SCRIPT = """
import sys, time, torch, fastrecord as fr
from torch.utils.data import DataLoader
if __name__ == "__main__":
    start = time.perf_counter()
    dataset = fr.FastRecordDataset(sys.argv[1], decode=None, image_field="data")
    sampler = fr.FastRecordBatchSampler(dataset, 32, shuffle=True)
    options = {"num_workers": 2, "multiprocessing_context": sys.argv[2], "collate_fn": list}
    loader = DataLoader(dataset, batch_sampler=sampler, **options)
    next(iter(loader))
    print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_time_to_first_batch(
    small: Data, folder: Path, versus: Callable[..., None], method: str, tmp_path: Path
) -> None:
    """Two workers: time from opening the data set to the first batch, without imports."""
    thousand = make(folder, 1_000, 100, with_lmdb=False)
    script = tmp_path / "first_batch.py"
    script.write_text(SCRIPT)
    times: dict[Path, list[float]] = {small.frec: [], thousand.frec: []}

    def first_batch(path: Path) -> None:
        command = [sys.executable, str(script), str(path), method]
        times[path].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))

    peers = {"1,000 records": (lambda: first_batch(thousand.frec), 1.5, "cost")}
    versus(lambda: first_batch(small.frec), peers, rounds=3)
    million, few = (sorted(times[path])[len(times[path]) // 2] for path in (small.frec, thousand.frec))
    note(f"{method}: first batch later than of 1,000 records, s", "0.2 s", max(million - few, 1e-9), 0.2, 1, "cost")
