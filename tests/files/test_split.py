"""Splitting: records in at most one file, in order; exact, repeatable shares; all files or none."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.support.commands import failed, good
from tests.support.rewriting import commits, keys, metadata, rows, write_rows


@pytest.fixture
def many(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "many.frec", 1_003, classes=["cat", "dog"], commit_bytes=300_000, made="by hand")


def tiny(path: Path, count: int) -> Path:
    with fr.Writer(path, fr.Schema({"key": fr.string()})) as writer:
        for i in range(count):
            writer.append({"key": str(i)})
    return path


def test_shards_are_runs_of_the_records(many: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    summary = fr.files.split(many, tmp_path / "out.frec", shards=4, progress=lambda *step: seen.append(step))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    assert summary.paths == [str(tmp_path / f"out-{i:05d}-of-00004.frec") for i in range(4)]
    assert sorted(summary.counts) == [250, 251, 251, 251]
    assert [row for path in summary.paths for row in rows(path)] == rows(many)
    for path in summary.paths:
        assert metadata(path) == {"classes": ["cat", "dog"], "made": "by hand"}
        assert commits(path) == 1
    assert (summary.records, summary.classes) == (1_003, ["cat", "dog"])


def test_names_are_made_of_the_files_own_unless_given(many: Path, tmp_path: Path) -> None:
    fr.files.split(many, shards=2)
    assert sorted(os.listdir(tmp_path)) == ["many-00000-of-00002.frec", "many-00001-of-00002.frec", "many.frec"]
    names = [tmp_path / "a.frec", tmp_path / "b.frec", tmp_path / "c.frec"]
    assert fr.files.split(many, names, shards=3).paths == [str(name) for name in names]
    with pytest.raises(ValueError, match="3 names for 2 files"):
        fr.files.split(many, names, shards=2, overwrite=True)
    with pytest.raises(ValueError, match="have one name"):
        fr.files.split(many, [names[0], tmp_path / "x" / ".." / "a.frec"], shards=2, overwrite=True)


def test_no_shard_exceeds_the_size_asked_for(many: Path, tmp_path: Path) -> None:
    limit = 300_000
    summary = fr.files.split(many, tmp_path / "out.frec", shard_size=limit)
    sizes = [os.path.getsize(path) for path in summary.paths]
    assert max(sizes) <= limit
    assert min(sizes[:-1]) > limit * 0.6
    assert [row for path in summary.paths for row in rows(path)] == rows(many)
    # A record above the size gets a shard of its own.
    few = write_rows(tmp_path / "few.frec", 3)
    assert fr.files.split(few, shard_size=1).counts == [1] * 3
    with pytest.raises(fr.FastRecordError, match=r"few\.frec: 4 shards of 3 records"):
        fr.files.split(few, shards=4)


def test_shards_of_another_division_are_refused_by_name(many: Path) -> None:
    fr.files.split(many, shards=2)
    with pytest.raises(fr.FastRecordError, match=r"many-00000-of-00002\.frec: 2 shard"):
        fr.files.split(many, shards=3)
    with pytest.raises(FileExistsError, match=r"many-00000-of-00002\.frec: exists"):
        fr.files.split(many, shards=2)
    assert fr.files.split(many, shards=2, overwrite=True).records == 1_003


SHARES: list[list[float | str | Fraction]] = [
    [0.9, 0.1],
    ["0.8", "0.1", "0.1"],
    [Fraction(1, 3)] * 3,
    [0.1] * 10,
    [0.25, 0.5],
    [1],
]


@pytest.mark.parametrize("n", [0, 1, 10, 997])
@pytest.mark.parametrize("fractions", SHARES)
def test_files_of_shares_have_the_records_of_the_parts_of_a_data_set(
    tmp_path: Path, n: int, fractions: list[float | str | Fraction]
) -> None:
    source = tiny(tmp_path / "a.frec", n)
    names = [f"part{number}" for number in range(len(fractions))]
    summary = fr.files.split(source, fractions=fractions, names=names, seed=7)
    assert summary.paths == [str(tmp_path / f"{name}.frec") for name in names]
    found = [[int(key) for key in keys(path)] for path in summary.paths]
    shares = [float(Fraction(str(share))) for share in fractions]
    rest = 1 - sum(shares)
    parts = fr.FastRecordDataset(source).split([*shares, *([rest] if rest > 1e-6 else [])], seed=7)
    assert found == [sorted(part.rows(range(len(part))).tolist()) for part in parts[: len(fractions)]]
    assert summary.counts == [len(part) for part in found]
    assert all(abs(count - n * share) < len(parts) for count, share in zip(summary.counts, shares, strict=True))


def test_the_seed_decides_the_choice(many: Path, tmp_path: Path) -> None:
    found = []
    for seed in (0, 1, 2**64 - 1, 0):
        names = [f"{seed}-a", f"{seed}-b.frec"]
        summary = fr.files.split(many, fractions=[0.7, 0.3], names=names, seed=seed, overwrite=True)
        assert summary.counts == [703, 300]
        assert sorted(row for path in summary.paths for row in rows(path)) == sorted(rows(many))
        found.append(keys(tmp_path / f"{seed}-b.frec"))
    assert found[0] == found[3]
    assert len({tuple(part) for part in found}) == 3


def test_files_of_shares_are_named_and_no_pattern_of_shards_joins_them(many: Path, tmp_path: Path) -> None:
    for out in (None, tmp_path / "many.frec"):
        with pytest.raises(ValueError, match=r"name each, such as names=\['train', 'val'\] \(--names train,val\)"):
            fr.files.split(many, out, fractions=[0.9, 0.1])
    assert fr.files.split(many, tmp_path / "some.frec", fractions=[0.1]).paths == [str(tmp_path / "some.frec")]
    (tmp_path / "parts").mkdir()
    summary = fr.files.split(many, tmp_path / "parts", fractions=[0.9, 0.1], names=["train", "val"])
    assert summary.paths == [str(tmp_path / "parts" / name) for name in ("train.frec", "val.frec")]
    with pytest.raises(FileNotFoundError):
        fr.FastRecordDataset(tmp_path / "parts" / "train-*.frec")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"names": ["a"]}, "1 names for 2 files"),
        ({"names": "ab"}, "a list of names"),
        ({"names": ["a", "x/b"]}, "such as 'train', not 'x/b'"),
        ({"names": ["a", ""]}, "such as 'train', not ''"),
        ({"names": ["a", "b"], "out": [tmp_path / "a", tmp_path / "b"]}, "two ways"),
        ({"names": ["a", "b"], "fractions": None, "shards": 2}, "names belong to fractions"),
    ]
    for wrong, message in refused:
        options = {"fractions": [0.9, 0.1], **wrong}
        with pytest.raises(ValueError, match=message):
            fr.files.split(many, **options)
    with pytest.raises(fr.FastRecordError, match=r"many\.frec: is the file to read from"):
        fr.files.split(many, fractions=[0.9, 0.1], names=["many", "b"])


@pytest.mark.parametrize("fractions", [[], [0.5, 0.6], [0, 1], ["x"], [float("nan")], ["1/0"]])
def test_shares_that_are_none_are_refused(many: Path, fractions: list[float | str]) -> None:
    with pytest.raises(ValueError, match="fractions are"):
        fr.files.split(many, fractions=fractions)


def test_one_way_to_split_is_chosen(many: Path) -> None:
    with pytest.raises(ValueError, match="one of shards, shard_size and fractions"):
        fr.files.split(many)
    with pytest.raises(ValueError, match="one of shards, shard_size and fractions"):
        fr.files.split(many, shards=2, fractions=[0.5, 0.5])
    with pytest.raises(ValueError, match="shards is at least 1, not 0"):
        fr.files.split(many, shards=0)
    for value in ("a", 2.5):
        with pytest.raises(TypeError, match=r"^shards is an int, not (str|float): "):
            fr.files.split(many, shards=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed is from 0 to 18446744073709551615"):
        fr.files.split(many, "x.frec", fractions=[0.5], seed=-1)


def test_a_split_leaves_nothing_if_one_file_fails(many: Path, tmp_path: Path) -> None:
    names = [tmp_path / "0.frec", tmp_path / "1.frec", tmp_path / "absent" / "x.frec"]
    with pytest.raises(FileNotFoundError):
        fr.files.split(many, names, shards=3)
    assert os.listdir(tmp_path) == ["many.frec"]


def test_the_command_splits_and_reports(many: Path, tmp_path: Path) -> None:
    text = good("split", many, "--fractions", "0.9, 0.1", "--names", "most, rest", "--seed", "3")
    assert f"{tmp_path / 'most.frec'}: 903 records\n" in text
    assert "2 files: 1,003 records in 2 classes, " in text
    names = [tmp_path / "train.frec", tmp_path / "val.frec"]
    summary = json.loads(good("split", many, *names, "--fractions", "0.9,0.1", "--seed", "3", "--json"))
    assert summary["counts"] == [903, 100]
    assert summary["paths"] == [str(name) for name in names]
    assert rows(names[1]) == rows(tmp_path / "rest.frec")
    assert "exists already" in failed("split", many, "-o", names[0], "-o", names[1], "--shards", "2")
    good("split", many, *names, "--shards", "2", "--overwrite", "--verify")
    good("split", many, tmp_path / "by-size.frec", "--shard-size", "1MB")


def test_the_command_refuses_what_makes_no_sense(many: Path) -> None:
    assert "give one of --shards" in failed("split", many, status=2)
    assert "--names train,val" in failed("split", many, "--fractions", "0.9,0.1", status=2)
    assert "--fractions are above 0" in failed("split", many, "--fractions", "0.9,0.9", status=2)
    assert "1 names" not in failed("split", many, "x", "y", "z", "--shards", "2", status=2)
    assert "is a number of bytes" in failed("split", many, "--shard-size", "big", status=2)
