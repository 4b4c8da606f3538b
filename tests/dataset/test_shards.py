"""Several files as one data set: their order, their classes, and what they must share."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord.dataset.shards import Shards, normalized
from tests.conftest import SCHEMA, encode, write_bytes, write_images

# --- labels ---


def test_classes_of_several_files_are_matched_by_name_and_new_ones_come_at_the_end(tmp_path: Path) -> None:
    first = write_images(tmp_path / "first.frec", [0, 1, 2], ["cat", "dog", "owl"])
    second = write_images(tmp_path / "second.frec", [0, 1, 2, -1], ["ape", "owl", "cat"], seed=10)
    third = write_images(tmp_path / "third.frec", [1], ["cat", "dog"], seed=20)
    dataset = fr.FastRecordDataset([first, second, third], decode=None)
    assert dataset.classes == ["cat", "dog", "owl", "ape"]
    assert dataset.class_to_idx["ape"] == 3
    expected = [0, 1, 2, 3, 2, 0, -1, 1]
    assert dataset.targets.tolist() == expected
    assert not dataset.targets.flags.writeable
    assert [dataset[index][1] for index in range(8)] == expected
    assert [label for _, label in dataset.__getitems__(range(8))] == expected
    assert dataset.samples[3] == ("second/0", 3)
    again = pickle.loads(pickle.dumps(dataset))
    assert [label for _, label in again.__getitems__(range(8))] == expected
    assert again.classes == dataset.classes


def test_files_without_classes_keep_their_labels(tmp_path: Path) -> None:
    paths = [write_images(tmp_path / "a.frec", [5, 7]), write_images(tmp_path / "b.frec", [900])]
    assert fr.FastRecordDataset(paths).targets.tolist() == [5, 7, 900]


def test_labels_that_are_measured_are_not_mapped(tmp_path: Path) -> None:
    schema = fr.Schema({"image": fr.image(), "label": "float64"})
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        with fr.Writer(tmp_path / f"{name}.frec", schema, metadata={"classes": classes}) as writer:
            writer.append({"image": encode(0), "label": 1.5})
    dataset = fr.FastRecordDataset(tmp_path)
    assert dataset.targets.tolist() == [1.5, 1.5]
    assert dataset[1][1] == 1.5


def test_files_with_and_without_classes_are_not_mixed(tmp_path: Path) -> None:
    paths = [write_images(tmp_path / "named.frec", [0], ["cat"]), write_images(tmp_path / "bare.frec", [0])]
    with pytest.raises(fr.errors.SchemaError, match=r"class names in \S*named\.frec, but none in \S*bare\.frec"):
        fr.FastRecordDataset(paths)


def test_labels_are_numbered_by_given_classes_in_every_way_of_reading_them(tmp_path: Path) -> None:
    first = write_images(tmp_path / "first.frec", [0, 1, -1], ["dog", "cat"])
    second = write_images(tmp_path / "second.frec", [0, 0], ["cat"], seed=10)
    dataset = fr.FastRecordDataset([first, second], decode=None, classes=("cat", "dog", "owl"))
    assert dataset.classes == ["cat", "dog", "owl"]
    expected = [1, 0, -1, 0, 0]
    for same in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert same.targets.tolist() == expected
        assert [same[row][1] for row in range(5)] == expected
        assert [label for _, label in same.__getitems__(range(5))] == expected
        assert same.classes == ["cat", "dog", "owl"]


def test_files_with_a_class_that_is_not_given_or_with_none_are_refused_by_name(tmp_path: Path) -> None:
    named = write_images(tmp_path / "named.frec", [0, 1], ["cat", "yak"])
    bare = write_images(tmp_path / "bare.frec", [0])
    with pytest.raises(
        fr.errors.SchemaError, match=r"named\.frec: its classes 'yak' are not among the 2 that classes="
    ):
        fr.FastRecordDataset(named, classes=["cat", "dog"])
    with pytest.raises(
        fr.errors.SchemaError, match=r"class names by classes=, but none in \S*bare\.frec.*--classes-from"
    ):
        fr.FastRecordDataset(bare, classes=["cat", "dog"])
    with pytest.raises(ValueError, match="'cat' more than once"):
        fr.FastRecordDataset(named, classes=["cat", "yak", "cat"])
    with pytest.raises(TypeError, match="a sequence of class names, not 'cat'"):
        fr.FastRecordDataset(named, classes="cat")


def test_given_classes_need_labels_to_number(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image()}), metadata={"classes": ["cat"]}) as writer:
        writer.append({"image": encode(0)})
    with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: classes= numbers integer labels"):
        fr.FastRecordDataset(tmp_path / "a.frec", classes=["cat"])


@pytest.mark.parametrize("classes", ["cat", [1, 2], {"cat": 0}, ["cat", "dog", "cat"]])
def test_class_names_that_are_no_list_of_distinct_names_are_refused(tmp_path: Path, classes: Any) -> None:
    with fr.Writer(tmp_path / "a.frec", SCHEMA, metadata={"classes": classes}) as writer:
        writer.append({"image": encode(0), "label": 0, "key": "a"})
    with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: metadata 'classes' "):
        fr.FastRecordDataset(tmp_path / "a.frec")


# --- several files ---


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of four files, of 3, 0, 2 and 4 records."""
    for name, labels in (("d", [30, 31, 32, 33]), ("a", [0, 1, 2]), ("b", []), ("c", [20, 21])):
        write_images(tmp_path / f"{name}.frec", labels)
    return tmp_path


def test_a_folder_and_a_pattern_are_read_in_sorted_order_and_a_list_as_given(shards: Path) -> None:
    in_order = [0, 1, 2, 20, 21, 30, 31, 32, 33]
    assert fr.FastRecordDataset(shards).targets.tolist() == in_order
    assert fr.FastRecordDataset(f"{shards}/*.frec").targets.tolist() == in_order
    assert fr.FastRecordDataset(f"{shards}/[ac].frec").targets.tolist() == [0, 1, 2, 20, 21]
    two: list[str | Path] = [shards / "d.frec", str(shards / "a.frec")]
    assert fr.FastRecordDataset(two).targets.tolist() == [30, 31, 32, 33, 0, 1, 2]
    assert fr.FastRecordDataset(shards).paths == [str(shards / f"{name}.frec") for name in "abcd"]
    assert "Number of files: 4" in repr(fr.FastRecordDataset(shards))


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    assert fr.FastRecordDataset(write_images(tmp_path / "a[0].frec", [4])).targets.tolist() == [4]


def test_a_batch_over_several_files_keeps_its_order(shards: Path) -> None:
    dataset = fr.FastRecordDataset(shards, decode=None, fields=("image", "key"))
    rows = [8, 0, 3, 8, 4, 2, -9]
    batch = dataset.__getitems__(rows)
    assert list(batch) == [dataset[row] for row in rows]
    assert [sample["key"] for sample in batch] == ["d/3", "a/0", "c/0", "d/3", "c/1", "a/2", "a/0"]
    assert [dataset.key(row) for row in rows] == [sample["key"] for sample in batch]
    assert dataset.locate(3) == (2, 0)


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), data=st.data())
def test_every_row_of_any_files_is_found_where_it_lies(counts: list[int], data: st.DataObject) -> None:
    shards = Shards([SimpleNamespace(counts=counts)])  # type: ignore[list-item]  # only their lengths count here
    where = [(shard, record) for shard, count in enumerate(counts) for record in range(count)]
    assert [shards.locate(row) for row in range(len(where))] == where
    rows = data.draw(st.lists(st.integers(-len(where), len(where) - 1), max_size=20)) if where else []
    found: dict[int, tuple[int, int]] = {}
    for shard, positions, records in shards.split(normalized(rows, len(shards))):
        found |= {
            position: (shard, record) for position, record in zip(positions.tolist(), records.tolist(), strict=True)
        }
    assert [found[position] for position in range(len(rows))] == [where[row] for row in rows]


def test_snapshots_name_each_file_and_what_of_it_is_read(shards: Path) -> None:
    dataset = fr.FastRecordDataset(shards)
    assert [snapshot["records"] for snapshot in dataset.snapshots] == [3, 0, 2, 4]
    with fr.Reader(shards / "c.frec") as reader:
        assert dataset.snapshots[2] == {
            "path": str(shards / "c.frec"),
            "file_id": reader.file_id,
            "commit": reader.commit,
            "records": 2,
            "bytes": (shards / "c.frec").stat().st_size,
            "footer_crc": reader.footer_crc,
        }


def test_a_pattern_or_folder_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file matches '.*/none-\*\.frec'"):
        fr.FastRecordDataset(f"{tmp_path}/none-*.frec")
    with pytest.raises(FileNotFoundError, match=r"with `fastrecord pack"):
        fr.FastRecordDataset(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"gone\.frec"):
        fr.FastRecordDataset(tmp_path / "gone.frec")
    with pytest.raises(ValueError, match="no path given"):
        fr.FastRecordDataset([])


def test_files_whose_fields_differ_are_refused_by_name(tmp_path: Path, packed: Path) -> None:
    other = write_bytes(tmp_path / "other.frec", [b"x"])
    with pytest.raises(fr.errors.SchemaError, match=r"other\.frec: no field 'image'"):
        fr.FastRecordDataset([packed, other])
    with fr.Writer(tmp_path / "float.frec", fr.Schema({"image": fr.image(), "label": "float64"})) as writer:
        writer.append({"image": encode(0), "label": 0.5})
    with pytest.raises(
        fr.errors.SchemaError, match=r"field 'label' is float64 in \S*float\.frec, but int64 in \S*train\.frec"
    ):
        fr.FastRecordDataset([packed, tmp_path / "float.frec"])
    for name, size in (("a", 3), ("b", 4)):
        fr.Writer(tmp_path / name, {"x": fr.array("float32", (size,)), "key": "string"}).close()
    both = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(fr.errors.SchemaError, match=r"field 'x' is array\(float32, \(4,\)\) in \S*b, but array.*\S*a"):
        fr.FastRecordDataset(both, fields=["x"])
    assert len(fr.FastRecordDataset(both, fields=["key"])) == 0
