from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr

ALL_TYPES = {
    "image": fr.image(),
    "blob": fr.bytes_(),
    "key": fr.string(),
    "label": fr.FieldType("int64"),
    "score": fr.FieldType("float64"),
}
ERRORS = [
    fr.errors.CorruptFileError,
    fr.errors.SchemaError,
    fr.errors.LockedError,
    fr.errors.DecodeError,
    fr.errors.UnsupportedVersionError,
]


def test_every_public_name_is_there_and_listed() -> None:
    assert list(fr.__all__) == sorted(fr.__all__)
    for name in fr.__all__:
        assert getattr(fr, name) is not None
        assert name in dir(fr)
    assert len(fr.__all__) <= 35
    classes = {"Schema", "Writer", "Reader", "FastRecordDataset", "FastRecordBatchSampler", "FastRecordError"}
    assert classes | {"image", "bytes_", "string", "collate", "errors"} <= set(fr.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Wirter'"):
        _ = fr.Wirter


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_a_fastrecord_error_and_pickles_from_one_string(error: type[Exception]) -> None:
    assert issubclass(error, fr.FastRecordError)
    assert error.__module__ == "fastrecord.errors"
    again = pickle.loads(pickle.dumps(error("a.frec: broken")))
    assert type(again) is error
    assert str(again) == "a.frec: broken"


def test_a_schema_is_a_mapping_in_the_order_given() -> None:
    schema = fr.Schema(ALL_TYPES)
    assert list(schema) == list(ALL_TYPES)
    assert dict(schema) == ALL_TYPES
    assert len(schema) == 5
    assert schema["label"] == fr.FieldType("int64")
    assert "label" in schema
    assert "nope" not in schema
    assert repr(schema["blob"]) == "bytes_()"


def test_a_schema_does_not_change_with_the_mapping_that_made_it() -> None:
    fields = {"label": fr.FieldType("int64")}
    schema = fr.Schema(fields)
    fields["more"] = fr.string()
    assert list(schema) == ["label"]
    with pytest.raises(TypeError):
        schema["more"] = fr.string()  # type: ignore[index]
    with pytest.raises(AttributeError):
        schema["label"].name = "string"  # type: ignore[misc]


def test_schemas_are_equal_when_names_types_and_order_are() -> None:
    schema = fr.Schema({"a": "int64", "b": fr.string()})
    assert schema == fr.Schema({"a": "int64", "b": fr.string()})
    assert hash(schema) == hash(fr.Schema({"a": "int64", "b": fr.string()}))
    assert schema != fr.Schema({"b": fr.string(), "a": "int64"})
    assert schema != fr.Schema({"a": "float64", "b": fr.string()})
    assert schema != {"a": fr.FieldType("int64"), "b": fr.string()}


def test_a_schema_pickles_and_copies() -> None:
    schema = fr.Schema(ALL_TYPES)
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert copy.deepcopy(schema) == schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({5: fr.FieldType("int64")}, "field names are str, not int: 5"),
        ({"a": "int65"}, r"field 'a': 'int65' is no type: types are image, bytes, string, json, bool, int8, "),
        ({"a": None}, "field 'a': None is no type"),
        ({"a": str}, "field 'a': values of <U0, where numbers are bool, int8"),
        ({"a": fr.image}, "field 'a': "),
    ],
)
def test_what_is_no_field_is_refused_by_name(fields: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fr.Schema(fields)


def test_types_may_be_texts_and_dtypes() -> None:
    named = fr.Schema(a="int64", b="array(float32, (3, None))", c="list(string)", d="image", e="bool")
    b, c = fr.array(torch.float32, (3, None)), fr.list_(fr.string())
    assert named == fr.Schema({"a": np.int64, "b": b, "c": c, "d": fr.image(), "e": bool})
    assert eval(repr(named), {"Schema": fr.Schema, **vars(fr)}) == named


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "0 fields: a schema has 1 to 4096"),
        ({str(number): fr.FieldType("int64") for number in range(4097)}, "4097 fields"),
        ({"": fr.FieldType("int64")}, 'field name ""'),
        ({"image.width": fr.FieldType("int64")}, 'field name "image.width": a name has at least one character, no dot'),
        ({"a\0b": fr.FieldType("int64")}, "field name"),
        ({"\ud800": fr.FieldType("int64")}, "schema"),
        ({"a": fr.FieldType("int128")}, 'field "a": unknown type "int128"'),
    ],
    ids=["empty", "too many", "no name", "dot", "nul", "surrogate", "type"],
)
def test_a_schema_that_no_file_can_have_is_refused_and_leaves_no_file(
    tmp_path: Path, fields: dict[str, fr.FieldType], message: str
) -> None:
    for mode in ("x", "w"):
        with pytest.raises(fr.errors.SchemaError, match=message):
            fr.Writer(tmp_path / "a.frec", fr.Schema(fields), mode)
    assert list(tmp_path.iterdir()) == []


def test_appending_with_the_same_schema_goes_on_and_with_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    schema = fr.Schema({"a": "int64", "b": fr.string()})
    fr.Writer(path, schema).close()
    with fr.Writer(path, schema, "a") as writer:
        writer.append({"a": 1, "b": "x"})
    for other in (
        {"a": fr.FieldType("int64")},
        {"b": fr.string(), "a": fr.FieldType("int64")},
        {"a": fr.FieldType("float64"), "b": fr.string()},
    ):
        with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: the file's schema is \{a: int64, b: string\}, not"):
            fr.Writer(path, fr.Schema(other), "a")
    assert len(fr.Reader(path)) == 1


def test_a_new_file_needs_a_schema(tmp_path: Path) -> None:
    for mode in ("x", "w"):
        with pytest.raises(fr.errors.SchemaError, match=r"a\.frec: a new file needs a schema"):
            fr.Writer(tmp_path / "a.frec", mode=mode)
    assert list(tmp_path.iterdir()) == []
