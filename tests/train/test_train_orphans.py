"""Processes that end with their launcher or trainer, and the cleanup by the next run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastrecord as fr
from fastrecord.dataset.shards import at_snapshots
from fastrecord.train import TrainError, train
from fastrecord.train.batches.open import open_datasets, open_on_all_ranks
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import StopSignal
from tests.support.training import losses, small_config, write_colours

pytestmark = pytest.mark.usefixtures("one_thread")

# Its workers wait to send batches that no pipe can hold, and their trainer dies silently.
ORPHANS = """
import os, signal
from torch.utils.data import DataLoader
from fastrecord.train.interrupt import ignore_launcher

loader = DataLoader([bytes(1 << 20)] * 1000, 2, num_workers=2, collate_fn=list, worker_init_fn=ignore_launcher)
next(iter(loader))
print("trained", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_data_workers_end_after_their_trainer_was_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    # Workers share the output: it ends with the last of them.
    assert process.communicate()[0] == "trained\n"
    assert process.returncode == -signal.SIGKILL


def test_a_rank_whose_launcher_is_gone_stops_as_at_sighup(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    with StopSignal() as stop:
        assert stop.number == 0
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert stop.number == signal.SIGHUP
        result = train(small_config(colours, tmp_path), stop)
    assert result.signal == signal.SIGHUP
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with StopSignal() as alone:
        monkeypatch.setattr(os, "getppid", lambda: 2)
        assert alone.number == 0, "a run without a launcher outlives its shell"


def test_a_run_removes_what_a_killed_one_was_writing_and_nothing_else(colours: Path, tmp_path: Path) -> None:
    left = ["checkpoints/.last.pt.tmp", "checkpoints/.best.pt.tmp", ".metrics.jsonl.tmp", ".training.png.tmp"]
    others = ["checkpoints/.mine.tmp", ".notes.tmp"]
    (tmp_path / "checkpoints").mkdir()
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"half")
    train(small_config(colours, tmp_path, max_steps=1))
    assert [name for name in (*left, *others) if (tmp_path / name).exists()] == others


def test_all_ranks_train_on_the_commit_that_the_first_has_found(tmp_path: Path) -> None:
    path = write_colours(tmp_path / "train.frec", 12, seed=0)
    config = small_config(path, tmp_path, val=str(path), loader="torch")
    sent: list[Any] = []

    class Told(Ranks):
        def first(self, work: Callable[[], Any]) -> Any:
            if self.is_first:
                sent.append(work())
            return sent[0]

    first, second = (Told(rank, 2, rank, 2, torch.device("cpu"), None) for rank in range(2))
    found = open_on_all_ranks(config, first)
    with fr.Reader(path) as reader, fr.Writer(path, mode="a") as writer:
        for record in reader:
            writer.append(record)
    there = open_on_all_ranks(config, second)
    assert [len(data or ()) for data in (*found, *there)] == [12] * 4
    assert len(open_datasets(config)[0]) == 24
    assert there[0].classes == found[0].classes
    reopened = fr.FastRecordDataset(json.loads(json.dumps(found[0].snapshots)))
    assert reopened.snapshots == found[0].snapshots
    path.unlink()
    with pytest.raises(TrainError, match=r"train\.frec"):
        open_on_all_ranks(config, second)


def test_a_run_goes_on_with_its_records_though_its_file_has_grown(tmp_path: Path) -> None:
    path = write_colours(tmp_path / "train.frec", 24, seed=0)
    train(small_config(path, tmp_path / "whole"))
    train(small_config(path, tmp_path / "parts", max_steps=2))
    with fr.Reader(path) as reader, fr.Writer(path, mode="a") as writer:
        writer.append(reader[0])
    train(small_config(path, tmp_path / "parts", resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    write_colours(tmp_path / "other.frec", 24, seed=0).replace(path)
    with pytest.raises(TrainError, match=r"train\.frec: the file was replaced"):
        train(small_config(path, tmp_path / "parts", resume="auto"))


def test_snapshots_that_are_none_are_refused(colours: Path) -> None:
    with pytest.raises(ValueError, match="there are 2 snapshots for 1 files"):
        at_snapshots(colours, [{}, {}])
    with pytest.raises(ValueError, match="this one has no 'file_id'"):
        fr.FastRecordDataset(at_snapshots(colours, [{}]))
