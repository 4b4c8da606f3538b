from __future__ import annotations

import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.interchange import registry
from fastrecord.interchange.format import Found
from tests.support.formats.exchanging import take

CIFAR = registry.load("cifar")
COUNT = 30
CLASSES = [f"class {n}" for n in range(10)]
COARSE = [f"coarse {n}" for n in range(4)]


def opened(path: Path | str, **settings: str) -> Any:
    return CIFAR.open(str(path), settings)


def python_2(value: Any) -> bytes:
    """Return what the pickle of Python 2 writes with protocol 2: text is 8-bit strings."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python_2(key) + python_2(each) for key, each in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python_2, value)) + b"e"
    if isinstance(value, int):
        return b"M" + struct.pack("<H", value)
    if isinstance(value, np.ndarray):
        shape = b"(" + b"".join(python_2(dim) for dim in value.shape) + b"t"
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        return new + b"(K\x01" + shape + dtype + b"\x89" + python_2(value.tobytes()) + b"tb"
    raw = value.encode() if isinstance(value, str) else value
    return (b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))) + raw


def images(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (COUNT, 32, 32, 3), np.uint8)


def pixels(number: int) -> np.ndarray[Any, Any]:
    """Return images as the batches have them: all red values, all green ones, all blue ones."""
    return images(number).transpose(0, 3, 1, 2).reshape(COUNT, 3072)


def labels(number: int) -> list[int]:
    return [(n + number) % 10 for n in range(COUNT)]


def write_python(folder: Path, dumps: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(["data_batch_1", "data_batch_2", "test_batch"]):
        batch = {"batch_label": "b", "labels": labels(number), "data": pixels(number)}
        batch["filenames"] = [f"{name}_{n}.png" for n in range(COUNT)]
        (folder / name).write_bytes(dumps(batch))
    (folder / "batches.meta").write_bytes(
        dumps({"num_cases_per_batch": COUNT, "label_names": CLASSES, "num_vis": 3072})
    )
    return folder


def of_python_2(value: Any) -> bytes:
    return b"\x80\x02" + python_2(value) + b"."


@pytest.mark.parametrize("dumps", [of_python_2, pickle.dumps])
def test_the_python_version_of_cifar_10(tmp_path: Path, dumps: Any) -> None:
    folder = write_python(tmp_path / "cifar-10-batches-py", dumps)
    if dumps is of_python_2:
        assert np.array_equal(
            pickle.loads((folder / "data_batch_1").read_bytes(), encoding="bytes")[b"data"], pixels(0)
        )
    for path in (folder, tmp_path):
        assert registry.recognise(str(path))[0] is CIFAR
        with opened(path) as source:
            assert [(f.name, str(f.type)) for f in source.fields] == [
                ("image", "array(uint8, (32, 32, 3))"), ("label", "int64"), ("key", "string")
            ]  # fmt: skip
            assert source.classes == CLASSES
            assert source.count() == 2 * COUNT
            columns = take(source)
            assert np.array_equal(columns["image"], np.concatenate([images(0), images(1)]))
            assert columns["label"] == labels(0) + labels(1)
            assert columns["key"][31] == "data_batch_2_1.png"
            assert take(source, 45, ["label"])["label"] == labels(1)[15:]
            assert source.place(31) == f"{folder}/data_batch_2: record 1"
    with opened(folder, split="test") as source:
        assert np.array_equal(take(source)["image"], images(2))
    with opened(folder, split="all") as source:
        assert source.count() == 3 * COUNT
    with opened(folder / "test_batch") as source:
        assert take(source)["label"] == labels(2)
        assert source.classes == CLASSES


def test_cifar_100_has_two_labels(tmp_path: Path) -> None:
    for number, name in enumerate(["train", "test"]):
        coarse = [label % 4 for label in labels(number)]
        batch = {"fine_labels": labels(number), "coarse_labels": coarse, "data": pixels(number)}
        (tmp_path / name).write_bytes(of_python_2(batch))
    meta = {"fine_label_names": CLASSES, "coarse_label_names": COARSE}
    (tmp_path / "meta").write_bytes(of_python_2(meta))
    assert registry.recognise(str(tmp_path))[0] is CIFAR
    with opened(tmp_path) as source:
        assert [(f.name, f.rename) for f in source.fields] == [
            ("image", None), ("fine_label", "label"), ("coarse_label", None)
        ]  # fmt: skip
        assert (source.classes, source.metadata) == (CLASSES, {"coarse_classes": COARSE})
        assert take(source)["coarse_label"] == [label % 4 for label in labels(0)]
        with fr.Writer(tmp_path / "a.frec", {f.rename or f.name: f.type for f in source.fields}) as writer:
            for rows in source.read(0, [f.name for f in source.fields]):
                writer.extend({f.rename or f.name: rows.columns[f.name] for f in source.fields})
    assert np.array_equal(fr.Reader(tmp_path / "a.frec")[5]["image"], images(0)[5])


def test_the_archive_is_read_as_it_is(tmp_path: Path) -> None:
    folder = write_python(tmp_path / "cifar-10-batches-py", of_python_2)
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    assert registry.recognise(str(path))[0] is CIFAR
    with opened(path, split="all") as source:
        assert np.array_equal(take(source)["image"], np.concatenate([images(n) for n in range(3)]))
        assert source.classes == CLASSES
        assert source.place(70) == f"{path}/test_batch: record 10"
        assert source.paths == [str(path)]
    whole = path.read_bytes()
    for end in (20, 600, len(whole) // 2):
        path.write_bytes(whole[:end])
        with pytest.raises(fr.FastRecordError, match=r"cifar-10-python.tar.gz: .*FR752"):
            opened(path)


def test_batches_that_are_damaged_or_hostile_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    good = of_python_2({"labels": labels(0), "data": pixels(0)})
    cases = {
        r"data_batch_1: the pickle names 'os.system'.*FR756": b"\x80\x02cos\nsystem\nU\x01a\x85R.",
        r"data_batch_1: the pickle is cut short": good[:-30],
        "not of a batch of CIFAR": of_python_2({"labels": [1]}),
        "it has 2 labels and 30 images": of_python_2({"labels": [1, 2], "data": pixels(0)}),
        "its labels are damaged": of_python_2({"labels": ["a"] * COUNT, "data": pixels(0)}),
    }
    for why, data in cases.items():
        path.write_bytes(data)
        assert CIFAR.recognise(Found.at(str(path))) is not None
        with pytest.raises(fr.FastRecordError, match=why):
            opened(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(fr.FastRecordError, match="it has no batches of CIFAR for --set split=test"):
        opened(tmp_path / "empty", split="test")
    assert CIFAR.recognise(Found.at(str(tmp_path / "empty"))) is None
