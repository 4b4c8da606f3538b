"""Many records per call, and schemas inferred from a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.conftest import encode
from tests.support.arrays import RAGGED, ragged_record

# --- many records per call ---


def test_extend_writes_what_append_would(tmp_path: Path) -> None:
    schema = {
        "image": fr.array("uint8", (16, 16, 3)),
        "vector": fr.array("float32", (4,)),
        "label": fr.FieldType("int64"),
        "score": fr.FieldType("float32"),
        "flag": fr.FieldType("bool"),
        "bf": fr.array("bfloat16", (40,)),
        "key": fr.string(),
        "blob": fr.bytes_(),
        "meta": fr.json(),
        **RAGGED,
    }
    rng = np.random.default_rng(0)
    ragged = [ragged_record(number) for number in range(100)]
    columns: dict[str, Any] = {
        "image": rng.integers(0, 255, (100, 16, 16, 3)).astype(np.uint8),
        "vector": rng.random((100, 4), np.float32),
        "label": rng.integers(-99, 99, 100).astype(np.int16),
        "score": rng.random(100).astype(">f4"),
        "flag": rng.integers(0, 2, 100).astype(bool),
        "bf": torch.randn(100, 40).to(torch.bfloat16),
        "key": [f"k{i}" for i in range(100)],
        "blob": [bytes([i]) * i for i in range(100)],
        "meta": [{"i": i} for i in range(100)],
        **{name: [record[name] for record in ragged] for name in RAGGED},
    }
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for i in range(100):
            writer.append({name: values[i] for name, values in columns.items()})
    with fr.Writer(tmp_path / "b.frec", schema, commit_bytes=1 << 16) as writer:
        assert writer.extend({name: values[:40] for name, values in columns.items()}) == 0
        assert writer.extend({name: values[:0] for name, values in columns.items()}) == 40
        assert writer.extend({name: values[40:] for name, values in columns.items()}) == 40
    a, b = fr.Reader(tmp_path / "a.frec"), fr.Reader(tmp_path / "b.frec")
    assert b.commit > 1
    for one, other in zip(a, b, strict=True):
        for name in schema:
            assert np.array_equal(one[name], other[name]), name
    assert b.verify()["ok"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((4, 3))}, "record 5, field x: float32 values are wanted, not float64"),
        ({"x": np.zeros((4, 2), np.float32)}, r"record 5, field x: an array of shape \(4, 2\), where one of N array"),
        ({"x": np.zeros((3, 3), np.float32)}, "record 5, field x: 3 values, where field n has 4"),
        (
            {"x": [*np.zeros((3, 3), np.float32), np.zeros(2, np.float32)]},
            r"record 8, field x: an array of shape \(2,\)",
        ),
        ({"n": np.zeros(4)}, "record 5, field n: int64 values are wanted, not float64"),
        ({"n": np.zeros(4, np.uint64)}, "record 5, field n: int64 values are wanted, not uint64"),
        ({"n": [1, 2, "3", 4]}, "record 7, field n: an integer"),
        ({"n": np.zeros((4, 1), int)}, r"record 5, field n: an array of shape \(4, 1\), where one of N numbers"),
        ({"n": 5}, "record 5, field n: a sequence of values, each int64, is wanted, not int"),
        ({"image": b"four"}, "record 5, field image: a sequence of values, each image, is wanted, not bytes"),
        ({"image": [encode(1), b"no"] * 2}, "record 6, field image: "),
        ({"n": {1, 2, 3, 4}}, "record 5, field n: a sequence of values, each int64, is wanted, not set"),
        ({"n": frozenset(range(4))}, "a sequence of values, each int64, is wanted, not frozenset"),
        ({"n": dict.fromkeys(range(4))}, "a sequence of values, each int64, is wanted, not dict"),
        ({"more": [1] * 4}, "field more: no such field"),
        ({"n": None}, "record 5, field n: there are no values for it"),
    ],
)
def test_extend_appends_nothing_if_anything_does_not_fit(tmp_path: Path, changes: Any, message: str) -> None:
    schema = {"n": fr.FieldType("int64"), "x": fr.array("float32", (3,)), "image": fr.image()}
    good: dict[str, Any] = {"n": np.arange(4), "x": np.ones((4, 3), np.float32), "image": [encode(1)] * 4}
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        for n in range(5):
            writer.append({"n": n, "x": np.ones(3, np.float32), "image": encode(1)})
        bad = {name: values for name, values in (good | changes).items() if values is not None}
        with pytest.raises(fr.errors.SchemaError, match=message):
            writer.extend(bad)
        assert len(writer) == 5
        writer.extend(good)
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.column("n").tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert (reader.column("image.width") > 0).all()
    assert reader.verify()["ok"]


def test_numbers_of_a_type_that_holds_all_of_theirs_are_widened_in_columns_and_only_those(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", {"n": "float64", "b": "bfloat16"}) as writer:
        writer.extend({"n": np.arange(3, dtype=np.int32), "b": torch.tensor([1.0, 2.0, 3.0]).bfloat16()})
        with pytest.raises(fr.errors.SchemaError, match="float64 values are wanted, not complex64"):
            writer.extend({"n": np.zeros(3, np.complex64), "b": [1, 2, 3]})
        with pytest.raises(fr.errors.SchemaError, match="bfloat16 values are wanted, not float32"):
            writer.extend({"n": np.zeros(3), "b": np.zeros(3, np.float32)})
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.column("n").tolist() == [0.0, 1.0, 2.0]
    assert [record["b"] for record in reader] == [1.0, 2.0, 3.0]


# --- a schema from a record ---


def test_a_schema_is_inferred_from_a_record(tmp_path: Path) -> None:
    sample = {
        "count": 3,
        "share": 0.5,
        "flag": True,
        "z": 1j,
        "name": "x",
        "blob": b"abc",
        "image": encode(1),
        "array": np.zeros((2, 3), ">i2"),
        "tensor": torch.zeros(4, dtype=torch.bfloat16),
        "small": np.int8(1),
        "half": np.float16(1),
        "word": np.str_("x"),
        "raw": np.bytes_(b"abc"),
        "meta": {"a": [1, None]},
        "numbers": [1, 2],
        "names": ["a", "b"],
        "boxes": [np.zeros((1, 4), np.float32), np.zeros((3, 4), np.float32)],
        "mixed": [1, "a"],
    }
    with fr.Writer.from_sample(tmp_path / "a.frec", sample, metadata={"a": 1}, commit_bytes=1 << 20) as writer:
        assert dict(writer.schema) == {
            "count": fr.FieldType("int64"),
            "share": fr.FieldType("float64"),
            "flag": fr.FieldType("bool"),
            "z": fr.FieldType("complex128"),
            "name": fr.string(),
            "blob": fr.bytes_(),
            "image": fr.image(),
            "array": fr.array("int16", (2, 3)),
            "tensor": fr.array("bfloat16", (4,)),
            "small": fr.FieldType("int8"),
            "half": fr.FieldType("float16"),
            "word": fr.string(),
            "raw": fr.bytes_(),
            "meta": fr.json(),
            "numbers": fr.list_("int64"),
            "names": fr.list_(fr.string()),
            "boxes": fr.list_(fr.array("float32", (None, 4))),
            "mixed": fr.json(),
        }
        assert len(writer) == 0
        assert writer.metadata == {"a": 1}
        writer.append(sample)
    with pytest.raises(FileExistsError):
        fr.Writer.from_sample(tmp_path / "a.frec", sample)
    with fr.Writer.from_sample(tmp_path / "a.frec", {"n": 1}, "w") as writer:
        writer.append({"n": 2})
    assert list(fr.Reader(tmp_path / "a.frec")) == [{"n": 2}]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no type is known for a value of NoneType"),
        ([], "an empty list does not show the type of its items"),
        ({"a": float("nan")}, "nan|JSON"),
        (object(), "no type is known for a value of object"),
        (np.zeros(3, object), "where numbers are"),
        (np.zeros(3, "i4,i4"), "where numbers are"),
        ({1, 2}, "no type is known for a value of set"),
    ],
)
def test_a_value_of_which_no_type_is_known_names_its_field(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(fr.errors.SchemaError, match=f"field 'x': .*({message}).*: give a schema"):
        fr.Writer.from_sample(tmp_path / "a.frec", {"x": value})
    assert list(tmp_path.iterdir()) == []


def test_a_sample_is_a_mapping(tmp_path: Path) -> None:
    values: Any = [1, 2]
    with pytest.raises(TypeError, match="a record is a mapping of field names to values, not list"):
        fr.Writer.from_sample(tmp_path / "a.frec", values)
    assert not (tmp_path / "a.frec").exists()
