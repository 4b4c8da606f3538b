"""Arrays of variable shape, and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import Arrays
from tests.support.arrays import ACCESS, RAGGED, ragged_record, same, write

# --- arrays of a variable shape ---


@pytest.mark.parametrize("access", ACCESS)
def test_variable_arrays_come_as_views_padded_or_packed(tmp_path: Path, access: str) -> None:
    records = [ragged_record(number) for number in range(200)]
    write(tmp_path / "a.frec", RAGGED, *records)
    reader = fr.Reader(tmp_path / "a.frec", access)
    numbers = np.random.default_rng(3).integers(0, 200, 150).tolist()
    batch = reader.read_batch(numbers, verify=True)
    for name, kind in RAGGED.items():
        values = [records[number][name] for number in numbers]
        arrays = batch[name]
        assert isinstance(arrays, Arrays)
        assert len(arrays) == 150
        assert arrays.shapes.dtype == np.int64
        assert arrays.shapes.tolist() == [list(value.shape) for value in values]
        for found in (list(arrays), arrays.tolist(), arrays[:], [arrays[i] for i in range(150)]):
            assert all(same(one, value) for one, value in zip(found, values, strict=True))
        assert not arrays[0].flags.writeable
        assert same(arrays[-1], values[-1])
        for fill in (0, 1):
            padded = arrays.padded(fill)
            wanted = np.full((150, *np.max([v.shape for v in values], axis=0)), fill, values[0].dtype)
            for i, value in enumerate(values):
                wanted[i][tuple(slice(n) for n in value.shape)] = value
            assert same(padded, wanted)
            assert padded.flags.writeable
        if all(dim is not None for dim in (kind.shape or ())[1:]):
            packed, offsets = arrays.packed()
            assert same(packed, np.concatenate(values))
            assert offsets.tolist() == [0, *np.cumsum([len(value) for value in values]).tolist()]
        else:
            with pytest.raises(ValueError, match="differ in more than the first dimension"):
                arrays.packed()
        for number in numbers[:5]:
            assert same(reader[number][name], records[number][name])
        assert reader.lengths(name, numbers).tolist() == [value.nbytes for value in values]
        out = np.zeros(sum(value.nbytes for value in values), np.uint8)
        offsets = reader.read_batch_into(numbers, name, out)
        assert out.tobytes() == b"".join(value.tobytes() for value in values)
    assert reader.verify()["ok"]


def test_an_empty_batch_of_variable_arrays_has_its_declared_shape(tmp_path: Path) -> None:
    arrays = write(tmp_path / "a.frec", RAGGED, ragged_record(1)).read_batch([])["rows"]
    assert arrays.tolist() == []
    assert arrays.shapes.shape == (0, 2)
    assert arrays.padded().shape == (0, 0, 5)
    values, offsets = arrays.packed()
    assert (values.shape, values.dtype, offsets.tolist()) == ((0, 5), np.float32, [0])


def test_an_array_of_a_batch_is_asked_for_by_a_position_in_range(tmp_path: Path) -> None:
    arrays = write(tmp_path / "a.frec", RAGGED, ragged_record(1)).read_batch([0, 0])["rows"]
    for position in (2, -3, 2**70):
        with pytest.raises(IndexError, match=f"array {position} is out of range: the batch has 2"):
            arrays[position]
    with pytest.raises(ValueError, match="a float is wanted, not str"):
        arrays.padded("x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", np.zeros((2, 4), np.float32)),
        ("rows", np.zeros(5, np.float32)),
        ("inner", np.zeros((2, 2), np.uint8)),
        ("masks", np.zeros((2, 3, 2), bool)),
        ("any", np.zeros((2, 2, 2), np.int16)),
    ],
)
def test_a_variable_array_must_fit_the_dimensions_that_are_fixed(tmp_path: Path, name: str, value: Any) -> None:
    with fr.Writer(tmp_path / "a.frec", RAGGED) as writer:
        with pytest.raises(fr.errors.SchemaError, match=f"record 0, field {name}: an array of shape"):
            writer.append(ragged_record(0) | {name: value})
        writer.append(ragged_record(0))
    assert len(fr.Reader(tmp_path / "a.frec")) == 1


# --- JSON ---


@pytest.mark.parametrize("access", ACCESS)
def test_json_comes_back_as_it_went_in(tmp_path: Path, access: str) -> None:
    values: list[Any] = [
        None,
        True,
        3,
        2**80,
        -1.5e300,
        "größe 猫\0",
        [],
        {},
        {"a": [1, {"b": None}]},
        [[[]]],
        "x" * 100_000,
    ]
    write(tmp_path / "a.frec", {"meta": fr.json()}, *({"meta": value} for value in values))
    reader = fr.Reader(tmp_path / "a.frec", access)
    assert [record["meta"] for record in reader] == values
    assert reader.read_batch(range(len(values)), verify=True)["meta"] == values


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "no JSON"),
        ({"a": [float("inf")]}, "no JSON"),
        ({1: 2}, "keys are str, not 1"),
        ({"a": {None: 2}}, "keys are str, not None"),
        (np.int64(3), "int64 is not JSON serializable"),
        ({"a": b"x"}, "bytes is not JSON serializable"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_json_cannot_hold_is_refused(tmp_path: Path, value: Any, message: str) -> None:
    with fr.Writer(tmp_path / "a.frec", {"meta": fr.json()}) as writer:
        with pytest.raises(fr.errors.SchemaError, match=f"record 0, field meta: .*{message}"):
            writer.append({"meta": value})
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(fr.errors.SchemaError, match="Circular"):
            writer.append({"meta": circle})
    assert len(fr.Reader(tmp_path / "a.frec")) == 0
