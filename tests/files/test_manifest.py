"""Manifests: they name what is there, find every difference, and lose nothing when replaced."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord.dataset.manifest import Manifest, ShardEntry
from tests.support.commands import failed, good, run


def shard(path: Path, count: int, *, classes: tuple[str, ...] = ("cat", "dog"), mode: str = "w") -> None:
    schema = fr.Schema({"text": fr.string("zstd"), "label": "int64"}) if mode == "w" else None
    with fr.Writer(path, schema, mode=mode) as writer:
        for i in range(count):
            writer.append({"text": f"{path.name} {i}", "label": i % 2})
        writer.metadata = {"classes": list(classes)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "train"
    made.mkdir()
    for name, count in (("a", 3), ("b", 5), ("c", 2)):
        shard(made / f"{name}.frec", count)
    return made


def content(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "dataset.json").read_bytes())
    assert isinstance(found, dict)
    return found


def kinds(folder: Path) -> list[tuple[str, str]]:
    return [(finding.name, finding.kind) for finding in fr.files.check_manifest(folder)]


def test_it_names_each_shard_at_its_newest_commit(folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    summary = fr.files.write_manifest(folder, progress=lambda *step: steps.append(step))
    assert (summary.generation, summary.shards, summary.records) == (1, 3, 10)
    assert summary.added == ["a.frec", "b.frec", "c.frec"]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    found = content(folder)
    assert found["schema"] == [{"name": "text", "type": "string"}, {"name": "label", "type": "int64"}]
    assert found["classes"] == [["cat", "dog"]]
    assert found["shards"]["classes"] == [0, 0, 0]
    for at, name in enumerate(found["shards"]["name"]):
        with fr.Reader(folder / name) as reader:
            row = [found["shards"][column][at] for column in ("file_id", "commit", "records", "bytes")]
            assert row == [reader.file_id, reader.commit, len(reader), reader.nbytes]
        assert found["shards"]["footer_crc"][at] == int.from_bytes((folder / name).read_bytes()[-4:], "little")
    assert len(set(found["shards"]["footer_crc"])) == 3
    assert sorted(os.listdir(folder)) == ["a.frec", "b.frec", "c.frec", "dataset.json"]
    assert kinds(folder) == []


def test_new_shards_follow_and_what_it_does_not_know_stays(folder: Path) -> None:
    fr.files.write_manifest(folder)
    known = content(folder)
    known["licence"] = {"name": "MIT"}
    known["shards"]["etag"] = ["x", "y", "z"]
    (folder / "dataset.json").write_text(json.dumps(known))
    shard(folder / "Z.frec", 4)
    shard(folder / "b.frec", 1, mode="a")
    (folder / "a.frec").unlink()
    summary = fr.files.write_manifest(folder)
    assert (summary.added, summary.renewed, summary.removed) == (["Z.frec"], ["b.frec"], ["a.frec"])
    found = content(folder)
    assert (found["generation"], found["licence"]) == (2, {"name": "MIT"})
    assert found["shards"]["name"] == ["b.frec", "c.frec", "Z.frec"]
    assert found["shards"]["etag"] == ["y", "z", None]
    before = os.stat(folder / "dataset.json")
    assert fr.files.write_manifest(folder).generation == 2
    assert os.stat(folder / "dataset.json").st_ino == before.st_ino


def test_check_finds_every_difference(folder: Path, tmp_path: Path) -> None:
    for name in ("d", "e", "f", "g", "h"):
        shard(folder / f"{name}.frec", 2)
    shutil.copy(folder / "g.frec", tmp_path / "short.frec")
    shard(folder / "g.frec", 1, mode="a")
    fr.files.write_manifest(folder)
    (folder / "a.frec").unlink()
    (folder / "b.frec").unlink()
    shard(folder / "b.frec", 5)
    shard(folder / "c.frec", 7, mode="a")
    with fr.Writer(folder / "d.frec", fr.Schema({"other": "int64"}), mode="w") as writer:
        writer.append({"other": 1})
    (folder / "e.frec").write_bytes(b"not a shard" * 1000)
    fr.files.set_metadata(folder / "f.frec", classes=["dog", "cat"])
    shutil.copy(tmp_path / "short.frec", folder / "g.frec")
    shard(folder / "new.frec", 1)
    known = content(folder)
    known["shards"]["footer_crc"][7] ^= 1
    (folder / "dataset.json").write_text(json.dumps(known))
    assert kinds(folder) == [
        ("a.frec", "missing"),
        ("b.frec", "replaced"),
        ("c.frec", "grown"),
        ("d.frec", "replaced"),
        ("d.frec", "schema"),
        ("d.frec", "classes"),
        ("e.frec", "unreadable"),
        ("f.frec", "grown"),
        ("f.frec", "classes"),
        ("g.frec", "shrunk"),
        ("h.frec", "changed"),
        ("new.frec", "extra"),
    ]


def test_shards_that_do_not_belong_together_are_refused(folder: Path) -> None:
    shutil.copy(folder / "a.frec", folder / "copy.frec")
    with pytest.raises(fr.FastRecordError, match=r"copy\.frec: is a copy of a\.frec.*FR209"):
        fr.files.write_manifest(folder)
    with fr.Writer(folder / "copy.frec", fr.Schema({"other": "int64"}), mode="w") as writer:
        writer.append({"other": 1})
    with pytest.raises(fr.errors.SchemaError, match=r"copy\.frec: its fields differ.*FR410"):
        fr.files.write_manifest(folder)
    (folder / "copy.frec").write_bytes(b"not a shard" * 1000)
    with pytest.raises(fr.errors.CorruptFileError, match=r"copy\.frec.*FR201"):
        fr.files.write_manifest(folder)
    (folder / "copy.frec").unlink()
    shard(folder / "open.frec", 1)
    with fr.Writer(folder / "open.frec", mode="a") as writer:
        writer.complete = False
    with pytest.raises(fr.FastRecordError, match=r"open\.frec: packing was not finished.*FR206"):
        fr.files.write_manifest(folder)
    assert not (folder / "dataset.json").exists()
    assert fr.files.write_manifest(folder, allow_incomplete=True).shards == 4


def test_each_shard_has_its_own_classes(folder: Path) -> None:
    shard(folder / "d.frec", 2, classes=("dog", "cat"))
    shard(folder / "e.frec", 2)
    with fr.Writer(folder / "f.frec", mode="w", schema=fr.Schema({"text": fr.string(), "label": "int64"})) as writer:
        writer.append({"text": "without classes", "label": 0})
    fr.files.write_manifest(folder)
    found = content(folder)
    assert found["classes"] == [["cat", "dog"], ["dog", "cat"]]
    assert found["shards"]["classes"] == [0, 0, 0, 1, 0, None]
    assert kinds(folder) == []
    fr.files.set_metadata(folder / "a.frec", classes=["emu", "cat"])
    assert kinds(folder) == [("a.frec", "grown"), ("a.frec", "classes")]
    assert fr.files.write_manifest(folder).renewed == ["a.frec"]
    assert content(folder)["classes"] == [["emu", "cat"], ["cat", "dog"], ["dog", "cat"]]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 0},
        {"version": True},
        {"generation": 0},
        {"schema": []},
        {"schema": 5},
        {"schema": [{"name": "a", "type": "int64"}] * 2},
        {"schema": [{"name": "a"}]},
        {"classes": ["a"]},
        {"classes": [["a", "a"]]},
        {"classes": [[1]]},
        {"classes": None},
        {"shards.classes": [0, 0, 1]},
        {"shards.classes": [0, -1, 0]},
        {"shards.classes": [0, False, 0]},
        {"shards.classes": [0, 0.0, 0]},
        {"shards": []},
        {"shards": {}},
        {"shards.name": ["a.frec", "a.frec", "b.frec"]},
        {"shards.name": ["../a.frec", "b.frec", "c.frec"]},
        {"shards.name": ["a", "b.frec", "c.frec"]},
        {"shards.name": ["a.frec"]},
        {"shards.records": [1, 2, -1]},
        {"shards.records": [1, 2, 3.0]},
        {"shards.records": [1, 2, 1 << 63]},
        {"shards.file_id": ["0" * 32, "0" * 32, "x" * 32]},
        {"shards.file_id": ["0" * 31, "0" * 33, "0" * 32]},
    ],
    ids=str,
)
def test_a_manifest_that_breaks_a_rule_is_refused(folder: Path, change: dict[str, Any]) -> None:
    fr.files.write_manifest(folder)
    found = content(folder)
    for key, value in change.items():
        inner, _, name = key.partition(".")
        if name:
            found[inner][name] = value
        else:
            found[key] = value
    (folder / "dataset.json").write_text(json.dumps(found))
    for call in (fr.files.check_manifest, fr.files.write_manifest):
        with pytest.raises(fr.errors.CorruptFileError, match=r"dataset\.json: .*FR210"):
            call(folder)
    assert content(folder) == found


def test_cut_or_newer_manifests_are_refused(folder: Path) -> None:
    fr.files.write_manifest(folder)
    path = folder / "dataset.json"
    whole = path.read_bytes()
    for end in range(0, len(whole) - 2, 7):
        with pytest.raises(fr.errors.CorruptFileError, match="FR210"):
            Manifest.parse(whole[:end], "dataset.json")
    path.write_text(json.dumps(content(folder) | {"version": 2}))
    with pytest.raises(fr.errors.UnsupportedVersionError, match=r"reads up to 1.*FR202"):
        fr.files.write_manifest(folder)


NAMES = st.text(st.characters(exclude_characters="/\\\n\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
ENTRIES = st.lists(
    st.builds(
        ShardEntry,
        name=NAMES.map(lambda name: f"{name}.frec"),
        file_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
        commit=st.integers(1, 2**61),
        records=st.integers(0, 2**61),
        bytes=st.integers(8192, 2**61),
        footer_crc=st.integers(0, 2**32 - 1),
        classes=st.none() | st.lists(NAMES, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=8,
    unique_by=(lambda entry: entry.name, lambda entry: entry.file_id),
)


@given(entries=ENTRIES, data=st.data())
def test_any_shards_come_back_from_the_bytes(entries: list[ShardEntry], data: st.DataObject) -> None:
    made = Manifest.of(entries, fr.Schema({"text": fr.string(), "label": "int64"}))
    again = Manifest.parse(made.dump(), "there")
    assert again == made
    assert again.entries() == entries
    assert again.records == sum(entry.records for entry in entries)
    part = data.draw(st.lists(st.sampled_from(entries), min_size=1, unique_by=lambda entry: entry.name))
    assert Manifest.parse(again.with_shards(part).dump(), "there").entries() == part


@given(data=st.data())
def test_no_change_of_the_bytes_is_a_crash(data: st.DataObject) -> None:
    entry = ShardEntry("a.frec", "0" * 32, 1, 2, 8192, 3, ["cat"])
    whole = bytearray(Manifest.of([entry], fr.Schema({"text": fr.string()})).dump())
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    with suppress(fr.FastRecordError):
        Manifest.parse(bytes(whole), "there")


def test_writers_at_once_lose_no_shard(folder: Path) -> None:
    code = "import sys, fastrecord as fr\nfor _ in range(5): fr.files.write_manifest(sys.argv[1])"
    children = [subprocess.Popen([sys.executable, "-c", code, str(folder)]) for _ in range(2)]
    for number in range(10):
        shard(folder.parent / "new", 1)
        os.rename(folder.parent / "new", folder / f"n{number}.frec")
        fr.files.write_manifest(folder)
    assert [child.wait(60) for child in children] == [0, 0]
    assert len(content(folder)["shards"]["name"]) == 13
    assert kinds(folder) == []
    assert not [name for name in os.listdir(folder) if "tmp" in name]


def test_the_command_writes_and_checks(folder: Path) -> None:
    assert "no dataset.json" in failed("manifest", folder, "--check")
    assert "3 shards, 10 records" in good("manifest", folder)
    assert "nothing has changed" in good("manifest", folder)
    assert "good" in good("manifest", folder, "--check")
    assert good("manifest", folder, "--check", "--json") == ""
    shard(folder / "d.frec", 1)
    found = run("manifest", folder, "--check", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout) == {
        "name": "d.frec",
        "kind": "extra",
        "message": "the manifest does not name it",
    }
    assert json.loads(good("manifest", folder, "--json"))["added"] == ["d.frec"]


def test_a_folder_without_shards_gets_no_manifest(tmp_path: Path) -> None:
    assert "no .frec file" in failed("manifest", tmp_path)
    assert "error" in failed("manifest", tmp_path / "none")
    assert os.listdir(tmp_path) == []
