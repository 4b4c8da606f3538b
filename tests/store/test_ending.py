"""A process that ends in the middle of an epoch ends at once and cleanly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fastrecord as fr

SCRIPT = """
import sys
import fastrecord as fr
place, options, error = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
dataset = fr.FastRecordDataset(place, fields=("data",), **options)
shuffle = fr.Blocks(window=2) if "cache_size" in options else True
sampler = fr.FastRecordBatchSampler(dataset, 32, shuffle=shuffle, rank=0, world_size=1)
batches = iter(fr.FastRecordLoader(dataset, batch_sampler=sampler))
next(batches)
next(batches)
if error is not None:
    raise error
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 24 MB each."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with fr.Writer(folder / f"{shard}.frec", fr.Schema({"data": fr.bytes_()})) as writer:
            for number in range(240):
                writer.append({"data": bytes([number]) * 100_000})
    fr.write_manifest(folder)
    return folder


@pytest.mark.parametrize("error", ["None", "ValueError('of the script')", "SystemExit(3)"])
@pytest.mark.parametrize("cache", [None, "whole", "limited"])
def test_threads_that_bring_values_end_before_the_interpreter(
    tmp_path: Path, shards: Path, cache: str | None, error: str
) -> None:
    options: dict[str, str] = {}
    if cache is not None:
        options["cache"] = str(tmp_path / "cache")
    if cache == "limited":
        options["cache_size"] = "60MB"
    place = shards.as_uri() if cache else str(shards)
    command = [sys.executable, "-W", "error", "-c", SCRIPT, place, repr(options), error]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    code, last = {"N": (0, ""), "V": (1, "ValueError: of the script"), "S": (3, "")}[error[0]]
    assert (done.returncode, done.stderr.strip().rpartition("\n")[2]) == (code, last)
