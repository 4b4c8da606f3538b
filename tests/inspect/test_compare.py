from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.inspect.compare import Comparison
from tests.conftest import write_images
from tests.inspect.test_stats import colliding
from tests.support.commands import failed, flip, good, run
from tests.support.packing import pack_with
from tests.support.pictures import jpeg

SCHEMA = {"data": fr.bytes_(), "x": fr.FieldType("float32"), "key": fr.string()}
Row = dict[str, Any]


def rows(count: int = 10) -> list[Row]:
    return [{"data": bytes([i]) * (i + 1), "x": i / 2, "key": f"k{i}"} for i in range(count)]


def write(path: Path, records: Sequence[Row], schema: dict[str, fr.FieldType] | None = None, **metadata: Any) -> Path:
    with fr.Writer(path, fr.Schema(schema or SCHEMA), "w", metadata=metadata) as writer:
        for record in records:
            writer.append(record)
    return path


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Comparison]:
    def compare(a: list[Row], b: list[Row], **options: Any) -> Comparison:
        return fr.inspect.diff(write(tmp_path / "a.frec", a), write(tmp_path / "b.frec", b), **options)

    return compare


def test_a_copy_does_not_differ_however_it_is_stored(packed: Path, tmp_path: Path) -> None:
    shutil.copy(packed, tmp_path / "copy.frec")
    fr.files.shuffle(packed, tmp_path / "shuffled.frec", seed=1)
    fr.files.split(packed, tmp_path / "part.frec", shards=3)
    fr.files.index(tmp_path / "copy.frec")
    for other in (tmp_path / "copy.frec", tmp_path / "shuffled.frec", tmp_path / "part-*.frec"):
        found = fr.inspect.diff(packed, other)
        assert found.same
        assert (found.by, found.records, found.changes) == ("key", (12, 12), [])
        assert good("diff", packed, other).startswith("0 added, 0 removed, 0 changed; 12 and 12 records, paired by key")


def test_records_are_added_removed_and_changed(compared: Callable[..., Comparison]) -> None:
    b = rows()
    b[3]["x"], b[4]["data"], b[4]["x"] = 99.0, b"other", 98.0
    del b[7]
    b.insert(2, {"data": b"new", "x": 0, "key": "new"})
    found = compared(rows(), b)
    assert (found.added, found.removed, found.changed) == (1, 1, 2)
    assert found.changed_fields == {"data": 1, "x": 2}
    assert not found.same
    assert not found.reordered
    assert [(one.change, one.key, one.a, one.b, one.fields) for one in found.changes] == [
        ("removed", "k7", 7, None, []),
        ("added", "new", None, 2, []),
        ("changed", "k3", 3, 4, ["x"]),
        ("changed", "k4", 4, 5, ["data", "x"]),
    ]


def test_another_order_is_a_difference_only_if_asked_for(compared: Callable[..., Comparison], tmp_path: Path) -> None:
    found = compared(rows(), rows()[::-1])
    assert found.same
    assert found.reordered
    assert run("diff", tmp_path / "a.frec", tmp_path / "b.frec").exit_code == 0
    told = run("diff", "--order", tmp_path / "a.frec", tmp_path / "b.frec")
    assert told.exit_code == 1
    assert "different order" in told.stdout


def test_repeats_of_a_key_are_paired_in_order(compared: Callable[..., Comparison]) -> None:
    a = [{"data": bytes([i]), "x": 0, "key": "same"} for i in range(4)]
    assert compared(a, a).same
    found = compared(a, a[:3])
    assert (found.removed, found.added, found.changed) == (1, 0, 0)
    assert found.changes[0].a == 3


def test_files_without_keys_are_compared_by_position(tmp_path: Path) -> None:
    schema = {"x": fr.FieldType("int16")}
    a = write(tmp_path / "a.frec", [{"x": i} for i in range(5)], schema)
    b = write(tmp_path / "b.frec", [{"x": i if i != 2 else 9} for i in range(7)], schema)
    found = fr.inspect.diff(a, b)
    assert (found.by, found.added, found.removed, found.changed) == ("position", 2, 0, 1)
    told = run("diff", a, b).stdout
    assert "paired by position" in told
    assert "~ record 2  (x)" in told


def test_values_compressed_in_another_way_are_equal_and_others_are_not(tmp_path: Path) -> None:
    text = [{"text": f"word {i} " * 50, "key": str(i)} for i in range(20)]
    files = [
        write(tmp_path / f"{codec}.frec", text, {"text": fr.string(codec), "key": fr.string()})
        for codec in (None, "lz4", "zstd")
    ]
    sums = [fr.Reader(path).checksums("text").tolist() for path in files]
    assert sums[0] != sums[1] != sums[2]
    assert all(fr.inspect.diff(a, b).same for a in files for b in files)
    text[7]["text"] = text[7]["text"].replace("7", "8")
    other = write(tmp_path / "other.frec", text, {"text": fr.string("zstd"), "key": fr.string()})
    for path in files:
        found = fr.inspect.diff(path, other)
        assert [(one.key, one.fields) for one in found.changes] == [("7", ["text"])]


def test_a_crop_index_is_no_difference(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "c"
    folder.mkdir(parents=True)
    for i in range(3):
        (folder / f"{i}.jpg").write_bytes(jpeg(200 + i, 150))
    pack_with(tmp_path / "in", tmp_path / "plain.frec")
    pack_with(tmp_path / "in", tmp_path / "index.frec", crop_index=True)
    sums = [fr.Reader(tmp_path / name).checksums("image").tolist() for name in ("plain.frec", "index.frec")]
    assert sums[0] != sums[1]
    assert fr.inspect.diff(tmp_path / "plain.frec", tmp_path / "index.frec").same


def test_equal_bytes_of_another_shape_differ_and_nan_equals_itself(tmp_path: Path) -> None:
    schema = {
        "a": fr.array("float32", (None, None)),
        "f": fr.FieldType("float64"),
        "s": fr.array("float16", (2,)),
        "l": fr.list_(fr.array("int8", (None,))),
        "e": fr.array("int8", (0, 3)),
        "big": fr.array("int8", (65,)),
    }
    nan = float("nan")
    row = {
        "a": np.full((2, 6), nan, np.float32),
        "f": nan,
        "s": np.full(2, nan, np.float16),
        "l": [np.arange(3, dtype=np.int8)],
        "e": np.empty((0, 3), np.int8),
        "big": np.zeros(65, np.int8),
    }
    a = write(tmp_path / "a.frec", [row], schema)
    assert fr.inspect.diff(a, write(tmp_path / "b.frec", [row], schema)).same
    turned = write(tmp_path / "c.frec", [{**row, "a": np.full((6, 2), nan, np.float32)}], schema)
    assert fr.inspect.diff(a, turned).changed_fields == {"a": 1}
    other = write(
        tmp_path / "d.frec", [{**row, "f": 0.0, "s": np.zeros(2, np.float16), "l": [np.zeros(3, np.int8)]}], schema
    )
    assert fr.inspect.diff(a, other).changed_fields == {"f": 1, "s": 1, "l": 1}


def test_values_of_one_checksum_and_length_count_as_equal_as_documented(tmp_path: Path) -> None:
    one, other = colliding()
    schema = {"data": fr.bytes_()}
    assert fr.inspect.diff(
        write(tmp_path / "a.frec", [{"data": one}], schema), write(tmp_path / "b.frec", [{"data": other}], schema)
    ).same


def test_fields_and_types_that_differ_are_named(tmp_path: Path) -> None:
    a = write(
        tmp_path / "a.frec",
        [{"x": 1, "old": b"", "key": "k"}],
        {"x": fr.FieldType("int32"), "old": fr.bytes_(), "key": fr.string()},
    )
    b = write(
        tmp_path / "b.frec",
        [{"key": "k", "x": 1, "new": 2.0}],
        {"key": fr.string(), "x": fr.FieldType("int64"), "new": fr.FieldType("float32")},
    )
    found = fr.inspect.diff(a, b)
    assert (found.fields_added, found.fields_removed) == (["new"], ["old"])
    assert found.fields_retyped == {"x": ("int32", "int64")}
    assert not found.same
    told = run("diff", a, b)
    assert told.exit_code == 1
    assert "fields of another type: x (int32, now int64)" in told.stdout


def test_labels_are_compared_by_class_name(tmp_path: Path) -> None:
    a = write_images(tmp_path / "a.frec", [0, 1, 2, -1], ["cat", "dog", "owl"])
    same = write_images(tmp_path / "b.frec", [2, 0, 1, -1], ["dog", "owl", "cat"])
    for path in (a, same):  # keys of write_images begin with the file's name
        fr.files.drop_field(path, "key")
    found = fr.inspect.diff(a, same)
    assert found.same
    assert found.renumbered
    other = write_images(tmp_path / "c.frec", [0, 1, 1, -1], ["cat", "dog", "yak"])
    fr.files.drop_field(other, "key")
    found = fr.inspect.diff(a, other)
    assert (found.classes_added, found.classes_removed, found.changed_fields) == (["yak"], ["owl"], {"label": 1})
    unnamed = write_images(tmp_path / "d.frec", [0, 1, 2, -1])
    fr.files.drop_field(unnamed, "key")
    assert fr.inspect.diff(a, unnamed).same


def test_a_number_without_a_name_is_no_class_of_the_other_file(tmp_path: Path) -> None:
    schema = {"label": fr.FieldType("int64"), "key": fr.string()}
    records = [{"label": label, "key": f"k{number}"} for number, label in enumerate([0, 2, 7, -1])]
    a = write(tmp_path / "a.frec", records, schema, classes=["ant", "bee", "cat"])
    b = write(tmp_path / "b.frec", records, schema, classes=["ant", "bee"])
    found = fr.inspect.diff(a, b)
    assert [change.key for change in found.changes] == ["k1"]
    assert (found.classes_removed, found.changed_fields) == (["cat"], {"label": 1})


def test_files_without_records_do_not_differ(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.frec", []), write(tmp_path / "b.frec", [])
    assert fr.inspect.diff(a, b).same
    found = fr.inspect.diff(a, write(tmp_path / "c.frec", rows()))
    assert found.added == 10
    assert fr.inspect.diff(tmp_path / "c.frec", a).removed == 10


def test_the_command_lists_some_and_counts_all(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.frec", rows(50)), write(tmp_path / "b.frec", rows(10))
    told = run("diff", a, b, "--limit", 3)
    assert told.exit_code == 1
    assert told.stdout.splitlines()[:4] == ["- k10", "- k11", "- k12", "- ... and 37 more removed (--limit lists more)"]
    about = json.loads(run("diff", a, b, "--limit", 3, "--json").stdout)
    assert about["same"] is False
    assert (about["removed"], len(about["changes"])) == (40, 3)
    assert about == fr.inspect.diff(a, b, limit=3).to_dict() | {"records": [50, 10]}


def test_trouble_has_a_status_of_its_own(packed: Path, tmp_path: Path) -> None:
    assert "nothing" in failed("diff", packed, tmp_path / "nothing", status=2)
    (tmp_path / "text.frec").write_text("text")
    assert "[FR" in failed("diff", packed, tmp_path / "text.frec", status=2)
    failed("diff", packed, status=2)
    # A damaged value is compared by its checksum, unless it must be read.
    flip(packed, tmp_path / "bad.frec", record=3)
    assert fr.inspect.diff(packed, tmp_path / "bad.frec").same


def test_many_records_take_some_bytes_each(tmp_path: Path) -> None:
    count = 300_000
    with fr.Writer(tmp_path / "m.frec", fr.Schema({"key": fr.string(), "x": "int32"})) as writer:
        for start in range(0, count, 50_000):
            numbers = np.arange(start, start + 50_000, dtype=np.int32)
            writer.extend({"key": [f"a rather long key {number:040d}" for number in numbers], "x": numbers})
    child = (
        "import resource, sys, fastrecord as fr\n"
        "fr.inspect.diff\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert fr.inspect.diff(sys.argv[1], sys.argv[1]).same\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    told = subprocess.run([sys.executable, "-c", child, str(tmp_path / "m.frec")], capture_output=True, check=True)
    # The file itself is mapped: 32 + 4 + 59 bytes a record count as memory of the process.
    assert int(told.stdout) * 1024 < count * 320
