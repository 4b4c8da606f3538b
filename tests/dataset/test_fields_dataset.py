"""FastRecordDataset in fields mode: samples are dicts of fields, batches dicts of tensors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

import fastrecord as fr

COUNT = 11
SCHEMA = fr.Schema(
    {
        "label": "int64",
        "level": "int8",
        "huge": "uint64",
        "good": "bool",
        "half": "float16",
        "brain": "bfloat16",
        "single": "float32",
        "double": "float64",
        "wave": "complex64",
        "patch": fr.array("uint8", (9, 8, 3)),
        "vector": fr.array("float32", (4,)),
        "weights": fr.array("bfloat16", (5, 2)),
        "none": fr.array("int16", (0, 3)),
        "key": fr.string(),
        "blob": fr.bytes_(),
    }
)
TENSORS = ("patch", "vector", "weights", "none")
DTYPES = {
    "label": torch.int64,
    "level": torch.int8,
    "huge": torch.uint64,
    "good": torch.bool,
    "half": torch.float16,
    "brain": torch.bfloat16,
    "single": torch.float32,
    "double": torch.float64,
    "wave": torch.complex64,
    "patch": torch.uint8,
    "vector": torch.float32,
    "weights": torch.bfloat16,
    "none": torch.int16,
}


def record(number: int) -> dict[str, Any]:
    """Return a record's values, which are also the sample's."""
    rng = np.random.default_rng(number)
    return {
        "label": number % 3,
        "level": number - 5,
        "huge": 2**63 + number,
        "good": number % 2 == 0,
        "half": number / 2,
        "brain": number / 4,
        "single": number / 8,
        "double": number / 10,
        "wave": complex(number, -1),
        "patch": torch.from_numpy(rng.integers(0, 256, (9, 8, 3), np.uint8)),
        "vector": torch.arange(4, dtype=torch.float32) * number,
        "weights": torch.arange(10, dtype=torch.bfloat16).reshape(5, 2) - number,
        "none": torch.empty((0, 3), dtype=torch.int16),
        "key": f"{number:03d}",
        "blob": bytes(number),
    }


def write(path: Path, numbers: range, classes: list[str] | None = None) -> Path:
    with fr.Writer(path, SCHEMA, metadata={"classes": classes} if classes else {}) as writer:
        for number in numbers:
            writer.append(record(number))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One file of all records, and two files that share them. Read only."""
    folder = tmp_path_factory.mktemp("fields")
    return [
        write(folder / "whole.frec", range(COUNT)),
        write(folder / "a.frec", range(4)),
        write(folder / "b.frec", range(4, COUNT)),
    ]


@pytest.fixture(params=["one file", "two files"])
def data(request: pytest.FixtureRequest, files: list[Path]) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(files[0] if request.param == "one file" else files[1:], fields=list(SCHEMA))


def assert_value(value: Any, expected: Any, name: str) -> None:
    assert type(value) is type(expected), name
    if isinstance(expected, torch.Tensor):
        assert value.dtype == expected.dtype, name
        assert torch.equal(value, expected), name
    elif isinstance(expected, list):
        assert len(value) == len(expected), name
        for ours, theirs in zip(value, expected, strict=True):
            assert_value(ours, theirs, name)
    else:
        assert value == expected, name


def assert_sample(sample: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(sample) == list(expected)
    for name, value in expected.items():
        assert_value(sample[name], value, name)


def test_a_sample_has_numbers_tensors_str_and_bytes(data: fr.FastRecordDataset) -> None:
    assert data.fields == tuple(SCHEMA)
    rows = [7, 0, 7, -1]
    batch = data.__getitems__(rows)
    for number, (row, sample) in enumerate(zip(rows, batch, strict=True)):
        for found in (data[row], batch[number], batch[number : number + 1][0], sample):
            assert_sample(found, record(row % COUNT))
    with pytest.raises(IndexError):
        batch[4]


@pytest.mark.parametrize("rows", [[3], [9, 0, 9, 4, 5, -1], range(COUNT), []])
def test_a_batch_has_stacked_tensors_of_the_fields_own_types_and_lists(data: fr.FastRecordDataset, rows: Any) -> None:
    batch = fr.collate(data.__getitems__(rows))
    expected = [record(row % COUNT) for row in rows]
    assert list(batch) == list(SCHEMA)
    for name, dtype in DTYPES.items():
        values = [torch.as_tensor(one[name], dtype=dtype) for one in expected]
        shape = (SCHEMA[name].shape or ()) if not values else values[0].shape
        assert batch[name].dtype == dtype
        assert batch[name].shape == (len(expected), *shape)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch[name], values, strict=True))
    assert batch["key"] == [one["key"] for one in expected]
    assert batch["blob"] == [one["blob"] for one in expected]


def test_tensors_own_their_memory_and_may_be_written(data: fr.FastRecordDataset) -> None:
    for _ in range(2):
        sample, batch = data[5], fr.collate(data.__getitems__([5, 6]))
        assert_sample(sample, record(5))
        for name in TENSORS:
            sample[name] += 1
            batch[name] += 1
        batch["label"] += 1
    assert_sample(data[5], record(5))


def test_select_makes_dicts_of_some_fields_in_the_order_wanted(data: fr.FastRecordDataset) -> None:
    view = data.select_fields(["key", "patch"]).subset([4, 2])
    assert view.fields == ("key", "patch")
    assert_sample(view[1], {name: record(2)[name] for name in ("key", "patch")})
    assert data.fields == tuple(SCHEMA)
    again = pickle.loads(pickle.dumps(view))
    assert_sample(again[0], view[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, fr.collate], ids=["torch's collate", "fastrecord's"])
def test_a_dataloader_makes_dicts_of_stacked_tensors(data: fr.FastRecordDataset, collate: Any, workers: int) -> None:
    view = data.select_fields(["label", "patch", "weights", "key"])
    batches = list(DataLoader(view, batch_size=4, collate_fn=collate, num_workers=workers))
    for name in ("label", "patch", "weights"):
        whole = torch.cat([batch[name] for batch in batches])
        assert whole.dtype == DTYPES[name]
        assert torch.equal(whole, torch.stack([torch.as_tensor(record(n)[name]) for n in range(COUNT)]))
    assert [key for batch in batches for key in batch["key"]] == [f"{n:03d}" for n in range(COUNT)]


def test_a_transform_gets_each_sample(data: fr.FastRecordDataset) -> None:
    def change(sample: dict[str, Any]) -> dict[str, Any]:
        return {"patch": sample["patch"].float() / 255, "label": sample["label"] + 100}

    data.transform = change
    batch = fr.collate(data.__getitems__([2, 1]))
    assert list(batch) == ["patch", "label"]
    assert batch["label"].tolist() == [102, 101]
    assert torch.equal(batch["patch"][0], record(2)["patch"] / 255)
    assert torch.equal(data[1]["patch"], batch["patch"][1])


# --- selecting the mode, and invalid combinations ---


def test_files_whose_fields_hold_no_images_are_in_fields_mode_with_all_fields(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"x": "float32", "key": fr.string()})) as writer:
        writer.append({"x": 0.5, "key": "a"})
    data = fr.FastRecordDataset(tmp_path / "a.frec")
    assert data.fields == ("x", "key")
    assert data[0] == {"x": 0.5, "key": "a"}
    assert "Fields: x, key" in repr(data)
    with pytest.raises(AttributeError, match="dicts of the fields x, key: none of them is the image"):
        _ = data.image_field
    with pytest.raises(AttributeError, match="no field 'label'"):
        _ = data.targets


def test_files_with_images_are_not(packed: Path, files: list[Path]) -> None:
    assert fr.FastRecordDataset(packed).fields is None
    assert fr.FastRecordDataset(files[0], decode=None)[3] == (bytes(3), 0)  # its only bytes field


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fields": "label"}, TypeError, r"fields is a sequence of names: write \('label',\)"),
        ({"fields": [1]}, TypeError, "fields is a sequence of names: not"),
        ({"fields": []}, ValueError, "fields is empty: name at least one"),
        ({"fields": ["key", "key"]}, ValueError, "fields names 'key' more than once"),
        ({"fields": ["nothing"]}, fr.errors.SchemaError, "no field 'nothing': it has label, level"),
        (
            {"fields": ["key"], "image_field": "blob"},
            ValueError,
            "image_field and target_transform do not go with fields",
        ),
        ({"fields": ["key"], "target_transform": str}, ValueError, "change labels in transform"),
    ],
)
def test_what_does_not_go_with_fields_is_refused(
    files: list[Path], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fr.FastRecordDataset(files[0], **options)


def test_select_refuses_fields_that_there_are_not_and_transforms_of_images(packed: Path) -> None:
    data = fr.FastRecordDataset(packed)
    with pytest.raises(fr.errors.SchemaError, match="no field 'nothing'"):
        data.select_fields(["nothing"])
    data.transform = transforms.ToTensor()
    with pytest.raises(ValueError, match="takes an image, but a sample of selected fields is a dict: set transform"):
        data.select_fields(["label"])
    data.transform = None
    assert data.select_fields(["label"])[3] == {"label": 0}


# --- values of variable shape ---

RAGGED = fr.Schema(
    {
        "tokens": fr.array("int32", (None,)),
        "boxes": fr.array("bfloat16", (None, 4)),
        "meta": fr.json(),
        "ids": fr.list_("int16"),
        "names": fr.list_(fr.string()),
        "parts": fr.list_(fr.bytes_()),
        "crops": fr.list_(fr.array("bfloat16", (None, 2))),
    }
)


def ragged(number: int) -> dict[str, Any]:
    return {
        "tokens": torch.arange(number, dtype=torch.int32),
        "boxes": torch.full((number % 3, 4), number, dtype=torch.bfloat16),
        "meta": {"number": number, "parts": list(range(number % 4))} if number % 2 else None,
        "ids": list(range(number)),
        "names": [f"{i}" for i in range(number % 4)],
        "parts": [bytes(i) for i in range(number % 3)],
        "crops": [torch.full((i, 2), number, dtype=torch.bfloat16) for i in range(number % 3)],
    }


@pytest.mark.parametrize("files", [1, 2])
def test_values_of_no_fixed_shape_come_in_lists_their_arrays_as_tensors(tmp_path: Path, files: int) -> None:
    paths = [tmp_path / f"{number}.frec" for number in range(files)]
    for number, path in enumerate(paths):
        with fr.Writer(path, RAGGED) as writer:
            for record in range(number, 8, files):
                writer.append(ragged(record))
    data = fr.FastRecordDataset(paths)
    assert data.fields == tuple(RAGGED)
    stored = [record for number in range(files) for record in range(number, 8, files)]
    for row, number in enumerate(stored):
        assert_sample(data[row], ragged(number))
    rows = [5, 0, 5, 7, 2]
    batch = fr.collate(data.__getitems__(rows))
    assert {name: (type(values), len(values)) for name, values in batch.items()} == dict.fromkeys(RAGGED, (list, 5))
    for place, row in enumerate(rows):
        assert_sample({name: values[place] for name, values in batch.items()}, ragged(stored[row]))
    batch["tokens"][1 if files == 2 else 0] += 1
    assert_sample(data[5], ragged(stored[5]))
    loader = DataLoader(data, batch_size=3, num_workers=2, collate_fn=fr.collate)
    sizes = [len(tokens) for batch in loader for tokens in batch["tokens"]]
    assert sizes == stored


# --- in the loader ---


def test_the_loader_and_the_data_set_make_the_same_batches_of_a_view(data: fr.FastRecordDataset) -> None:
    names = ["label", "level", "good", "brain", "patch", "vector", "weights", "key", "blob"]
    view = data.filter("level", ">", -4).select_fields(names).subset([3, 0, 5, 8, 1])
    sampler = fr.FastRecordBatchSampler(view, 3, balance="label", num_samples=8, seed=1)
    expected = [fr.collate(view.__getitems__(sampler.indices(batch, epoch=0))) for batch in range(3)]
    batches = list(fr.FastRecordLoader(view, batch_sampler=sampler))
    assert len(batches) == 3
    for ours, theirs in zip(batches, expected, strict=True):
        assert list(ours) == names
        for name, values in ours.items():
            assert_value(values, theirs[name], name)
