"""Folders of images: what `fastrecord pack` and torchvision make of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

import fastrecord as fr
from fastrecord import FastRecordError
from fastrecord.interchange import registry
from tests.support.formats.exchanging import picture, write_file
from tests.support.packing import pack_with

FIELDS = {"image": fr.image(), "label": fr.FieldType("int64"), "key": fr.string()}


def write(path: Path, keys: list[str], labels: list[Any], classes: list[str] | None, **fields: Any) -> fr.Reader:
    columns = {"image": [picture(n) for n in range(len(keys))], "label": labels, "key": keys}
    return write_file(path, FIELDS | fields, columns, **({} if classes is None else {"classes": classes}))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_packing_an_export_gives_the_same_records(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number, name in enumerate(("cat/0.jpg", "cat/sub/1", "cat/sub/2.weird.JPEG", "dog/é.png", "owl/cat")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(picture(number))
    pack_with(source, tmp_path / "a.frec")
    summary = fr.export(tmp_path / "a.frec", tmp_path / "out", "folder")
    assert (summary.records, summary.files) == (5, 5)
    assert files(tmp_path / "out") == files(source)
    pack_with(tmp_path / "out", tmp_path / "b.frec")
    with fr.Reader(tmp_path / "a.frec") as one, fr.Reader(tmp_path / "b.frec") as other:
        assert [(bytes(r["image"]), r["label"], r["key"]) for r in one] == [
            (bytes(r["image"]), r["label"], r["key"]) for r in other
        ]
        assert one.metadata["classes"] == other.metadata["classes"]


def test_torchvision_reads_the_classes_of_keys_without_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", ["x", "y.jpg", "cat/z"], [0, 2, 0], ["cat", "dog", "owl"])
    fr.export(tmp_path / "a.frec", tmp_path / "out", "folder")
    assert files(tmp_path / "out") == {
        "cat/x.jpg": picture(0),
        "cat/z.jpg": picture(2),
        "owl/y.jpg": picture(1),
    }
    found = ImageFolder(str(tmp_path / "out"), allow_empty=True)
    assert found.classes == ["cat", "dog", "owl"]
    assert [label for _, label in found.samples] == [0, 0, 2]


def test_records_without_keys_or_labels_are_numbered(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", ["x", "y"], [1, 1], ["cat", "dog"])
    fr.export(tmp_path / "a.frec", tmp_path / "one", "folder", drop=["key"])
    assert files(tmp_path / "one") == {"dog/000000000.jpg": picture(0), "dog/000000001.jpg": picture(1)}
    fr.export(tmp_path / "a.frec", tmp_path / "two", "folder", drop=["key", "label"])
    assert list(files(tmp_path / "two")) == ["000000000.jpg", "000000001.jpg"]


def test_labels_that_are_strings_name_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.frec", ["x", "y"], ["b", "a"], None, label=fr.string())
    fr.export(tmp_path / "a.frec", tmp_path / "out", "folder")
    assert list(files(tmp_path / "out")) == ["a/y.jpg", "b/x.jpg"]


@pytest.mark.parametrize(
    ("keys", "labels", "classes", "message"),
    [
        (["a", "b"], [0, 0], None, "field label: its numbers have no names"),
        (["a", "b"], [0, 2], ["x", "y"], "record 1, field label: 2 has no name among 2 classes"),
        (["a", "b"], [0, 1], ["x", "../y"], "class '../y' cannot name a folder"),
        (["a", "../b"], [0, 1], ["x", "y"], "record 1, field key: '../b' is not a path inside a folder"),
        (["a", "/b"], [0, 1], ["x", "y"], "record 1, field key: '/b' is not a path inside a folder"),
        (["a", "a"], [0, 0], ["x", "y"], "record 1, field key: another record has the file 'x/a.jpg'"),
        (["a.jpg", "a.jpg/b"], [0, 0], ["x", "y"], "a.jpg: is a link, or not a folder"),
        (["a", "b" * 300], [0, 0], ["x", "y"], "record 1, field key: .* 304 bytes"),
    ],
)
def test_what_cannot_be_a_file_is_an_error_that_leaves_nothing(
    tmp_path: Path, keys: list[str], labels: list[int], classes: list[str] | None, message: str
) -> None:
    write(tmp_path / "a.frec", keys, labels, classes)
    with pytest.raises(FastRecordError, match=message):
        fr.export(tmp_path / "a.frec", tmp_path / "out", "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["a.frec"]


def test_other_fields_are_refused_by_name() -> None:
    folder = registry.load("folder")
    fields = FIELDS | {"mask": fr.image(), "text": fr.string()}
    assert folder.refuse(fr.Schema(fields)).keys() == {"mask", "text"}
    assert folder.refuse(fr.Schema({"data": fr.bytes_()})).keys() == {"data"}
    assert folder.refuse(fr.Schema(FIELDS | {"label": "float32", "key": "int8"})).keys() == {"label", "key"}
    assert folder.refuse(fr.Schema(FIELDS)) == {}
