from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.support.arrays import ACCESS, write

NUMBERS: dict[str, list[Any]] = {
    "bool": [True, False, True],
    "int8": [-128, 127, 0],
    "uint64": [0, 2**64 - 1],
    "int64": [],
    "float16": [0.5, -2.0],
    "bfloat16": [1.5, -3.0, 0.0],
    "float64": [0.1] * 1000,
    "complex128": [1j, 2 - 3j],
}


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("name", NUMBERS)
def test_lists_of_numbers_come_back(tmp_path: Path, name: str, access: str) -> None:
    values = [NUMBERS[name], [], NUMBERS[name][::-1], NUMBERS[name][:1]]
    write(tmp_path / "a.frec", {"x": fr.list_(fr.FieldType(name))}, *({"x": value} for value in values))
    reader = fr.Reader(tmp_path / "a.frec", access)
    assert [record["x"] for record in reader] == values
    assert reader.read_batch([3, 0, 1, 2])["x"] == [values[3], values[0], values[1], values[2]]
    size = fr.FieldType(name).nbytes or 0
    assert reader.lengths("x").tolist() == [8 + size * len(value) for value in values]
    assert all(type(item) is type(NUMBERS[name][0]) for record in reader for item in record["x"])


def test_lists_are_taken_from_lists_tuples_arrays_and_tensors(tmp_path: Path) -> None:
    schema = {"n": fr.list_("int32"), "rows": fr.list_(fr.array("float32", (2,)))}
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    given: list[tuple[Any, Any]] = [
        ([1, 2, 3], list(rows)),
        ((1, np.int64(2), 3), tuple(rows)),
        (np.array([1, 2, 3], ">i4"), rows),
        (np.array([1, 9, 2, 9, 3], np.int32)[::2], np.asfortranarray(rows)),
        (torch.tensor([1, 2, 3], dtype=torch.int32), torch.from_numpy(rows)),
    ]
    for record in write(tmp_path / "a.frec", schema, *({"n": n, "rows": rows} for n, rows in given)):
        assert record["n"] == [1, 2, 3]
        assert np.array_equal(np.stack(record["rows"]), rows)


@pytest.mark.parametrize(
    ("item", "value", "message"),
    [
        (fr.FieldType("int32"), [1, 2**31], "item 1: 2147483648 does not fit int32"),
        (fr.FieldType("int32"), [1, "2"], "item 1: an integer for int32 is wanted, not str"),
        (fr.FieldType("int32"), "12", "a list is wanted, not str"),
        (fr.FieldType("int32"), b"12", "a list is wanted, not bytes"),
        (fr.FieldType("int32"), {1: 2}, "a list is wanted, not dict"),
        (fr.FieldType("int32"), 5, "a list is wanted, not int"),
        (fr.FieldType("int32"), None, "a list is wanted, not NoneType"),
        (fr.FieldType("int32"), np.zeros(3), "int32 values are wanted, not float64"),
        (
            fr.FieldType("int32"),
            np.zeros((3, 2), np.int32),
            "a list of numbers is wanted, not an array of 2 dimensions",
        ),
        (fr.string(), ["a", 5], "item 1: a str is wanted, not int"),
        (fr.string(), "abc", "a list is wanted, not str"),
        (fr.image(), [b"no"], "item 0: not an image"),
        (fr.json(), [float("nan")], "item 0: no JSON"),
        (fr.array("int8", (2,)), [np.zeros(3, np.int8)], r"item 0: an array of shape \(3,\)"),
        (fr.array("int8", (2,)), [np.zeros(2)], "item 0: int8 values are wanted, not float64"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_and_the_file_stays_good(
    tmp_path: Path, item: fr.FieldType, value: Any, message: str
) -> None:
    with fr.Writer(tmp_path / "a.frec", {"x": fr.list_(item)}) as writer:
        with pytest.raises(fr.errors.SchemaError, match=f"record 0, field x: {message}"):
            writer.append({"x": value})
        with pytest.raises(fr.errors.SchemaError, match=f"record 1, field x: {message}"):
            writer.extend({"x": [[], value]})
        writer.append({"x": []})
    assert fr.Reader(tmp_path / "a.frec")[0]["x"] == []


def test_a_list_of_lists_is_refused() -> None:
    with pytest.raises(TypeError, match="item is not a list: lists cannot hold lists"):
        fr.list_(fr.list_("int8"))
    with pytest.raises(TypeError, match="compress the list, not its items"):
        fr.list_(fr.string(compression="zstd"))
    with pytest.raises(ValueError, match="'int65' is no type"):
        fr.list_("int65")
