from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.interchange import registry
from tests.support.formats import exchanging
from tests.support.formats.exchanging import open_source, plain, records, renames, types

BETON = registry.load("beton")
# Written by FFCV 1.0.2 with RGBImageField(write_mode="jpg"), "raw", and "smart" with both kinds;
# `expected` says what. Most of the pages is zeros.
DATA = Path(__file__).parent / "data" / "beton"
COUNT = 13
HEAD, FIELD = 24, 1041


def expected(i: int) -> dict[str, Any]:
    return {
        "label": i - 3,
        "score": i / 4,
        "raw": bytes([i]) * (i % 4 + 1),
        "grid": np.full((2, 3), i, np.float32),
        "meta": {"a": [i, None], "t": "ü"},
        "tensor": np.full(2, i, np.int16),
    }


def colours(i: int) -> Any:
    return np.full((6 + i % 3, 8 + i, 3), (10 * i, 3 * i, 99), np.uint8)


def unpacked(folder: Path, mode: str) -> Path:
    path = folder / f"{mode}.beton"
    path.write_bytes(gzip.decompress((DATA / f"{mode}.beton.gz").read_bytes()))
    return path


def read(path: Path, *arguments: Any) -> Any:
    with open_source(BETON, path) as source:
        return plain(records(source, *arguments))


def bad_of(path: Path) -> dict[int, str]:
    with open_source(BETON, path) as source:
        return exchanging.bad_records(source)


def pixels(data: Any) -> tuple[str, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return str(image.format), np.asarray(image).astype(int)


@pytest.mark.parametrize("mode", ["jpg", "raw", "smart"])
def test_files_of_ffcv_come_in_from_any_record_on(tmp_path: Path, mode: str) -> None:
    path = unpacked(tmp_path, mode)
    chosen, why = registry.recognise(str(path))
    assert (chosen.name, why) == ("beton", "it begins with the head of FFCV's files")
    with open_source(chosen, path) as source:
        assert types(source) == {
            "img": "array(uint8, (None, None, 3))" if mode == "raw" else "image",
            "label": "int64",
            "score": "float64",
            "raw": "bytes",
            "grid": "array(float32, (2, 3))",
            "meta": "json",
            "tensor": "array(int16, (2,))",
        }
        assert renames(source) == ({} if mode == "raw" else {"img": "image"})
        assert source.count() == COUNT
        assert source.place(3) == f"{path}: record 3"
        for start in (0, 1, 7, 12, 13):
            found = records(source, start)
            assert len(found) == COUNT - start
            kinds = set()
            for i, record in enumerate(found, start):
                image = record.pop("img")
                assert plain(record) == plain(expected(i))
                if mode == "raw":
                    assert np.array_equal(image, colours(i))
                    continue
                kind, decoded = pixels(image)
                kinds.add(kind)
                assert np.abs(decoded - colours(i)).max() <= (0 if kind == "PNG" else 8)
            assert start > 0 or kinds == {"jpg": {"JPEG"}, "raw": set(), "smart": {"JPEG", "PNG"}}[mode]
        exchanging.import_back(source, tmp_path / "a.frec")


def test_records_that_lie_far_apart_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpacked(tmp_path, "jpg")
    together = read(path)
    monkeypatch.setattr("fastrecord.formats.beton._GAP", 0)
    monkeypatch.setattr("fastrecord.interchange.arrays.ROWS", 4)
    monkeypatch.setattr("fastrecord.interchange.arrays.ROWS_BYTES", 900)
    assert read(path) == together
    assert read(path, 5, ["meta", "label"]) == [
        {"meta": record["meta"], "label": record["label"]} for record in together[5:]
    ]


def test_files_that_are_cut_short_end_with_an_error(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "jpg")
    whole = path.read_bytes()
    for size in (0, 10, 24, 500, 3000, len(whole) // 2, len(whole) - 2000, len(whole) - 13 * 24 * 5):
        path.write_bytes(whole[:size])
        with pytest.raises(fr.FastRecordError, match=rf"{path}: .*FR752"):
            read(path)
    path.write_bytes(whole[:16] + bytes(8) + whole[24:])
    with pytest.raises(fr.FastRecordError, match=r"its writer did not finish it"):
        open_source(BETON, path)
    path.write_bytes(b"\1" + whole[1:])
    with pytest.raises(fr.FastRecordError, match=r"version 1 of \.beton"):
        open_source(BETON, path)


def test_values_outside_of_the_file_are_bad_records(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "jpg")
    whole = bytearray(path.read_bytes())
    table = HEAD + 7 * FIELD
    row = np.dtype(
        [("img", [("mode", "u1"), ("w", "<u2"), ("h", "<u2"), ("place", "<u8")]), ("label", "<i8"), ("score", "<f8"),
         ("raw", [("place", "<u8"), ("size", "<u8")]), ("grid", "<u8"),
         ("meta", [("place", "<u8"), ("size", "<u8")]), ("tensor", "<u8")],
        align=True,
    )  # fmt: skip
    rows = np.frombuffer(whole, row, COUNT, table)
    assert rows["label"].tolist() == [i - 3 for i in range(COUNT)]
    rows["img"]["place"][1] += 1
    rows["raw"]["size"][3] = 2**63
    rows["grid"][5] = 2**64 - 8
    rows["meta"]["size"][7] = 3
    path.write_bytes(whole)
    bad = bad_of(path)
    assert {number: why.split(":")[0] for number, why in bad.items()} == {
        1: "field 'img'",
        3: "field 'raw'",
        5: "field 'grid'",
        7: "field 'meta'",
    }
    assert "not in the file" in bad[1]
    with open_source(BETON, path) as source:
        found = next(iter(source.read(0, ["label", "raw"])))
    assert list(found.bad) == [3]
    assert list(found.columns["label"]) == [i - 3 for i in range(COUNT) if i != 3]


def test_damaged_files_never_crash(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "smart")
    size = path.stat().st_size
    data = [*range(2 << 20, (2 << 20) + 3000), *range(size - 1600, size)]
    used = [*range(HEAD + 7 * FIELD + COUNT * 96), *data]
    places = used[: HEAD + 17], used
    assert sum(exchanging.damaged(BETON, path, path, lambda number: places[number % 2], 80)) > 10


def test_fields_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = unpacked(tmp_path, "jpg")
    whole = bytearray(path.read_bytes())
    at = HEAD + FIELD  # the label
    changed = whole.copy()
    changed[at] = 255
    path.write_bytes(changed)
    with pytest.raises(fr.FastRecordError, match=r"the field 'label' is of a type of its own \(255\).*FR752"):
        open_source(BETON, path)
    changed = whole.copy()
    changed[at + 1 : at + 6] = b"score"
    path.write_bytes(changed)
    with pytest.raises(fr.FastRecordError, match=r"two fields have one name.*FR752"):
        open_source(BETON, path)
    path.write_bytes(whole.replace(b'"<f4"', b'"|O" '))
    with pytest.raises(fr.FastRecordError, match=r"the field 'grid' has values of object.*FR752"):
        open_source(BETON, path)
