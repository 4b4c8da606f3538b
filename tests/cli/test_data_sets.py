"""Commands take a folder of shards, or its manifest, as they take a file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.support.commands import failed, flip, good, run
from tests.support.loading import write_photos


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "train"
    made.mkdir()
    for name, count, seed in (("a", 3, 0), ("b", 5, 10), ("c", 2, 20)):
        write_photos(made / f"{name}.frec", count, seed)
    fr.files.write_manifest(made)
    return made


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# --- info ---


def test_info_sums_a_data_set_up_and_opens_one_shard(folder: Path) -> None:
    size = sum((folder / f"{name}.frec").stat().st_size for name in "abc")
    for name in "bc":
        (folder / f"{name}.frec").unlink()
    (about,) = lines(good("info", "--json", folder))
    expected = {
        "file": str(folder),
        "manifest": str(folder / "dataset.json"),
        "generation": 1,
        "shards": 3,
        "records": 10,
        "smallest": 2,
        "largest": 5,
        "bytes": size,
        "fields": {"image": "image", "label": "int64", "key": "string", "weight": "float64"},
        "first": "a.frec",
        "classes": ["ant", "bee", "cow"],
        "complete": True,
        "compression": {},
        "crops": {"image": {"sampled": 3, "crop_index": 0, "packed": 0}},
        "version": 1,
    }
    assert about == expected
    table = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8").split("\nA data set gets")[1]
    rows = re.findall(r"^\| (`.*?) \|", table.split("\n## ")[0], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(expected)
    text = good("info", folder / "dataset.json")
    for part in ("dataset.json, generation 1", "3, of 2 to 5 records each", "10", "3: ant, bee, cow"):
        assert part in text


def test_info_of_a_folder_without_manifest_names_the_way_to_one(folder: Path) -> None:
    (folder / "dataset.json").unlink()
    text = good("info", folder)
    assert "none: `fastrecord manifest` makes one" in text
    assert "shards    3, of 2 to 5 records each" in text
    (about,) = lines(good("info", "--json", folder / "*.frec"))
    assert (about["manifest"], about["generation"], about["records"]) == (None, None, 10)


def test_info_goes_on_after_a_data_set_that_it_cannot_read(folder: Path, tmp_path: Path) -> None:
    (folder / "a.frec").unlink()
    result = run("info", folder, folder / "b.frec")
    assert result.exit_code == 1
    assert "a.frec" in result.stderr
    assert "dataset.json names this shard: put it back" in result.stderr
    assert "5" in result.stdout
    (folder / "dataset.json").write_text("[]")
    assert "`fastrecord manifest` makes another" in failed("info", folder)
    (tmp_path / "empty").mkdir()
    for command in ("info", "ls", "head", "verify", "stats", "browse"):
        assert "no .frec file in this folder" in failed(command, tmp_path / "empty")


# --- ls and head ---


def test_ls_numbers_the_records_of_all_shards(folder: Path) -> None:
    rows = lines(good("ls", "--json", folder))
    assert [row["record"] for row in rows] == list(range(10))
    assert [row["key"] for row in rows] == [
        f"{n}/{i}" for n, count in (("a", 3), ("b", 5), ("c", 2)) for i in range(count)
    ]
    assert lines(good("ls", "--json", folder, "--offset", 2, "--limit", 4)) == rows[2:6]
    assert good("ls", folder, "--offset", 7, "--limit", 100).count("\n") == 3
    assert good("ls", folder, "--offset", 10) == ""
    alone = lines(good("ls", "--json", folder / "b.frec"))
    assert [row | {"record": 0} for row in rows[3:8]] == [row | {"record": 0} for row in alone]


def test_ls_and_head_number_labels_as_the_data_set_does(folder: Path) -> None:
    fr.files.set_metadata(folder / "b.frec", classes=["bee", "dog", "ant"])
    fr.files.write_manifest(folder)
    dataset = fr.FastRecordDataset(folder)
    assert dataset.classes == ["ant", "bee", "cow", "dog"]
    for command in ("ls", "head"):
        rows = lines(good(command, "--json", folder, *(("-n", 10) if command == "head" else ())))
        assert [row["label"] for row in rows] == dataset.targets.tolist()
        assert [row["class"] for row in rows] == [dataset.classes[label] for label in dataset.targets]


def test_ls_reads_only_the_shards_that_it_shows(folder: Path) -> None:
    (folder / "c.frec").unlink()
    assert good("ls", folder, "--limit", 8).count("\n") == 8
    assert "c.frec" in failed("ls", folder)


def test_head_shows_the_first_records_of_all_shards(folder: Path) -> None:
    rows = lines(good("head", "--json", "-n", 4, folder))
    assert [(row["record"], row["key"]) for row in rows] == [(0, "a/0"), (1, "a/1"), (2, "a/2"), (3, "b/0")]
    assert "record 3\n" in good("head", "-n", 4, folder / "dataset.json")
    assert len(lines(good("head", "--json", "-n", 99, folder))) == 10


# --- verify ---


def test_verify_checks_every_shard_and_the_manifest(folder: Path) -> None:
    assert good("verify", folder).startswith(f"{folder}: good: 3 shards, as its dataset.json names them: 10 records, ")
    *shards, whole = lines(good("verify", "--json", folder))
    assert [(one["file"], one["ok"], one["records"]) for one in shards] == [
        (str(folder / f"{name}.frec"), True, count) for name, count in (("a", 3), ("b", 5), ("c", 2))
    ]
    assert (whole["file"], whole["ok"], whole["records"], whole["shards"]) == (str(folder), True, 10, 3)
    assert (whole["damaged_shards"], whole["findings"]) == ([], [])
    (folder / "dataset.json").unlink()
    assert good("verify", folder).startswith(f"{folder}: good: 3 shards: 10 records, ")


def test_verify_names_the_shard_and_the_record_that_is_damaged(folder: Path) -> None:
    flip(folder / "b.frec", folder / "new", record=3)
    os.replace(folder / "new", folder / "b.frec")
    result = run("verify", folder)
    assert result.exit_code == 1
    assert f"{folder}/b.frec: record 3, field image" in result.stderr
    assert "(key b/3)" in result.stderr
    assert result.stdout.splitlines()[-1] == f"{folder}: not good: 1 of 3 shards"
    *shards, whole = lines(run("verify", "--json", folder).stdout)
    assert [one["ok"] for one in shards] == [True, False, True]
    assert (whole["ok"], whole["damaged_shards"]) == (False, ["b.frec"])


def test_verify_finds_what_differs_from_the_manifest(folder: Path) -> None:
    (folder / "a.frec").unlink()
    (folder / "b.frec").unlink()
    write_photos(folder / "b.frec", 5, 10)
    result = run("verify", folder)
    assert result.exit_code == 1
    assert f"{folder}/a.frec: missing" in result.stderr
    assert f"{folder}/b.frec: replaced" in result.stderr
    assert "not good: 2 of 3 shards: put back the shards that dataset.json names, or let" in result.stdout
    *shards, whole = lines(run("verify", "--json", folder).stdout)
    assert [one["file"] for one in shards] == [str(folder / "b.frec"), str(folder / "c.frec")]
    assert [(one["name"], one["kind"]) for one in whole["findings"]] == [("a.frec", "missing"), ("b.frec", "replaced")]


def test_later_commits_and_other_files_are_notes_and_no_damage(folder: Path) -> None:
    fr.files.set_metadata(folder / "a.frec", note="grown")
    write_photos(folder / "other.frec", 1)
    text = good("verify", folder)
    assert f"note: {folder}/a.frec: grown" in text
    assert f"note: {folder}/other.frec: extra" in text


def test_verify_takes_data_sets_beside_files(folder: Path) -> None:
    text = good("verify", folder / "a.frec", folder, "--deep")
    assert text.splitlines()[0].startswith(f"{folder}/a.frec: good: 3 records")
    assert "3 shards" in text.splitlines()[1]
    (folder / "dataset.json").write_text("{")
    (whole,) = lines(run("verify", "--json", folder).stdout)
    assert (whole["ok"], whole["codes"]) == (False, ["FR210"])


# --- stats, browse, diff, doctor ---


def test_the_other_commands_take_a_manifest(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stats = json.loads(good("stats", "--json", folder))
    assert (stats["records"], len(stats["files"])) == (10, 3)
    assert stats["classes"]["counts"] == {"ant": 4, "bee": 4, "cow": 2}
    assert good("browse", folder).startswith("train.html: 10 of 10 matching records")
    assert good("browse", folder / "dataset.json", "--overwrite").startswith("train.html: ")
    fr.files.merge([folder / f"{name}.frec" for name in "abc"], tmp_path / "one.frec")
    assert "0 added, 0 removed, 0 changed" in good("diff", folder, tmp_path / "one.frec")
    good("export", folder, tmp_path / "out", "--format", "folder", "--drop", "weight")
    report = json.loads(good("doctor", "--json", folder))
    assert [os.path.basename(one["file"]) for one in report["files"]] == ["a.frec", "b.frec", "c.frec"]
