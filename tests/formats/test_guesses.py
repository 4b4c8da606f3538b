"""Types that a source does not declare: what most of the first records are decides, and the others are named."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import fastrecord as fr
from tests.formats.records.test_recordio import packed
from tests.formats.records.test_recordio import record as recordio
from tests.formats.records.test_tfrecord import write as write_tfrecord
from tests.support.commands import failed, good
from tests.support.formats.exchanging import picture
from tests.support.packing import pack_with

COUNT, ODD = 70, 9


def tar(path: Path, members: Sequence[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def values(usual: Callable[[int], Any], odd: Any) -> list[Any]:
    return [odd if number == ODD else usual(number) for number in range(COUNT)]


def tar_class(path: Path) -> None:
    labels = values(lambda n: b"%d" % (n % 13), b"seven")
    tar(path, [(f"{n:03}.{end}", data) for n, label in enumerate(labels) for end, data in (("jpg", picture(n)), ("cls", label))])  # fmt: skip # noqa: E501


def tar_array(path: Path) -> None:
    def npy(value: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, value)
        return file.getvalue()

    contents = values(lambda n: npy(np.full(2, n, np.float32)), b"damaged")
    tar(path, [(f"{n:03}.npy", data) for n, data in enumerate(contents)])


def tfrecord(usual: Callable[[int], Any], kind: str, odd: Any, odd_kind: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_tfrecord(path, [{"label": (odd, odd_kind) if n == ODD else (usual(n), kind)} for n in range(COUNT)])

    return write


def of_recordio(path: Path) -> None:
    labels = values(lambda n: n, [1, 2])
    path.write_bytes(b"".join(recordio(packed(label, n, picture(n))) for n, label in enumerate(labels)))


def pairs(path: Path) -> None:
    with lmdb.open(str(path), subdir=False, map_size=1 << 24, lock=False) as env, env.begin(write=True) as entries:
        for number, label in enumerate(values(lambda n: n, "seven")):
            entries.put(b"%03d" % number, pickle.dumps((picture(number), label)))


def tensors(path: Path) -> None:
    torch.save({"data": torch.zeros(COUNT, 2), "label": values(lambda n: n, "seven")}, path)


def parquet_image(path: Path) -> None:
    pq.write_table(pa.table({"image": values(picture, b"no image"), "n": range(COUNT)}), path)


def hdf5_image(path: Path) -> None:
    with h5py.File(path, "w") as file:
        held = file.create_dataset("image", COUNT, h5py.vlen_dtype(np.uint8))
        for number, data in enumerate(values(picture, b"no image")):
            held[number] = np.frombuffer(data, np.uint8)


FORMATS = {
    "a class in a tar archive": ("webdataset", tar_class, "label", "int64", "'seven' is not a number"),
    "an array in a tar archive": ("webdataset", tar_array, "npy", "array(float32, (2,))", "npy"),
    "a text in TFRecord": ("tfrecord", tfrecord(int, "int", b"seven", "byte"), "label", "int64", "'label' has"),
    "two labels in TFRecord": ("tfrecord", tfrecord(int, "int", [1, 2], "int"), "label", "int64", "lists=label"),
    "an image in TFRecord": ("tfrecord", tfrecord(picture, "byte", b"x", "byte"), "label", "image", "image"),
    "bytes in TFRecord": ("tfrecord", tfrecord(b"c%d".__mod__, "byte", b"\xff", "byte"), "label", "string", "utf-8"),
    "two labels in RecordIO": ("recordio", of_recordio, "label", "int64", "labels=array"),
    "a text in LMDB": ("lmdb", pairs, "label", "int64", "not str"),
    "a text in a list of torch": ("torch", tensors, "label", "int64", "not str"),
    "an image in Parquet": ("parquet", parquet_image, "image", "image", "image"),
    "an image in HDF5": ("hdf5", hdf5_image, "image", "image", "image"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMATS)
def test_one_odd_value_among_the_first_is_named_and_does_not_change_the_type(tmp_path: Path, case: str) -> None:
    name, write, field, kind, message = FORMATS[case]
    path, out = tmp_path / "source.tar", tmp_path / "out.frec"
    write(path)
    with pytest.raises(fr.FastRecordError, match=rf"record {ODD}\b.*{message}"):
        pack_with(path, out, format=name)
    summary = pack_with(path, out, format=name, bad_files="skip", mode="overwrite")
    assert [place.partition(" (key")[0] for place, _ in summary.skipped] == [f"{path}: record {ODD}"]
    with fr.Reader(out) as reader:
        assert str(reader.schema["image" if kind == "image" else field]) == kind.replace("string", "int64")
        assert (len(reader), summary.classes is not None) == (COUNT - 1, kind == "string")
        if kind == "int64":
            wanted = [n % 13 if name == "webdataset" else n for n in range(COUNT) if n != ODD]
            assert reader.column("label").tolist() == wanted


def test_numbers_of_a_tar_archive_come_in_as_the_texts_they_are(tmp_path: Path) -> None:
    path, out = tmp_path / "a.tar", tmp_path / "out.frec"
    tar(path, [("a.cls", b"007"), ("b.cls", b"8"), ("c.cls", b"seven")])
    assert "--type" in failed("import", path, out)
    good("import", path, out, "--type", "label=string", "--overwrite")
    with fr.Reader(out) as reader:
        assert [reader[i]["label"] for i in range(3)] == ["007", "8", "seven"]


@pytest.mark.parametrize(
    ("contents", "kind"),
    [
        ([b"1", b"2", b"cat"], "int64"),
        ([b"1", b"cat", b"dog"], "string"),
        ([b"1", b"2.5", b"3"], "float64"),
        ([b"1", b"2", b"nan"], "int64"),
        ([b"1_0", b"2_0"], "string"),
        ([b" 1\n", b"+2"], "int64"),
        ([b"1", b"cat"], "string"),
    ],
)
def test_classes_are_numbers_if_most_are(tmp_path: Path, contents: list[bytes], kind: str) -> None:
    tar(tmp_path / "a.tar", [(f"{n}.cls", data) for n, data in enumerate(contents)])
    fields = fr.interchange.registry.load("webdataset").open(str(tmp_path / "a.tar"), {}).fields
    assert str(fields[0].type) == kind


@pytest.mark.parametrize("odd", ["seven", None, [1]])
def test_an_odd_item_of_a_data_set_is_named(tmp_path: Path, odd: Any) -> None:
    items = [{"label": label, "x": 1.5} for label in values(lambda n: n, odd)]
    with pytest.raises(fr.FastRecordError, match=rf"item {ODD}: .*label"):
        pack_with(items, tmp_path / "out.frec", format="dataset")
    summary = pack_with(items, tmp_path / "out.frec", format="dataset", bad_files="skip", mode="overwrite")
    assert [place for place, _ in summary.skipped] == [f"list: item {ODD}"]
