"""Selecting: chosen records, or all but some, in a new file; bytes, keys, classes and checksums as they were."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fastrecord as fr
from tests.support.commands import failed, good
from tests.support.rewriting import commits, keys, metadata, rows, write_rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "a.frec", 300, classes=["cat", "dog", "owl"], commit_bytes=100_000, made="by hand")


def listed(path: Path, names: list[str]) -> Path:
    path.write_text("".join(f"{name}\n" for name in names))
    return path


def test_a_condition_and_lists_of_keys_choose_records(source: Path, tmp_path: Path) -> None:
    all_rows, out = rows(source), tmp_path / "out.frec"
    summary = fr.files.select(source, out, where='label == "dog"', drop_keys=["a/1", "a/4"])
    assert rows(out) == [row for row in all_rows if row[1] == "dog" and row[2] not in ("a/1", "a/4")]
    assert (summary.records, summary.classes, commits(out)) == (98, ["cat", "dog", "owl"], 1)
    assert metadata(out) == metadata(source)
    chosen = listed(tmp_path / "list", ["a/7", "a/299", "a/0"])
    good("select", source, out, "--keys", chosen, "--overwrite")
    assert keys(out) == ["a/0", "a/7", "a/299"]
    text = good("select", source, out, "--drop-keys", chosen, "--overwrite", "--verify", "--json")
    assert json.loads(text)["records"] == 297
    assert rows(out) == [row for row in all_rows if row[2] not in ("a/0", "a/7", "a/299")]


def test_packed_images_stay_as_they_are_stored(packed: Path, tmp_path: Path) -> None:
    data = fr.FastRecordDataset(packed)
    view = data.filter("label", "==", 0)
    fr.files.select(view, tmp_path / "out.frec")
    with fr.Reader(packed) as before, fr.Reader(tmp_path / "out.frec") as after:
        for number, row in enumerate(view.rows(range(len(view))).tolist()):
            old, new = before[row], after[number]
            assert bytes(old["image"]) == bytes(new["image"])
            assert old["key"] == new["key"]
        assert after.compression() == before.compression()
        assert after.verify(deep=True)["ok"]
    assert os.path.getsize(tmp_path / "out.frec") < os.path.getsize(packed)


@pytest.mark.parametrize("manifest", [False, True])
def test_views_over_several_files_keep_their_order_and_their_classes(tmp_path: Path, *, manifest: bool) -> None:
    (tmp_path / "set").mkdir()
    a = write_rows(tmp_path / "set" / "a.frec", 50, classes=["cat", "dog"], first=1)
    b = write_rows(tmp_path / "set" / "b.frec", 40, classes=["dog", "emu", "cat"], seed=1, second=2)
    if manifest:
        fr.files.write_manifest(tmp_path / "set")
    named = [*rows(a), *rows(b)]
    data = fr.FastRecordDataset(tmp_path / "set", decode=None)
    out = tmp_path / "out.frec"
    part, rest = data.split([0.4, 0.6], seed=3)
    both = fr.concat(part, rest.filter("label", "==", "emu"), data.subset([5, 5, -1]))
    for view in (data, part, both, data.subset(range(89, -1, -2)), data.filter("label", "==", "emu")):
        for _ in range(2):
            fr.files.select(view, out, overwrite=True)
            assert rows(out) == [named[row] for row in view.rows(range(len(view)))]
            with fr.Reader(out) as reader:
                assert reader.metadata["classes"] == ["cat", "dog", "emu"]
            assert fr.FastRecordDataset(out).targets.tolist() == view.targets.tolist()
    own = fr.FastRecordDataset(tmp_path / "set", decode=None, classes=["emu", "owl", "dog", "cat"])
    fr.files.select(own, out, overwrite=True)
    assert fr.FastRecordDataset(out).classes == own.classes
    assert fr.FastRecordDataset(out).targets.tolist() == own.targets.tolist()
    assert rows(out) == named
    url = f"file://{tmp_path}/set/b.frec"
    fr.files.select(fr.FastRecordDataset(url).filter("label", "==", "cat"), out, overwrite=True)
    assert rows(out) == [row for row in rows(b) if row[1] == "cat"]


def test_a_selection_can_be_shards_with_a_manifest(source: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    drop = listed(tmp_path / "list", ["a/5"])
    text = good("select", source, tmp_path / "new" / "a.frec", "--drop-keys", drop, "--shards", 4)
    assert "names these files as shards of one data set" in text
    data = fr.FastRecordDataset(tmp_path / "new", decode=None)
    assert [data.key(i) for i in range(len(data))] == [f"a/{i}" for i in range(300) if i != 5]
    good("verify", tmp_path / "new")
    # One shard replaced by the rest of its records, as docs/howto/deleting.md says.
    shard = tmp_path / "new" / "a-00001-of-00004.frec"
    gone = listed(tmp_path / "list", keys(shard)[:1])
    assert "are missing" in failed("select", shard, tmp_path / "x.frec", "--drop-keys", gone)
    good("select", shard, tmp_path / "x.frec", "--drop-keys", gone, "--allow-incomplete")
    os.replace(tmp_path / "x.frec", shard)
    good("manifest", tmp_path / "new")
    assert len(fr.FastRecordDataset(tmp_path / "new")) == 298
    os.unlink(tmp_path / "new" / "dataset.json")
    assert len(fr.FastRecordDataset(tmp_path / "new")) == 298


def test_what_cannot_be_selected_is_refused_and_leaves_nothing(source: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "out.frec", sorted(os.listdir(tmp_path))
    no_keys = tmp_path / "bare.frec"
    with fr.Writer(no_keys, {"label": "int64"}) as writer:
        writer.append({"label": 1})
    for refused, wrong in (
        (["--where", "label == 'cow'"], "no class is named 'cow'"),
        (["--where", "__import__('os').abort()"], "is not a comparison"),
        (["--where", "colour == 3"], "no field 'colour'"),
        (["--keys", tmp_path / "none"], "No such file"),
        (["--drop-keys", listed(tmp_path / "list", ["a/1", "b/2", "b/3"])], "'b/2', 'b/3': 2 of the 3 keys"),
        (
            ["--where", "label == 1 and label == 2"],
            f"{source}: no record meets the conditions: nothing is written [FR726]",
        ),
        (["--keys", os.devnull], "no record meets the conditions"),
        (["--drop-keys", listed(tmp_path / "all", keys(source))], "no record meets the conditions"),
        (["--shards", "301"], "301 shards of 300 records"),
    ):
        assert wrong in failed("select", source, out, *refused)
    assert "is the file to read from" in failed("select", source, source, "--overwrite")
    assert "no field 'key'" in failed("select", no_keys, out, "--keys", tmp_path / "list")
    with pytest.raises(TypeError, match="keys are a collection of strings"):
        fr.files.select(source, out, keys="a/1")
    with pytest.raises(ValueError, match="belongs to paths"):
        fr.files.select(fr.FastRecordDataset(source), out, allow_incomplete=True)
    for made in (tmp_path / "list", tmp_path / "all", no_keys):
        made.unlink()
    assert sorted(os.listdir(tmp_path)) == before
