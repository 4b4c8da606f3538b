"""Fields of every type as labels: which are taken, and what they are in samples, batches and targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.conftest import encode


@pytest.mark.parametrize("kind", [fr.int8(), fr.uint8(), fr.int16(), fr.uint16(), fr.int32(), fr.uint32(), fr.int64()])
def test_labels_of_any_integer_type_are_int64_by_class(tmp_path: Path, kind: fr.FieldType) -> None:
    names = [f"class {number:03d}" for number in range(120)]
    paths = [tmp_path / "a.frec", tmp_path / "b.frec"]
    for path, classes in zip(paths, (names, names[::-1]), strict=True):
        with fr.Writer(path, fr.Schema({"image": fr.image(), "label": kind}), metadata={"classes": classes}) as writer:
            for label in (0, 5, 119):
                writer.append({"image": encode(label), "label": label})
    expected = [0, 5, 119, 119, 114, 0]
    data = fr.FastRecordDataset(paths, decode=None)
    table = data.select(["label"])
    assert data.targets.dtype == np.int64
    assert data.targets.tolist() == data.labels(data.rows(range(6))).tolist() == expected
    assert [label for _, label in data.__getitems__(range(6))] == [data[i][1] for i in range(6)] == expected
    assert [table[i]["label"] for i in range(6)] == expected
    labels = fr.collate(table.__getitems__(range(6)))["label"]
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected
    assert len(data.filter("label", "==", "class 119")) == 2
    loader = fr.FastRecordLoader(fr.FastRecordDataset(paths), 6, image=fr.transforms.Resize(8))
    ((_, labels),) = loader
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected


@pytest.mark.parametrize("kind", [fr.float16(), fr.float32(), fr.float64()])
def test_labels_of_any_float_type_are_float64(tmp_path: Path, kind: fr.FieldType) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "label": kind})) as writer:
        writer.append({"image": encode(0), "label": 0.5})
    data = fr.FastRecordDataset(tmp_path / "a.frec", decode=None)
    assert data.targets.dtype == data.labels(np.array([0])).dtype == np.float64
    assert data[0][1] == data.targets[0] == 0.5


@pytest.mark.parametrize("kind", [fr.bool_(), fr.uint64(), fr.complex64(), fr.string(), fr.array("int64", (1,))])
def test_what_can_be_no_label_is_none(tmp_path: Path, kind: fr.FieldType) -> None:
    fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "label": kind})).close()
    assert not fr.FastRecordDataset(tmp_path / "a.frec").has_labels
    with pytest.raises(fr.SchemaError, match="labels are integers or floats"):
        fr.FastRecordDataset(tmp_path / "a.frec", label_field="label")
