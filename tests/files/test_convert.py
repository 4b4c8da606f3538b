"""Images packed and unpacked by merge and compact: their bytes stay the same there and back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord._core import codecs, side_kinds
from tests.support.commands import failed, good
from tests.support.pictures import jpeg, picture, save
from tests.support.rewriting import metadata

# Two JPEGs with a crop index, a PNG, which stays as it is, and a JPEG twice.
IMAGES = [jpeg(200, 260), jpeg(90, 80), save(picture(60, 50), "PNG"), jpeg(300, 200), jpeg(90, 80)]
PACKED = [3, 3, 0, 3, 3]
SCHEMA = fr.Schema(
    {"image": fr.image(), "label": "int64", "key": fr.string(), "data": fr.bytes_(), "tags": fr.list_("int64")}
)


def write(path: Path, *, first: int = 0, recode: fr.Recode | None = None, **options: Any) -> Path:
    count = len(IMAGES)
    values: dict[str, list[Any]] = {
        "label": [i % 2 for i in range(count)],
        "key": [f"{first + i}" for i in range(count)],
        "data": [b"x" * i for i in range(count)],
        "tags": [list(range(i)) for i in range(count)],
    }
    with fr.Writer(path, SCHEMA, metadata={"classes": ["a", "b"], "x": [1]}, **options) as writer:
        writer.append_images("image", IMAGES, values, recode=recode)
    return path


def records(path: Path) -> list[dict[str, Any]]:
    with fr.Reader(path, verify=True) as reader:
        report = reader.verify(deep=True)
        assert report["ok"], report["errors"]
        return [
            {name: np.asarray(value).tolist() if name == "tags" else as_bytes(value) for name, value in record.items()}
            for record in reader
        ]


def as_bytes(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def forms(path: Path, field: str = "image") -> list[int]:
    with fr.Reader(path) as reader:
        numbers: list[int] = codecs(reader, field, range(len(reader))).tolist()
        return numbers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.frec")


def test_every_value_stays_the_same_there_and_back(path: Path, tmp_path: Path) -> None:
    before = records(path)
    assert [record["image"] for record in before] == IMAGES
    packed, back = tmp_path / "packed.frec", tmp_path / "back.frec"
    there = fr.files.compact(path, packed, packed=True)
    assert (there.packed, there.unpacked, there.unchanged) == (4, 0, 1)
    assert (records(packed), forms(packed)) == (before, PACKED)
    assert metadata(packed)["classes"] == ["a", "b"]
    assert fr.inspect.diff(path, packed).changed == 0
    again = fr.files.compact(packed, back, packed=False, verify=True)
    assert (again.packed, again.unpacked, again.unchanged) == (0, 4, 0)
    assert (records(back), forms(back)) == (before, [0] * 5)
    # The bytes of the file are those of a plain copy.
    fr.files.compact(path, tmp_path / "plain.frec")
    assert abs(back.stat().st_size - (tmp_path / "plain.frec").stat().st_size) <= 4096


def test_a_file_is_converted_in_place(path: Path) -> None:
    before = records(path)
    assert "images: 4 packed, 1 as they were" in good("compact", path, "--packed")
    assert (records(path), forms(path)) == (before, PACKED)
    done = json.loads(good("compact", path, "--packed", "--json"))
    assert (done["packed"], done["unchanged"]) == (0, 1)
    assert "images:" not in good("compact", path)
    assert forms(path) == PACKED
    assert "images: 4 unpacked" in good("compact", path, "--no-packed")
    assert (records(path), forms(path)) == (before, [0] * 5)
    assert os.listdir(path.parent) == [path.name]


def test_files_of_both_forms_merge_into_either(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.frec", first=5, recode=fr.Recode(packed=True))
    expected = records(path) + records(other)
    for packed, found in ((None, [0] * 5 + PACKED), (True, PACKED * 2), (False, [0] * 10)):
        out = tmp_path / f"{packed}.frec"
        fr.files.merge([path, other], out, packed=packed)
        assert (records(out), forms(out)) == (expected, found), packed


def test_other_commands_keep_the_form(path: Path, tmp_path: Path) -> None:
    fr.files.compact(path, packed=True)
    before = records(path)
    fr.files.split(path, tmp_path / "part.frec", shards=2)
    parts = sorted(tmp_path.glob("part-*.frec"))
    assert [record for part in parts for record in records(part)] == before
    assert [form for part in parts for form in forms(part)] == PACKED
    fr.files.select(path, tmp_path / "some.frec", keys=["0", "2"])
    assert (records(tmp_path / "some.frec"), forms(tmp_path / "some.frec")) == ([before[0], before[2]], [3, 0])
    fr.files.shuffle(path, tmp_path / "mixed.frec", seed=1)
    assert sorted(forms(tmp_path / "mixed.frec")) == sorted(PACKED)
    assert sorted(record["key"] for record in records(tmp_path / "mixed.frec")) == list("01234")


@pytest.mark.parametrize("later", [False, True])
def test_packed_images_lose_their_crop_index(tmp_path: Path, later: bool) -> None:
    path = write(tmp_path / "x.frec", recode=None if later else fr.Recode(crop_index=True))
    if later:
        assert fr.files.index(path).indexed
    before = records(path)
    with fr.Reader(path) as reader:
        kinds = side_kinds(reader, "image", range(5)).tolist()
    assert 2 in kinds
    fr.files.compact(path, packed=True)
    with fr.Reader(path) as reader:
        assert side_kinds(reader, "image", range(5)).tolist() == [0] * 5
    assert records(path) == before
    for _ in range(2):
        summary = fr.files.index(path)
        assert (summary.indexed, summary.present, summary.without, summary.packed) == (0, 0, 1, 4)
    assert "0 indexed, 1 without an index, 4 packed, which need none" in good("index", path)
    fr.files.compact(path, packed=False)
    assert records(path) == before
    assert fr.files.index(path).indexed == kinds.count(2)
    with fr.Reader(path) as reader:
        assert side_kinds(reader, "image", range(5)).tolist() == kinds
    assert records(path) == before


def test_all_fields_of_images_change(path: Path) -> None:
    fr.files.add_field(path, "mask", fr.image(), IMAGES[::-1])
    before = records(path)
    fr.files.compact(path, packed=True)
    assert (forms(path), forms(path, "mask")) == (PACKED, PACKED[::-1])
    assert records(path) == before


def test_a_damaged_image_stays_as_it_is_unless_it_is_verified(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    at = data.index(IMAGES[3]) + 2_000
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    out = tmp_path / "out.frec"
    message = failed("compact", path, out, "--packed", "--verify", status=1)
    assert "record 3, field image" in message
    assert not out.exists()
    summary = fr.files.compact(path, out, packed=True)
    assert (summary.packed, summary.unchanged) == (3, 2)
    assert forms(out) == [3, 3, 0, 0, 3]
    with fr.Reader(out) as reader:
        (error,) = reader.verify()["errors"]
        assert "record 3, field image" in error
        assert bytes(reader.get(4, "image")) == IMAGES[4]


def test_the_metadata_says_how_images_are_stored_now(tmp_path: Path, recode_source: Path) -> None:
    out = tmp_path / "out.frec"
    good("pack", recode_source, out, "--crop-index")
    assert "recoded   --crop-index" in good("info", out)
    good("compact", out, "--packed")
    assert metadata(out)["packs"][0]["recode"] == {"packed": True}
    good("compact", out, "--no-packed")
    assert "recode" not in metadata(out)["packs"][0]
    assert "recoded" not in good("info", out)


def test_an_end_before_the_end_leaves_the_file(path: Path) -> None:
    before = path.read_bytes()

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.files.compact(path, packed=True, progress=stop)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
