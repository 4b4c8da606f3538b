"""The limits in Python: one place, read-only, enforced in writing and reading."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import fastrecord as fr
from fastrecord._core import all_limits
from fastrecord.schema.limits import LIMITS
from tests.conftest import encode, write_bytes

ROOT = Path(__file__).parents[2]


def test_limits_are_the_cores_and_can_not_be_changed() -> None:
    assert dataclasses.asdict(LIMITS) == all_limits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        LIMITS.max_fields = 5  # type: ignore[misc]


def test_the_docs_have_each_limit_with_its_number() -> None:
    page = (ROOT / "docs/format.md").read_text(encoding="utf-8")
    rows = {
        name: int(number.replace(",", "")) for name, number in re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.M)
    }
    assert rows == all_limits()


def test_a_schema_beyond_its_limits_is_refused_with_the_number(tmp_path: Path) -> None:
    fields = {f"f{i}": fr.FieldType("bool") for i in range(LIMITS.max_fields + 1)}
    with pytest.raises(fr.errors.SchemaError, match="4097 fields: a schema has 1 to 4096"):
        fr.Writer(tmp_path / "a.frec", fr.Schema(fields))
    with pytest.raises(fr.errors.SchemaError, match="of 1025 bytes: the limit is 1024"):
        fr.Writer(tmp_path / "a.frec", fr.Schema({"x" * 1025: "bool"}))
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"x" * 1024: "bool"})) as writer:
        writer.append({"x" * 1024: True})
    with fr.Reader(tmp_path / "a.frec") as reader:
        assert reader.column("x" * 1024).tolist() == [True]


def test_an_image_beyond_the_limit_of_pixels_says_what_sets_another(tmp_path: Path) -> None:
    data = encode(0)
    pixels = fr.decode_image(data).size // 3
    assert fr.decode_image(data, max_pixels=pixels).size == 3 * pixels
    with pytest.raises(
        fr.errors.DecodeError, match=r"pixels are more than the limit of .*: `max_pixels` of the loader or of"
    ):
        fr.decode_image(data, max_pixels=pixels - 1)
    # 13,378 x 13,377 pixels are 178,957,506, by the PNM header; nothing is allocated for them.
    with pytest.raises(fr.errors.DecodeError, match="13378 x 13377 pixels are more than the limit of 178956970"):
        fr.decode_image(b"P6\n13378 13377\n255\n")
    path = write_bytes(tmp_path / "a.frec", [data])
    with fr.Reader(path) as reader:
        assert bytes(reader[0]["data"]) == data
