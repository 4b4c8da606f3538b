"""idx files, written by hand as their description says."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrecord import FastRecordError
from fastrecord.interchange import registry
from tests.support.formats.exchanging import assert_same, take

IDX = registry.load("idx")
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
IMAGES = np.arange(50 * 6, dtype=np.uint8).reshape(50, 3, 2)
LABELS = np.arange(50) % 10


def idx(values: Any, kind: str = "u1") -> bytes:
    array = np.asarray(values)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[kind], array.ndim, *array.shape)
    return head + array.astype(f">{kind}").tobytes()


def write_set(folder: Path, name: str = "train") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(IMAGES))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return folder


@pytest.mark.parametrize("name", ["", "train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
@pytest.mark.parametrize("start", [0, 1, 49])
def test_images_and_labels_come_in_together(tmp_path: Path, name: str, start: int) -> None:
    path = str(write_set(tmp_path / "mnist") / name)
    assert registry.recognise(path)[0] is IDX
    with IDX.open(path, {}) as source:
        assert {field.name: str(field.type) for field in source.fields} == {
            "image": "array(uint8, (3, 2))",
            "label": "int64",
        }
        assert source.count() == 50
        for _ in range(2):
            columns = take(source, start)
            np.testing.assert_array_equal(columns["image"], IMAGES[start:])
            assert columns["label"] == LABELS[start:].tolist()


def test_compressed_files_are_read(tmp_path: Path) -> None:
    for path in list(write_set(tmp_path / "mnist").iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert registry.recognise(str(tmp_path / "mnist"))[0] is IDX
    path = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    assert registry.recognise(str(path))[0] is IDX
    with IDX.open(str(path), {}) as source:
        np.testing.assert_array_equal(take(source, 7)["image"], IMAGES[7:])
        assert take(source, 3, ["label"])["label"] == LABELS[3:].tolist()
    path.write_bytes(path.read_bytes()[:-20])
    with IDX.open(str(path), {}) as source, pytest.raises(FastRecordError, match=r"images.*: record \d+: .*--resume"):
        take(source)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("shape", [(9,), (9, 4), (9, 2, 3, 2)])
def test_all_types_and_dimensions_come_in(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(1).normal(size=shape) * 50).astype("f8").astype(kind, casting="unsafe")
    (tmp_path / "a.idx").write_bytes(idx(values, kind))
    assert registry.recognise(str(tmp_path / "a.idx"))[0] is IDX
    with IDX.open(str(tmp_path / "a.idx"), {}) as source:
        found = np.array(take(source)["data"])
    assert_same(found, values.astype(kind))


def test_records_before_the_end_of_a_short_file_come_in(tmp_path: Path) -> None:
    path = write_set(tmp_path / "mnist") / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 7, 16 + 6):
        path.write_bytes(whole[:cut])
        with IDX.open(str(path), {}) as source:
            good = (cut - 16) // 6
            columns: list[Any] = []
            runs = map(columns.extend, (run.columns["image"] for run in source.read(0, ["image", "label"])))
            with pytest.raises(FastRecordError, match=rf"train-images-idx3-ubyte: record {good}: the file ends"):
                list(runs)
            assert len(columns) == good
    for cut in (0, 3, 15):
        path.write_bytes(whole[:cut])
        with pytest.raises(FastRecordError, match=r"train-images-idx3-ubyte: .*(header|no records)"):
            IDX.open(str(path), {})


def test_headers_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "mnist")
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(LABELS[:49]))
    with pytest.raises(FastRecordError, match=r"50 records, and .*labels-idx1-ubyte has 49"):
        IDX.open(str(folder), {})
    for wrong in (
        idx(IMAGES) + b"x",
        idx(IMAGES[:0]),
        struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 2**32 - 1, 2**32 - 1),
        b"\0\0\7\1" + bytes(8),
        b"\0\0\x08\0" + bytes(8),
    ):
        images.write_bytes(wrong)
        with pytest.raises(FastRecordError, match=r"train-images-idx3-ubyte: "):
            IDX.open(str(images), {})


def test_a_folder_of_several_sets_needs_a_choice(tmp_path: Path) -> None:
    folder = write_set(write_set(tmp_path / "mnist"), "t10k")
    with pytest.raises(FastRecordError, match=r"2 sets of idx files .*: name one file"):
        IDX.open(str(folder), {})
    with IDX.open(str(folder / "*-images-idx3-ubyte"), {}) as source:
        assert source.count() == 100
