"""Merging: the records of several files in one, classes by name, no remains of a failed merge."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from tests.conftest import write_images
from tests.support.child import run_child
from tests.support.commands import failed, flip, good
from tests.support.rewriting import SCHEMA, commits, metadata, rows, write_rows


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "one.frec", 300, classes=["cat", "dog"], source="a", made="by hand", seed=1)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """30 commits, with payloads that the kernel copies."""
    path = tmp_path / "two.frec"
    return write_rows(
        path, 90, classes=["owl", "dog"], source="b", made="by hand", largest=400_000, commit_bytes=600_000, seed=2
    )


@pytest.mark.parametrize("verify", [False, True])
def test_a_merged_file_has_the_records_of_each_file_in_turn(one: Path, two: Path, tmp_path: Path, verify: bool) -> None:
    out, empty = tmp_path / "out.frec", write_rows(tmp_path / "empty.frec", 0, classes=[])
    seen: list[tuple[int, int]] = []
    summary = fr.files.merge(
        [one, empty, two, one], out, verify=verify, progress=lambda done, total: seen.append((done, total))
    )
    assert rows(out) == rows(one) + rows(two) + rows(one)
    assert (summary.paths, summary.counts, summary.records) == ([str(out)], [690], 690)
    assert summary.bytes == out.stat().st_size
    assert summary.source_bytes == sum(path.stat().st_size for path in (one, empty, two, one))
    assert (commits(out), commits(two) > 20) == (1, True)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {summary.source_bytes}
    assert seen[-1][0] == seen[-1][1]
    # Classes are joined by name; the first file keeps its numbers.
    assert summary.classes == metadata(out)["classes"] == ["cat", "dog", "owl"]
    with fr.Reader(out) as merged, fr.Reader(one) as first, fr.Reader(two) as second:
        label = merged.column("label")
        assert not label.flags.owndata
        np.testing.assert_array_equal(label[:300], first.column("label"))
        np.testing.assert_array_equal(label[300:390], np.array([2, 1])[second.column("label")])


@pytest.mark.parametrize(
    ("kind", "labels"), [(fr.FieldType("float64"), [1.0, 0.0]), (fr.string(), ["y", "y"])], ids=str
)
def test_labels_that_are_not_integers_are_never_renumbered(
    tmp_path: Path, kind: fr.FieldType, labels: list[Any]
) -> None:
    for name, classes, label in (("a", "xy", labels[0]), ("b", "xyz", labels[0]), ("c", "yx", labels[1])):
        with fr.Writer(tmp_path / name, {"label": kind}, metadata={"classes": list(classes)}) as writer:
            writer.append({"label": label})
    assert fr.files.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out").classes == ["x", "y", "z"]
    if kind == fr.FieldType("float64"):
        with pytest.raises(fr.errors.SchemaError, match=r"c: its classes have other numbers than in .*a, .*int64"):
            fr.files.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "out2")
    else:
        fr.files.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "out2")
        with fr.Reader(tmp_path / "out2") as reader:
            assert [record["label"] for record in reader] == labels


def test_negative_labels_stay_and_labels_without_a_class_are_refused(one: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.frec"
    with fr.Writer(other, SCHEMA, metadata={"classes": ["dog"]}) as writer:
        writer.append({"data": b"", "label": -1, "key": "none"})
        writer.append({"data": b"", "label": 0, "key": "dog"})
    fr.files.merge([one, other], tmp_path / "out.frec")
    assert [name for _, name, _ in rows(tmp_path / "out.frec")[-2:]] == [-1, "dog"]
    with fr.Writer(other, None, "a") as writer:
        writer.append({"data": b"", "label": 1, "key": "unknown"})
    with pytest.raises(fr.errors.SchemaError, match=r"other\.frec: record 2, field label: the label 1 has no class"):
        fr.files.merge([one, other], tmp_path / "out2.frec")
    assert not (tmp_path / "out2.frec").exists()


def test_files_are_refused_if_only_some_name_classes(one: Path, tmp_path: Path) -> None:
    other = write_rows(tmp_path / "other.frec", 3)
    with pytest.raises(
        fr.errors.SchemaError, match=r"class names in .*one\.frec, but none in .*other\.frec: .*set_metadata"
    ):
        fr.files.merge([one, other], tmp_path / "out.frec")
    assert fr.files.merge([other, other], tmp_path / "out.frec").classes is None
    assert "classes" not in metadata(tmp_path / "out.frec")


def test_metadata_that_is_equal_is_kept_and_of_the_rest_the_first_and_listed(
    one: Path, two: Path, tmp_path: Path
) -> None:
    third = write_rows(tmp_path / "three.frec", 1, classes=["cat"], made="by hand", only={"here": [1]})
    summary = fr.files.merge([one, two, third], tmp_path / "out.frec")
    assert sorted(summary.differing) == ["only", "source"]
    expected = {"made": "by hand", "source": "a", "only": {"here": [1]}, "classes": ["cat", "dog", "owl"]}
    assert metadata(tmp_path / "out.frec") == expected


def test_labels_of_another_type_get_no_class_of_another_file_either(tmp_path: Path) -> None:
    for name, classes, label in (("a", ["cat"], 0), ("b", ["cat", "dog"], 1), ("c", ["cat"], 1)):
        with fr.Writer(tmp_path / name, {"label": "int32"}, metadata={"classes": classes}) as writer:
            writer.append({"label": label})
    assert fr.files.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out").classes == ["cat", "dog"]
    assert fr.Reader(tmp_path / "out").column("label").tolist() == [0, 1]
    with pytest.raises(fr.errors.SchemaError, match=r"/c: label 1 has no class: the file names 1"):
        fr.files.merge([tmp_path / "c", tmp_path / "b"], tmp_path / "other")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"data": fr.bytes_(), "label": fr.FieldType("int64")}, r"other\.frec: no field 'key', which .*one\.frec has"),
        (dict(SCHEMA) | {"more": fr.FieldType("int64")}, r"one\.frec: no field 'more', which .*other\.frec has"),
        (
            dict(SCHEMA) | {"label": fr.FieldType("float64")},
            r"field 'label' is int64 in .*one\.frec, but float64 in .*other",
        ),
    ],
)
def test_other_fields_are_refused_by_name(
    one: Path, tmp_path: Path, schema: dict[str, fr.FieldType], message: str
) -> None:
    fr.Writer(tmp_path / "other.frec", fr.Schema(schema), metadata={"classes": []}).close()
    with pytest.raises(fr.errors.SchemaError, match=message):
        fr.files.merge([one, tmp_path / "other.frec"], tmp_path / "out.frec")
    assert not (tmp_path / "out.frec").exists()


def test_a_source_is_never_written_to(one: Path, two: Path, tmp_path: Path) -> None:
    before = one.read_bytes()
    link = tmp_path / "link.frec"
    link.symlink_to(one)
    for out in (one, link):
        for overwrite in (False, True):
            with pytest.raises(fr.FastRecordError, match="is the file to read from"):
                fr.files.merge([two, one], out, overwrite=overwrite)
    assert one.read_bytes() == before
    assert link.is_symlink()


def test_an_existing_file_is_refused_unless_it_is_to_be_replaced(one: Path, two: Path, tmp_path: Path) -> None:
    out = write_rows(tmp_path / "out.frec", 7)
    with pytest.raises(FileExistsError, match=r"out\.frec: exists already: `--overwrite`"):
        fr.files.merge([one], out)
    with fr.Writer(out, None, "a"), pytest.raises(fr.errors.LockedError, match="another writer"):
        fr.files.merge([one], out, overwrite=True)
    with fr.Reader(out) as old:
        fr.files.merge([one, two], out, overwrite=True)
        assert len(old) == 7
        assert old[3]["key"] == "out/3"
    assert rows(out) == rows(one) + rows(two)
    assert sorted(os.listdir(tmp_path)) == ["one.frec", "out.frec", "two.frec"]


def test_incomplete_files_are_merged_only_on_request(one: Path, tmp_path: Path) -> None:
    part = write_rows(tmp_path / "part.frec", 5, classes=["cat"], complete=False)
    with pytest.raises(fr.FastRecordError, match=r"part\.frec: its packing is not complete: .*--allow-incomplete"):
        fr.files.merge([one, part], tmp_path / "out.frec")
    assert fr.files.merge([one, part], tmp_path / "out.frec", allow_incomplete=True).records == 305
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert reader.complete


def test_damage_is_named_and_nothing_is_left(packed: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.frec"
    flip(packed, damaged, record=4)
    with pytest.raises(fr.errors.CorruptFileError, match=r"damaged\.frec: record 4, field image: stored CRC"):
        fr.files.merge([packed, damaged], tmp_path / "out.frec", verify=True)
    assert not (tmp_path / "out.frec").exists()
    fr.files.merge([packed, damaged], tmp_path / "out.frec")
    with fr.Reader(packed) as reader, fr.Reader(tmp_path / "out.frec") as merged:
        errors = merged.verify()["errors"]
        assert len(errors) == 1
        assert f"record {len(reader) + 4}, field image" in errors[0]


def test_a_source_that_is_cut_short_meanwhile_is_an_error(one: Path, two: Path, tmp_path: Path) -> None:
    def cut(*_: int) -> None:
        os.truncate(two, 10_000)

    with pytest.raises(fr.errors.CorruptFileError, match=r"two\.frec: "):
        fr.files.merge([one, two], tmp_path / "out.frec", progress=cut)
    assert not (tmp_path / "out.frec").exists()


def test_wrong_arguments_are_refused(one: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a sequence of files"):
        fr.files.merge(str(one), tmp_path / "out.frec")
    with pytest.raises(ValueError, match="at least one file"):
        fr.files.merge([], tmp_path / "out.frec")
    with pytest.raises(FileNotFoundError):
        fr.files.merge([one, tmp_path / "absent.frec"], tmp_path / "out.frec")


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    script = """
    write("a.frec", 4096, size=10)
    fr.files.merge(["a.frec"] * 16, "b.frec")
    fr.files.merge(["b.frec"] * 16, "c.frec")
    assert len(fr.Reader("c.frec")) == 1_048_576
    words = open("/proc/self/status").read().split()
    now = int(words[words.index("VmData:") + 1]) * 1024
    # The entries alone are 75 MB.
    resource.setrlimit(resource.RLIMIT_DATA, (now + (40 << 20), now + (40 << 20)))
    fr.files.merge(["c.frec"], "out.frec")
    fr.files.shuffle("c.frec", "shuffled.frec", 1)
    print(len(fr.Reader("out.frec")), len(fr.Reader("shuffled.frec")))
    """
    assert run_child(script, tmp_path, timeout=300) == "1048576 1048576\n"


# The command line


def test_the_command_merges_and_reports(one: Path, two: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.frec"
    text = good("merge", one, two, "-o", out)
    assert text.startswith(f"{out}: 390 records in 3 classes, ")
    assert "taken from the first file that has it: source" in text
    assert rows(out) == rows(one) + rows(two)
    assert "exists already" in failed("merge", one, two, "-o", out)
    summary = json.loads(good("merge", one, two, "-o", out, "--overwrite", "--verify", "--json"))
    assert summary["records"] == 390
    assert summary["paths"] == [str(out)]
    assert summary["classes"] == ["cat", "dog", "owl"]
    assert summary["differing"] == ["source"]
    assert summary["bytes"] == out.stat().st_size


def test_the_command_names_what_is_wrong(one: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images.frec", [0])
    assert "no field 'data', which" in failed("merge", one, images, "-o", tmp_path / "out.frec")
    assert "Missing argument 'OUT'" in failed("merge", one, status=2)
    assert "FILE" in failed("merge", "-o", tmp_path / "out.frec", status=2)
