"""Commands that write shards name them in the folder's manifest, once all are whole, and mix nothing in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fastrecord as fr
from tests.conftest import encode
from tests.support.commands import failed, good
from tests.support.packing import pack_with, small_folder, write


def named(folder: Path) -> list[str]:
    found = json.loads((folder / "dataset.json").read_bytes())["shards"]["name"]
    assert isinstance(found, list)
    return found


def names(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05d}-of-{count:05d}.frec" for number in range(count)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small_folder(tmp_path / "source")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


def test_a_pack_of_shards_is_a_data_set(source: Path, out: Path) -> None:
    text = good("pack", source, out / "train.frec", "--shards", 2)
    assert f"{out}/dataset.json: names these files as shards of one data set" in text
    assert named(out) == names("train", 2)
    assert fr.files.check_manifest(out) == []
    assert len(fr.FastRecordDataset(out)) == 5
    summary = pack_with(source, out / "train.frec", shards=2, mode="resume")
    assert (summary.manifest, summary.not_named) == (str(out / "dataset.json"), None)
    assert json.loads((out / "dataset.json").read_bytes())["generation"] == 1


def test_a_single_file_gets_no_manifest(source: Path, out: Path) -> None:
    summary = pack_with(source, out / "train.frec")
    assert (summary.manifest, summary.not_named) == (None, None)
    assert os.listdir(out) == ["train.frec"]


def test_shards_of_a_size_and_split_and_import_have_one(source: Path, tmp_path: Path) -> None:
    for name in ("sized", "split", "imported", "items"):
        (tmp_path / name).mkdir()
    pack_with(source, tmp_path / "sized" / "x.frec", shard_size=1)
    assert named(tmp_path / "sized") == names("x", 5)
    pack_with(source, tmp_path / "one.frec")
    summary = fr.files.split(tmp_path / "one.frec", tmp_path / "split" / "y.frec", shards=3)
    assert summary.manifest == str(tmp_path / "split" / "dataset.json")
    assert named(tmp_path / "split") == names("y", 3)
    good("export", tmp_path / "one.frec", tmp_path / "one.tar", "--format", "webdataset")
    good("import", tmp_path / "one.tar", tmp_path / "imported" / "z.frec", "--shards", 2)
    assert named(tmp_path / "imported") == names("z", 2)
    pack_with([{"n": i} for i in range(4)], tmp_path / "items" / "n.frec", format="dataset", shards=2)
    assert named(tmp_path / "items") == names("n", 2)


def test_paths_in_an_order_of_their_own_keep_it(source: Path, tmp_path: Path, out: Path) -> None:
    pack_with(source, tmp_path / "one.frec")
    fr.files.split(tmp_path / "one.frec", [out / "b.frec", out / "a.frec"], shards=2)
    assert named(out) == ["b.frec", "a.frec"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    summary = fr.files.split(tmp_path / "one.frec", [elsewhere / "b.frec", tmp_path / "a.frec"], shards=2)
    assert (summary.manifest, summary.not_named) == (None, None)


def test_files_beside_the_shards_are_not_mixed_in(source: Path, out: Path) -> None:
    pack_with(source, out / "val.frec")
    summary = pack_with(source, out / "train.frec", shards=2)
    assert summary.manifest is None
    assert "is not written: the folder also has val.frec: `fastrecord manifest`" in str(summary.not_named)
    assert not (out / "dataset.json").exists()
    text = good("split", out / "val.frec", "--shards", 2)
    assert "the folder also has train-00000-of-00002.frec and 2 more" in text


def test_another_data_set_of_the_folder_stays_as_it_is(source: Path, out: Path) -> None:
    pack_with(source, out / "train.frec", shards=2)
    before = (out / "dataset.json").read_bytes()
    summary = pack_with(source, out / "val.frec", shards=3)
    assert "names another data set: the folder also has train-00000-of-00002.frec and 1 more" in str(summary.not_named)
    assert (out / "dataset.json").read_bytes() == before
    pack_with(source, out / "third.frec")
    assert (out / "dataset.json").read_bytes() == before
    fr.files.write_manifest(out)
    assert len(named(out)) == 6


def test_shards_that_replace_named_ones_renew_the_manifest(source: Path, out: Path) -> None:
    pack_with(source, out / "train.frec", shards=2)
    pack_with(source, out / "other.frec")
    write(source, {"ant/9.jpg": encode(9)})
    summary = pack_with(source, out / "train.frec", shards=2, mode="overwrite")
    assert summary.manifest is not None
    found = json.loads((out / "dataset.json").read_bytes())
    assert (found["generation"], found["shards"]["name"]) == (2, names("train", 2))
    assert len(fr.FastRecordDataset(out)) == 6
    for name in names("train", 2):
        (out / name).unlink()
    (out / "other.frec").unlink()
    pack_with(source, out / "train.frec", shards=3)
    assert named(out) == names("train", 3)


def test_an_append_to_a_shard_renews_its_entry_alone(source: Path, out: Path, tmp_path: Path) -> None:
    pack_with(source, out / "train.frec", shards=3)
    first, second, _ = (out / name for name in names("train", 3))
    second.rename(tmp_path / "away")  # what is not appended to is not even opened
    more = write(tmp_path / "more", {"cow/1.jpg": encode(70)})
    text = good("pack", more, first, "--append")
    assert "dataset.json: names these files" in text
    (tmp_path / "away").rename(second)
    found = json.loads((out / "dataset.json").read_bytes())
    assert (found["generation"], found["shards"]["name"]) == (2, names("train", 3))
    assert found["shards"]["classes"] == [0, 1, 1]
    assert found["classes"] == [["ant", "bee", "cow"], ["ant", "bee"]]
    dataset = fr.FastRecordDataset(out)
    assert (len(dataset), dataset.classes) == (6, ["ant", "bee", "cow"])
    assert fr.files.check_manifest(out) == []


def test_commands_that_change_a_shard_in_place_renew_its_entry(source: Path, out: Path) -> None:
    pack_with(source, out / "train.frec", shards=2)
    first, second = (out / name for name in names("train", 2))
    fr.files.compact(first)
    assert fr.files.check_manifest(out) == []
    for command in (["index", second], ["index", "--rebuild", second], ["compact", second]):
        good(*command)
        assert fr.files.check_manifest(out) == []
        assert len(fr.FastRecordDataset(out)) == 5
    fr.files.compact(first, out / "other.frec")
    assert named(out) == names("train", 2)


def test_a_manifest_that_cannot_be_renewed_is_an_error_after_the_pack(source: Path, out: Path) -> None:
    (out / "dataset.json").write_text("{}")
    text = failed("pack", source, out / "train.frec", "--shards", 2)
    assert "dataset.json" in text
    assert "FR210" in text
    assert "all records are packed; only the manifest" in text
    (out / "dataset.json").unlink()
    good("pack", source, out / "train.frec", "--shards", 2, "--resume")
    assert named(out) == names("train", 2)


def test_a_failed_pack_names_nothing(source: Path, out: Path) -> None:
    write(source, {"bee/8.jpg": b"not an image"})
    assert "not an image" in failed("pack", source, out / "train.frec", "--shards", 3)
    assert not (out / "dataset.json").exists()
    good("pack", source, out / "train.frec", "--shards", 3, "--resume", "--bad-files", "skip")
    assert named(out) == names("train", 3)


KILLED = """
import os, signal, sys
import fastrecord as fr
from fastrecord.files.publish import staging
at, source, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
steps = 0
def step(*_):
    global steps
    steps += 1
    if steps == at:
        os.kill(os.getpid(), signal.SIGKILL)
mode = "overwrite" if sys.argv[4] == "overwrite" else "create"
fr.pack(source, out, output=fr.Output(mode=mode, shards=4), progress=step)
"""


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_killed_pack_leaves_no_manifest_of_half_shards(source: Path, out: Path, mode: str) -> None:
    target = out / "train.frec"
    if mode == "overwrite":
        pack_with(source, target, shards=4)
    before = fr.FastRecordDataset(out).snapshots if mode == "overwrite" else None
    for at in (1, 3, 5, 7):
        child = subprocess.run([sys.executable, "-c", KILLED, str(at), str(source), str(target), mode], check=False)
        assert child.returncode == -signal.SIGKILL
        if before is None:
            assert not (out / "dataset.json").exists()
            for name in names("train", 4):
                (out / name).unlink(missing_ok=True)
        else:
            assert fr.files.check_manifest(out) == []
            assert fr.FastRecordDataset(out).snapshots == before
    pack_with(source, target, shards=4, mode="overwrite" if mode == "overwrite" else "create")
    assert fr.files.check_manifest(out) == []
    assert len(fr.FastRecordDataset(out)) == 5
