"""Shards form one data set: missing or foreign shards and repeated records are errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.conftest import encode, write_images
from tests.support.commands import failed, good
from tests.support.packing import pack_with, write
from tests.support.pairing import numbered_pairs
from tests.support.rewriting import keys, rows, write_rows

Make = Callable[[Path], list[str]]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write(tmp_path / "images", {f"{'ab'[i % 2]}/{i:02d}.jpg": encode(i) for i in range(12)})


def shard_of(path: str | Path) -> Any:
    with fr.Reader(path) as reader:
        return reader.metadata.get("shard")


def set_of(paths: list[str]) -> str:
    """Return the shard set of shards that declare themselves complete."""
    found = [shard_of(path) for path in paths]
    names = {shard["set"] for shard in found}
    assert found == [{"set": found[0]["set"], "number": i, "count": len(paths)} for i in range(len(paths))]
    return str(names.pop())


def packed(folder: Path) -> list[str]:
    files = {f"{'ab'[i % 2]}/{i:02d}.jpg": encode(i) for i in range(12)}
    return pack_with(write(folder / "images", files), folder / "train.frec", shards=4).paths


def packed_pairs(folder: Path) -> list[str]:
    return pack_with(numbered_pairs(folder, 12), folder / "train.frec", format="pairs", shards=4).paths


def was_split(folder: Path) -> list[str]:
    source = write_rows(folder / "all.rows", 12)
    return fr.files.split(source, folder / "train.frec", shards=4).paths


def was_shuffled(folder: Path) -> list[str]:
    (folder / "before").mkdir()
    before = was_split(folder / "before")
    return [fr.files.shuffle(path, folder / os.path.basename(path)).paths[0] for path in before]


def was_compacted(folder: Path) -> list[str]:
    return [fr.files.compact(path).paths[0] for path in was_split(folder)]


def was_appended_to(folder: Path) -> list[str]:
    paths = packed(folder)
    more = write(folder / "more", {"c/more.jpg": encode(50)})
    pack_with(more, paths[2], mode="append")
    return paths


@pytest.mark.parametrize(
    "make",
    [
        packed,
        packed_pairs,
        was_split,
        was_shuffled,
        was_compacted,
        was_appended_to,
    ],
)
def test_shards_of_which_one_is_missing_are_refused_and_it_is_named(make: Make, tmp_path: Path) -> None:
    paths = make(tmp_path)
    (tmp_path / "dataset.json").unlink(missing_ok=True)
    assert len(paths) == 4
    whole = len(fr.FastRecordDataset(paths, fields=["key"]))
    set_of(paths)
    lost = paths[2]
    os.unlink(lost)
    for given in (tmp_path, f"{tmp_path}/train-*", [paths[3], paths[0], paths[1]]):
        with pytest.raises(fr.FastRecordError, match=rf"^{lost}: is missing: \S+ is one of 4 shards") as caught:
            fr.FastRecordDataset(given, fields=["key"])
        assert caught.value.code == "FR208"
    with fr.Reader(paths[0]) as reader:
        assert len(reader) > 0
    assert 0 < len(fr.FastRecordDataset(tmp_path, allow_incomplete=True, fields=["key"])) < whole


def test_one_shard_alone_is_refused_with_the_names_of_the_others(tmp_path: Path) -> None:
    paths = packed(tmp_path)
    with pytest.raises(fr.FastRecordError, match=rf"^{paths[0]}, {paths[2]}, {paths[3]}: are missing: ") as caught:
        fr.FastRecordDataset(paths[1])
    assert "name all of them, or their folder" in str(caught.value)
    assert "allow_incomplete=True" in str(caught.value)
    assert f"shard     1 of 4, counted from 0, in the set {shard_of(paths[1])['set']}\n" in good("info", paths[1])
    assert len(fr.FastRecordDataset(paths[1], allow_incomplete=True)) == 3


def test_whole_sets_go_together_and_a_set_beside_it_that_is_not_whole_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = was_split(tmp_path / "one"), was_split(tmp_path / "two")
    assert set_of(one) != set_of(two)
    assert len(fr.FastRecordDataset([*two, *one])) == 24
    with pytest.raises(fr.FastRecordError, match=rf"^{two[3]}: is missing"):
        fr.FastRecordDataset([*one, *two[:3]])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_of_two_packs_under_the_names_of_one_are_refused(tmp_path: Path, count: int) -> None:
    (tmp_path / "old").mkdir()
    new, old = packed(tmp_path), packed(tmp_path / "old")
    for path, other in zip(new[count:], old[count:], strict=True):
        shutil.copy(other, path)
    with pytest.raises(fr.FastRecordError, match=r"train-0000\d.*not of the same set as \S+train-0000") as caught:
        fr.FastRecordDataset(f"{tmp_path}/*.frec")
    assert caught.value.code == "FR209"
    with pytest.raises(fr.FastRecordError, match=r"not of the same set.*begin again with `--overwrite`"):
        pack_with(tmp_path / "images", tmp_path / "train.frec", shards=4, mode="resume")
    pack_with(tmp_path / "images", tmp_path / "train.frec", shards=4, mode="overwrite")
    assert len(fr.FastRecordDataset(tmp_path)) == 12


def test_a_shard_that_is_there_twice_is_refused_but_not_a_path_that_is_named_twice(tmp_path: Path) -> None:
    paths = was_split(tmp_path)
    assert len(fr.FastRecordDataset([*paths, *paths])) == 24
    shutil.copy(paths[1], tmp_path / "copy.frec")
    (tmp_path / "dataset.json").unlink()
    with pytest.raises(fr.FastRecordError, match=r"is the same shard as \S+, 1 of 4, counted from 0: remove one"):
        fr.FastRecordDataset(tmp_path)


@pytest.mark.parametrize("absent", [False, True])
def test_an_overwrite_that_ends_in_its_third_shard_leaves_the_old_ones(
    images: Path, tmp_path: Path, absent: bool
) -> None:
    out = tmp_path / "out/train.frec"
    out.parent.mkdir()
    paths = pack_with(images, out, shards=4).paths
    if absent:
        os.unlink(paths[3])
    before = {path: path.read_bytes() for path in out.parent.iterdir()}
    bad = images / "b/03.jpg"
    good_bytes = bad.read_bytes()
    bad.write_bytes(b"no image")
    assert "[FR710]" in failed("pack", images, out, "--shards", 4, "--overwrite")
    assert {path: path.read_bytes() for path in out.parent.iterdir()} == before
    bad.write_bytes(good_bytes)
    old = shard_of(paths[0])["set"]
    good("pack", images, out, "--shards", 4, "--overwrite")
    assert set_of(paths) != old
    assert len(fr.FastRecordDataset(out.parent)) == 12


def test_an_overwrite_of_shards_is_refused_before_it_begins_if_one_of_them_is_being_written(
    images: Path, tmp_path: Path
) -> None:
    paths = pack_with(images, tmp_path / "train.frec", shards=4).paths
    seen: list[int] = []
    with fr.Writer(paths[3], mode="a"), pytest.raises(fr.errors.LockedError, match=r"00003-of-00004"):
        pack_with(
            images, tmp_path / "train.frec", shards=4, mode="overwrite", progress=lambda state: seen.append(state.files)
        )
    assert seen == []
    assert len(list(tmp_path.glob("*.frec*"))) == 4


def test_a_merge_takes_whole_sets_only_and_its_file_is_no_shard(tmp_path: Path) -> None:
    paths = was_split(tmp_path)
    told = failed("merge", paths[0], paths[1], paths[3], "-o", tmp_path / "three.frec")
    assert f"{paths[2]}: is missing" in told
    assert "`--allow-incomplete` (allow_incomplete=True) accepts the others [FR208]" in told
    assert not (tmp_path / "three.frec").exists()
    good("merge", paths[0], paths[1], paths[3], "-o", tmp_path / "three", "--allow-incomplete")
    good("merge", *paths, "-o", tmp_path / "all")
    assert (shard_of(tmp_path / "three"), shard_of(tmp_path / "all")) == (None, None)
    assert rows(tmp_path / "all") == rows(tmp_path / "all.rows")


def test_a_split_of_one_shard_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    paths = was_split(tmp_path)
    assert "are missing" in failed("split", paths[0], tmp_path / "part.frec", "--shards", "2")
    good("split", paths[0], tmp_path / "part.frec", "--shards", "2", "--allow-incomplete")
    set_of([str(tmp_path / f"part-0000{i}-of-00002.frec") for i in range(2)])


def test_files_of_fractions_are_no_shards(tmp_path: Path) -> None:
    train, val = fr.files.split(
        write_rows(tmp_path / "a", 10), [tmp_path / "train", tmp_path / "val"], fractions=[0.5, 0.5]
    ).paths
    assert (shard_of(train), shard_of(val)) == (None, None)
    assert len(fr.FastRecordDataset(train)) == 5


@pytest.mark.parametrize(
    "entry",
    [
        3,
        "1 of 4",
        {},
        {"set": 1, "number": 0, "count": 2},
        {"set": "x", "number": 2, "count": 2},
        {"set": "x", "number": -1, "count": 2},
        {"set": "x", "number": "0", "count": 2},
    ],
)
def test_an_entry_of_the_users_own_under_that_name_says_nothing(entry: object, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.frec", 3, shard=entry, made_of=entry)
    assert len(fr.FastRecordDataset(path)) == 3


def test_a_set_of_very_many_shards_is_refused_at_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.frec", 3, shard={"set": "x", "number": 1, "count": 1 << 60})
    with pytest.raises(fr.FastRecordError, match=r"^shard 0 of 1,152,\S+, counted from 0, shard 2 .* and .* more: are"):
        fr.FastRecordDataset(path)


# Files made from files


@pytest.mark.parametrize("command", ["split", "merge", "shuffle", "compact"])
def test_a_file_beside_those_that_were_made_of_it_is_refused_by_name(command: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.frec", 10, classes=["cat"])
    if command == "split":
        fr.files.split(source, shards=2)
    elif command == "merge":
        fr.files.merge([source, write_rows(tmp_path / "b.frec", 3, classes=["cat"])], tmp_path / "out.frec")
    else:
        getattr(fr.files, command)(source, tmp_path / "out.frec")
    for given in (tmp_path, f"{tmp_path}/*.frec", sorted(tmp_path.iterdir())):
        with pytest.raises(fr.FastRecordError, match=rf"\.frec: was made of {source}, and together") as caught:
            fr.FastRecordDataset(given)
        assert caught.value.code == "FR209"
    assert "was made of" in failed("merge", *tmp_path.glob("*.frec"), "-o", tmp_path / "all")
    assert len(fr.FastRecordDataset(tmp_path, allow_incomplete=True)) > 10
    source.unlink()
    assert len(fr.FastRecordDataset(tmp_path, allow_incomplete=command == "merge")) >= 10


def test_a_file_is_made_of_all_that_its_sources_were_made_of(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.frec", 10)
    (tmp_path / "parts").mkdir()
    train, val = fr.files.split(
        source, [tmp_path / "parts/train", tmp_path / "parts/val"], fractions=["0.8", "0.2"]
    ).paths
    mixed = fr.files.shuffle(train, tmp_path / "mixed.frec").paths[0]
    with pytest.raises(fr.FastRecordError, match=rf"mixed\.frec: was made of {source}"):
        fr.FastRecordDataset(tmp_path)
    assert sorted(keys(mixed) + keys(val)) == sorted(keys(source))
    assert len(fr.FastRecordDataset([mixed, val])) == 10, "they are made of one file, and not of each other"
    joined = fr.FastRecordDataset(mixed) + fr.FastRecordDataset(source)
    assert len(joined) == 18, "who joins data sets means it"


def test_a_file_that_is_compacted_in_place_is_made_of_no_other(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.frec", 10, x=1)
    fr.files.compact(path)
    with fr.Reader(path) as reader:
        assert reader.metadata == {"x": 1}


# Classes


def test_a_label_without_a_class_does_not_get_that_of_another_file(tmp_path: Path) -> None:
    first = write_images(tmp_path / "first.frec", [0, 1, -1], ["cat"])
    second = write_images(tmp_path / "second.frec", [0], ["dog"], seed=10)
    told = failed("merge", first, second, "-o", tmp_path / "out.frec")
    assert "first.frec: record 1, field label: the label 1 has no class: the file names 1 classes" in told
    assert not (tmp_path / "out.frec").exists()
    dataset = fr.FastRecordDataset([first, second])
    assert [label for _, label in (dataset[0], dataset[2], dataset[3])] == [0, -1, 1]
    for read in (lambda: dataset[1], lambda: dataset.targets, lambda: fr.concat(dataset)[1]):
        with pytest.raises(fr.errors.SchemaError, match=r"first\.frec: label 1 has no class: the file names 1"):
            read()
