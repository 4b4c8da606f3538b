"""Fields of every type as labels: the accepted types, and their samples, batches and targets."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fastrecord as fr
from tests.conftest import encode

SMALL = [fr.transforms.Resize((8, 8))]


@pytest.mark.parametrize(
    "kind",
    [
        fr.FieldType("int8"),
        fr.FieldType("uint8"),
        fr.FieldType("int16"),
        fr.FieldType("uint16"),
        fr.FieldType("int32"),
        fr.FieldType("uint32"),
        fr.FieldType("int64"),
    ],
)
def test_labels_of_any_integer_type_are_int64_by_class(tmp_path: Path, kind: fr.FieldType) -> None:
    names = [f"class {number:03d}" for number in range(120)]
    paths = [tmp_path / "a.frec", tmp_path / "b.frec"]
    for path, classes in zip(paths, (names, names[::-1]), strict=True):
        with fr.Writer(path, fr.Schema({"image": fr.image(), "label": kind}), metadata={"classes": classes}) as writer:
            for label in (0, 5, 119):
                writer.append({"image": encode(label), "label": label})
    expected = [0, 5, 119, 119, 114, 0]
    data = fr.FastRecordDataset(paths, decode=None)
    table = data.select_fields(["label"])
    assert data.targets.dtype == np.int64
    assert data.targets.tolist() == expected
    assert [label for _, label in data.__getitems__(range(6))] == [data[i][1] for i in range(6)] == expected
    assert [table[i]["label"] for i in range(6)] == expected
    labels = fr.collate(table.__getitems__(range(6)))["label"]
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected
    assert len(data.filter("label", "==", "class 119")) == 2
    loader = fr.FastRecordLoader(fr.FastRecordDataset(paths), 6, shuffle=False, sample=SMALL)
    ((_, labels),) = loader
    assert labels.dtype == torch.int64
    assert labels.tolist() == expected


def write(path: Path, kind: fr.FieldType, labels: Iterable[Any], **metadata: Any) -> Path:
    with fr.Writer(path, fr.Schema({"image": fr.image(), "label": kind}), metadata=metadata) as writer:
        for label in labels:
            writer.append({"image": encode(0), "label": label})
    return path


def seen(data: fr.FastRecordDataset) -> list[list[Any]]:
    """Return the labels in every form that a data set offers."""
    whole = range(len(data))
    plain = data.select_fields(["image", "label"])
    plain.decode = data.decode = "native"
    samples = DataLoader(data, len(data), collate_fn=fr.collate, num_workers=1)
    batches = [
        next(iter(samples))[1],
        next(iter(DataLoader(plain, len(data), collate_fn=fr.collate)))["label"],
        next(iter(fr.FastRecordLoader(data, len(data), shuffle=False, sample=SMALL)))[1],
        next(iter(fr.FastRecordLoader(data.select_fields(["label"]), len(data), shuffle=False)))["label"],
        torch.from_numpy(data.targets.copy()),
        pickle.loads(pickle.dumps(data)).targets,
    ]
    singles = (
        [torch.as_tensor(data[i][1]).tolist() for i in whole],
        [torch.as_tensor(plain[i]["label"]).tolist() for i in whole],
    )
    return [*(batch.tolist() for batch in batches), *singles]


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        (fr.FieldType("bool"), [True, False, True]),
        (fr.FieldType("uint64"), [2**63 - 1, 0, 5]),
        *((fr.FieldType(name), [0.5, 1.5]) for name in ("float16", "float32", "float64", "bfloat16")),
    ],
)
def test_labels_of_other_number_types_are_numbers(tmp_path: Path, kind: fr.FieldType, labels: list[Any]) -> None:
    data = fr.FastRecordDataset(write(tmp_path / "a.frec", kind, labels))
    assert all(found == labels for found in seen(data))
    assert data.targets.dtype == (np.float64 if "float" in kind.name else np.int64)
    assert type(data[0][1]) is (float if "float" in kind.name else int)
    assert len(data.filter("label", "==", labels[0])) == labels.count(labels[0])


def test_a_label_that_no_int64_holds_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    data = fr.FastRecordDataset(write(tmp_path / "a.frec", fr.FieldType("uint64"), [0, 1, 2**63]))
    assert data[1][1] == 1
    loader = fr.FastRecordLoader(data, 3, shuffle=False, sample=SMALL)
    for use in (lambda: data[2], lambda: data.targets, lambda: data.filter("label", "==", 0)[0], lambda: list(loader)):
        with pytest.raises(
            fr.errors.SchemaError, match=r"a\.frec: record 2, field 'label': the label 9223372036854775808 is"
        ):
            use()


def test_labels_of_strings_are_classes_by_sorted_name_over_all_files(tmp_path: Path) -> None:
    names = [["owl", "cat", "owl", "ant"], ["cat", "bee"]]
    paths = [write(tmp_path / f"{number}.frec", fr.string(), labels) for number, labels in enumerate(names)]
    data = fr.FastRecordDataset(paths)
    assert data.classes == ["ant", "bee", "cat", "owl"]
    assert all(found == [3, 2, 3, 0, 2, 1] for found in seen(data))
    assert data.filter("label", "==", "cat").targets.tolist() == [2, 2]
    assert len(data.filter("label", "not in", ["owl", 0])) == 3
    for part in data.split(2, stratify="label"):
        assert {2, 3} < set(part.targets.tolist())
    assert fr.inspect.class_weights(data).tolist() == [0.75, 0.75, 0.75, 1.5, 0.75, 1.5]
    even = fr.FastRecordBatchSampler(data, 4, balance="label")
    assert sorted(data.targets[even.indices(0)].tolist()) == [0, 1, 2, 3]
    assert (fr.FastRecordDataset(paths[0]) + fr.FastRecordDataset(paths[1])).classes == data.classes
    assert data.select_fields(["label"])[1] == {"label": 2}
    with pytest.raises(ValueError, match="no class is named 'dog'"):
        data.filter("label", "==", "dog")


@pytest.mark.parametrize(("classes", "end"), [("abcde", "'e'"), ("abcdef", r"'e' \.\.\.")])
def test_a_class_that_there_is_not_is_answered_with_five_that_there_are(tmp_path: Path, classes: str, end: str) -> None:
    data = fr.FastRecordDataset(write(tmp_path / "a.frec", fr.FieldType("int64"), [0], classes=[*classes]))
    with pytest.raises(ValueError, match=f"no class is named 'dog'; the data set has 'a', .*{end}$"):
        data.filter("label", "==", "dog")


def test_names_of_classes_are_numbered_by_a_list_that_is_given_or_stored(tmp_path: Path) -> None:
    path = write(tmp_path / "a.frec", fr.string(), ["owl", "cat", "owl"])
    given = fr.FastRecordDataset(path, classes=["owl", "bee", "cat"])
    assert given.classes == ["owl", "bee", "cat"]
    assert all(found == [0, 2, 0] for found in seen(given))
    with pytest.raises(
        fr.errors.SchemaError, match=r"record 1, field 'label': the class 'cat' is not among the 1 .*FR421"
    ):
        fr.FastRecordDataset(path, classes=["owl"])[1]
    stored = fr.FastRecordDataset(
        write(tmp_path / "b.frec", fr.string(), ["owl", "cat"], classes=["owl", "cat", "ant"])
    )
    assert stored.classes == ["owl", "cat", "ant"]
    assert all(found == [0, 1] for found in seen(stored))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "bool"])
@pytest.mark.parametrize("width", [3, 90])
def test_labels_that_are_arrays_come_stacked(tmp_path: Path, dtype: str, width: int) -> None:
    values = np.random.default_rng(0).integers(0, 2, (5, width))
    stored = [torch.from_numpy(row).to(getattr(torch, dtype)) for row in values]
    paths = [
        write(tmp_path / "a.frec", fr.array(dtype, (width,)), stored[:2]),
        write(tmp_path / "b.frec", fr.array(dtype, (width,)), stored[2:]),
    ]
    data = fr.FastRecordDataset(paths)
    assert all(found == values.tolist() for found in seen(data))
    assert data.targets.dtype == np.dtype("float32" if dtype == "bfloat16" else dtype)
    assert data.subset([4, 1]).targets.tolist() == values[[4, 1]].tolist()
    data.target_transform = lambda label: label.sum()
    ((_, sums),) = fr.FastRecordLoader(data, 5, shuffle=False, sample=SMALL)
    assert sums.tolist() == values.sum(axis=1).tolist()
    with pytest.raises(ValueError, match="array of shape"):
        fr.inspect.class_weights(data)
    with pytest.raises(ValueError, match=r"balance is an array .* the class of each"):
        fr.FastRecordBatchSampler(data, 2, balance=data.targets)


def test_arrays_of_classes_in_other_orders_are_refused_as_nothing_renumbers_them(tmp_path: Path) -> None:
    kind, hot = fr.array("uint8", (3,)), [np.array([1, 0, 0], np.uint8)]
    one = write(tmp_path / "a.frec", kind, hot, classes=["ant", "bee", "cat"])
    two = write(tmp_path / "b.frec", kind, hot, classes=["bee", "ant", "cat"])
    with pytest.raises(
        fr.errors.SchemaError, match=r"b\.frec: its classes have other numbers than in .*a\.frec.*\[FR420\]"
    ):
        fr.FastRecordDataset([one, two])
    with pytest.raises(fr.errors.SchemaError, match="FR420"):
        fr.FastRecordDataset(one) + fr.FastRecordDataset(two)
    same = write(tmp_path / "c.frec", kind, hot, classes=["ant", "bee", "cat"])
    assert fr.FastRecordDataset([one, same]).targets.tolist() == [[1, 0, 0]] * 2
    # Boxes are no array of classes.
    box = [
        write(tmp_path / f"box{i}.frec", fr.array("uint8", (4,)), [np.array([1, 2, 3, 4], np.uint8)], classes=c)
        for i, c in enumerate((["ant", "bee", "cat"], ["bee", "ant", "cat"]))
    ]
    assert len(fr.FastRecordDataset(box)) == 2


@pytest.mark.parametrize(
    "kind", [fr.FieldType("complex64"), fr.json(), fr.bytes_(), fr.list_(fr.string()), fr.array("float32", (None,))]
)
def test_a_field_that_can_be_no_label_is_an_error_that_names_it(tmp_path: Path, kind: fr.FieldType) -> None:
    path = tmp_path / "a.frec"
    schema = fr.Schema({"image": fr.image(), "label": kind, "other": "int64"})
    fr.Writer(path, schema).close()
    for options in ({}, {"label_field": "label"}, {"fields": ["label"], "label_field": "label"}):
        with pytest.raises(
            fr.errors.SchemaError, match=r"a\.frec: field 'label' holds .* which cannot be a label"
        ) as raised:
            fr.FastRecordDataset(path, **options)
        assert str(kind) in str(raised.value)
    assert fr.FastRecordDataset(path, label_field="other").targets.shape == (0,)
    assert fr.FastRecordDataset(path, fields=["image", "label"]).fields == ("image", "label")
