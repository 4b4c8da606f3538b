"""Class names and other metadata that are added after the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.schema import FieldType


def labelled(path: Path, labels: list[int], kind: FieldType | None = None) -> Path:
    with fr.Writer(
        path, {"label": kind or fr.FieldType("int64")}, metadata={"source": "a loop"}, complete=False
    ) as writer:
        writer.extend({"label": np.array(labels, kind.name if kind else "int64")})
    return path


@pytest.mark.parametrize(
    "kind", [fr.FieldType("int64"), fr.FieldType("uint8"), fr.FieldType("int32"), fr.FieldType("bool")], ids=str
)
def test_class_names_come_later_in_a_commit_of_their_own(tmp_path: Path, kind: FieldType) -> None:
    path = labelled(tmp_path / "a.frec", [0, 1, 1], kind)
    with fr.Reader(path) as before:
        fr.files.set_metadata(path, classes=["cat", "dog"], license="CC0")
        after = fr.Reader(path)
        assert (before.metadata, before.commit + 1) == ({"source": "a loop"}, after.commit)
        assert after.metadata == {"source": "a loop", "classes": ["cat", "dog"], "license": "CC0"}
        assert (after.column("label") == before.column("label")).all()
        assert not after.complete
    fr.files.set_metadata(path, license=None, path="a name like any other")
    assert set(fr.Reader(path).metadata) == {"source", "classes", "path"}
    assert fr.FastRecordDataset(path, fields=["label"], allow_incomplete=True).classes == ["cat", "dog"]


@pytest.mark.parametrize(
    ("labels", "classes", "error", "message"),
    [
        (
            [0, 2, 5],
            ["cat", "dog"],
            fr.errors.SchemaError,
            r"record 1 has the label 2, and 2 classes .*\[FR424\]",
        ),
        ([0, 1], ["cat", "cat"], ValueError, "'cat' more than once"),
        ([0, 1], "cat", TypeError, "sequence of class names"),
        ([0, 1], {"cat", "dog"}, TypeError, "sequence of class names, not .* order gives the labels"),
        ([0, 1], {"cat": 1, "dog": 0}, TypeError, "sequence of class names, not .* order gives the labels"),
        ([0, 1], 2, TypeError, "sequence of class names, not .* order gives the labels"),
    ],
)
def test_classes_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, labels: list[int], classes: object, error: type[Exception], message: str
) -> None:
    path = labelled(tmp_path / "a.frec", labels)
    before = path.read_bytes()
    with pytest.raises(error, match=message):
        fr.files.set_metadata(path, classes=classes)
    assert path.read_bytes() == before


def test_negative_labels_need_no_class_and_other_types_can_have_none(tmp_path: Path) -> None:
    fr.files.set_metadata(labelled(tmp_path / "a.frec", [-1, 0]), classes=["cat"])
    with fr.Writer(tmp_path / "b.frec", {"label": "float32"}) as writer:
        writer.append({"label": 0.5})
    with pytest.raises(fr.errors.SchemaError, match=r"b\.frec: field 'label' is of type float32.*\[FR408\]"):
        fr.files.set_metadata(tmp_path / "b.frec", classes=["cat"])
