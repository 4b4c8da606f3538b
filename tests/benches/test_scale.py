"""The experiment "scale": its shards are real ones, and opening opens one of them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

import fastrecord as fr
from benches.experiments.scale import RECORDS, Opener, make


def test_shards_with_ids_of_their_own_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)  # the limit would stay for other tests
    folder = make(tmp_path / "shards", 20)
    assert fr.files.check_manifest(folder) == []
    assert len({one["file_id"] for one in fr.FastRecordDataset(folder).snapshots}) == 20
    for path in folder.glob("*.frec"):
        with fr.Reader(path) as reader:
            assert reader.verify()["ok"]
    opener = Opener(folder=str(folder))
    assert len(opener.data) == 20 * RECORDS
    opener.close()
    before = len(os.listdir("/proc/self/fd"))  # other tests have files open, too
    assert opener.open() < before + 20
    assert opener.read(20) == 20
    assert opener.state() < 10_000
    bare = make(tmp_path / "bare", 5, manifest=False)
    assert len(Opener(folder=str(bare)).data) == 5 * RECORDS
