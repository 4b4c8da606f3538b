"""Items of data sets of torch, of iterables, with and without workers."""

from __future__ import annotations

import array
import gc
import multiprocessing
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset, get_worker_info

import fastrecord as fr
from tests.support.packing import pack_with

N = 300


class Pictures:
    """Items (image of Pillow, label), as torchvision's data sets have them."""

    classes = ("ant", "bee", "cat")

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if not 0 <= index < N:
            raise IndexError(index)
        return Image.fromarray(np.full((20, 30, 3), index % 256, np.uint8)), index % 3


class Divided(IterableDataset[Any]):
    """Items; each worker makes its share."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        step, start = (worker.num_workers, worker.id) if worker else (1, 0)
        return ({"x": torch.full((2,), i, dtype=torch.float32), "i": i} for i in range(start, N, step))


def read(path: Path) -> fr.Reader:
    return fr.Reader(path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.frec"


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_stored_without_loss_and_in_order(out: Path, workers: int) -> None:
    summary = pack_with(Pictures(), out, format="dataset", num_workers=workers)
    assert (summary.records, summary.classes) == (N, ["ant", "bee", "cat"])
    with read(out) as reader:
        assert reader.schema == fr.Schema({"image": fr.image(), "label": "int64"})
        assert reader.column("label").tolist() == [i % 3 for i in range(N)]
        assert reader.metadata["classes"] == ["ant", "bee", "cat"]
        for i in range(N):
            with Image.open(BytesIO(reader[i]["image"])) as image:
                assert image.format == "PNG"
                assert np.array_equal(np.asarray(image), np.full((20, 30, 3), i % 256))


def test_images_can_be_jpegs_and_made_smaller(out: Path) -> None:
    pack_with(Pictures(), out, format="dataset", images="jpeg", quality=80, mapping=("photo", "kind"))
    with read(out) as reader:
        assert list(reader.schema) == ["photo", "kind"]
        assert bytes(reader[0]["photo"]).startswith(b"\xff\xd8")
    summary = pack_with(Pictures(), out, format="dataset", images="jpeg", short_side=10, mode="overwrite")
    assert summary.recoded is not None
    assert summary.recoded["smaller"] == N
    with read(out) as reader:
        assert set(reader.column("image.height")) == {10}


def test_a_subset_keeps_the_names_of_its_classes(out: Path) -> None:
    assert pack_with(Subset(Pictures(), [5, 3]), out, format="dataset").classes == ["ant", "bee", "cat"]  # type: ignore[arg-type]
    with read(out) as reader:
        assert reader.column("label").tolist() == [2, 0]


def test_tensors_become_arrays_of_their_type(out: Path) -> None:
    x = torch.arange(12, dtype=torch.float16).reshape(3, 4)
    pack_with(TensorDataset(x, torch.tensor([3, 1, 2], dtype=torch.int32)), out, format="dataset")
    with read(out) as reader:
        assert {name: str(kind) for name, kind in reader.schema.items()} == {
            "image": "array(float16, (4,))",
            "label": "int32",
        }
        assert np.array_equal(np.stack([reader[i]["image"] for i in range(3)]), x.numpy())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_data_set_divides_its_items_itself(out: Path, workers: int) -> None:
    pack_with(Divided(), out, format="dataset", num_workers=workers)
    with read(out) as reader:
        assert sorted(reader.column("i")) == list(range(N))
        assert [reader[i]["x"].tolist() for i in range(5)] == [[float(reader[i]["i"])] * 2 for i in range(5)]


def test_every_kind_of_value_and_of_item(out: Path) -> None:
    Point = namedtuple("Point", "x y")  # noqa: PYI024 - users have such

    @dataclass
    class Row:
        name: str
        size: float

    cases: list[tuple[list[Any], dict[str, str], dict[str, Any]]] = [
        ([Point(1, 2.5)], {"x": "int64", "y": "float64"}, {"x": 1, "y": 2.5}),
        ([Row("a", 2.0)], {"name": "string", "size": "float64"}, {"name": "a", "size": 2.0}),
        ([7, 8], {"field0": "int64"}, {"field0": 7}),
        ([("text", b"\0\1", True)], {"field0": "string", "field1": "bytes", "field2": "bool"}, {"field2": True}),
        ([{"j": {"a": [1, None]}, "l": [1, 2]}], {"j": "json", "l": "list(int64)"}, {"j": {"a": [1, None]}}),
        ([{"a": np.zeros((2, 3))}, {"a": np.ones((4, 3))}], {"a": "array(float64, (None, 3))"}, {}),
        ([{"s": np.float32(1.5)}], {"s": "float32"}, {"s": 1.5}),
    ]
    for items, schema, first in cases:
        pack_with(iter(items), out, format="dataset", mode="overwrite")
        with read(out) as reader:
            assert {name: str(kind) for name, kind in reader.schema.items()} == schema
            record = reader[0]
            assert {name: record[name] for name in first} == first


def test_fields_choose_and_give_types(out: Path) -> None:
    items = [{"a": i, "b": float(i), "c": "x"} for i in range(5)]
    pack_with(items, out, format="dataset", mapping=["b", "a"])
    with read(out) as reader:
        assert list(reader.schema) == ["b", "a"]
    pack_with(
        items,
        out,
        format="dataset",
        mapping=["a", "b"],
        types={"a": fr.FieldType("uint8"), "b": fr.FieldType("float32")},
        mode="overwrite",
    )
    with read(out) as reader:
        assert {name: str(kind) for name, kind in reader.schema.items()} == {"a": "uint8", "b": "float32"}
    with pytest.raises(fr.FastRecordError, match="no field is called 'd'"):
        pack_with(items, out, format="dataset", mapping=["d"], mode="overwrite")


# Bad data sets


class Failing(Pictures):
    broken = True

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 200 and self.broken:
            raise RuntimeError("the disk is away")
        return super().__getitem__(index)


def test_an_error_of_the_data_set_keeps_the_items_before_it(out: Path) -> None:
    data = Failing()
    with pytest.raises(RuntimeError, match="the disk is away") as err:
        pack_with(data, out, format="dataset")
    assert "item 200 raised this" in err.value.__notes__[0]
    with read(out) as reader:
        assert (len(reader), reader.complete) == (200, False)
    with pytest.raises(RuntimeError, match="the disk is away") as err:
        pack_with(Subset(data, [0, 1, 200]), out.with_name("early.frec"), format="dataset")  # type: ignore[arg-type]
    assert "item 2 raised this" in err.value.__notes__[0]
    data.broken = False
    assert pack_with(data, out, format="dataset", mode="resume").packed == N - 200
    with read(out) as reader:
        assert reader.column("label").tolist() == [i % 3 for i in range(N)]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"a": 1}, r"item 100: it has no 'b', which the first item has.*FR754|item 100.*FR753"),
        ({"a": 1, "b": "text"}, r"item 100: .*b.*FR754"),
        ({"a": 1, "b": None}, r"item 100: .*b.*FR754"),
        (3, r"item 100: it is int, without the names of the first item"),
    ],
)
def test_an_item_that_differs_is_named_and_can_be_left_out(odd: Any, message: str, out: Path) -> None:
    items: list[Any] = [{"a": i, "b": i} for i in range(200)]
    items[100] = odd
    with pytest.raises(fr.FastRecordError, match=message):
        pack_with(items, out, format="dataset")
    with read(out) as reader:
        assert len(reader) == 100
    summary = pack_with(items, out, format="dataset", bad_files="skip", mode="overwrite")
    assert [key for key, _ in summary.skipped] == ["list: item 100"]
    assert summary.records == 199


@pytest.mark.parametrize(
    ("data", "options", "error"),
    [
        ([], {}, "source is empty"),
        (iter([]), {}, "the data set has no items"),
        ([object()], {}, "no type is known"),
        ([(1, 2), (1, 2, 3)], {}, "item 1: it has 3 values, where the first item has 2"),
        ({"train": [1]}, {}, "pack one of them"),
        (3, {}, "dataset is a int, which has no items"),
        (np.array(3), {}, "which has no items"),
        ("train", {}, "not a data set"),
        (Path("train"), {}, "not a data set"),
        (iter([1]), {"shards": 1}, "shards need a data set with a length"),
        ([1], {"mapping": "image"}, "a sequence of names"),
        ([1], {"images": "bmp"}, "images is"),
        ([1], {"quality": 50}, "png is without loss"),
        (iter([1]), {"num_workers": 2}, "num_workers is for data sets of torch"),
    ],
)
def test_wrong_arguments_are_explained(data: Any, options: dict[str, Any], error: str, out: Path) -> None:
    with pytest.raises((fr.FastRecordError, TypeError, ValueError), match=error):
        pack_with(data, out, format="dataset", **options)
    assert not os.path.lexists(out)


class Stopping(Pictures):
    """A map-style data set whose mistake looks like its end."""

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 200:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_data_set_that_ends_early_is_not_complete_and_leaves_no_worker(workers: int, out: Path) -> None:
    gc.disable()
    try:
        with pytest.raises((fr.FastRecordError, RuntimeError), match=r"ends after 192 items|StopIteration"):
            pack_with(Stopping(), out, format="dataset", num_workers=workers)
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()
    assert not read(out).complete


class Guessing(Divided):
    """An iterable data set with a length of its own."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [N - 10, N, N + 10])
def test_shards_need_an_iterable_data_sets_length_to_be_right(workers: int, length: int, out: Path) -> None:
    assert pack_with(Guessing(length), out, format="dataset", num_workers=workers).records == N
    if length == N:
        assert pack_with(Guessing(length), out, format="dataset", num_workers=workers, shards=3).records == N
        return
    with pytest.raises(fr.FastRecordError, match="more items come" if length < N else f"ends after {N} items"):
        pack_with(Guessing(length), out, format="dataset", num_workers=workers, shards=3)


def test_a_table_is_told_to_give_its_rows(out: Path) -> None:
    table = pytest.importorskip("pyarrow").table({"a": [1, 2]})
    with pytest.raises(TypeError, match=r"pack its rows, dataset.to_pylist\(\)"):
        pack_with(table, out, format="dataset")
    assert pack_with(table.to_pylist(), out, format="dataset").records == 2


_INTERRUPTED = """
import os, signal, sys, threading, time
import fastrecord as fr

class Hanging:
    def __len__(self):
        return 200
    def __getitem__(self, index):
        if index == 150:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(1000)
        return index

try:
    fr.pack(Hanging(), sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_data_set_that_hangs(out: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(out)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "interrupted\n"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_encoded_is_named_and_can_be_left_out(workers: int, out: Path) -> None:
    modes = ["RGB"] * 100
    modes[7] = modes[90] = "CMYK"
    data: Any = [{"image": Image.new(mode, (5, 4)), "n": i} for i, mode in enumerate(modes)]
    with pytest.raises(fr.FastRecordError, match="list: item 7: field 'image': Image: cannot write mode CMYK as PNG"):
        pack_with(data, out, format="dataset", num_workers=workers)
    summary = pack_with(data, out, format="dataset", num_workers=workers, bad_files="skip", mode="overwrite")
    assert [key for key, _ in summary.skipped] == ["list: item 7", "list: item 90"]
    assert read(out).column("n").tolist() == [i for i in range(100) if i not in (7, 90)]


def test_tensors_of_every_kind_keep_their_values(out: Path) -> None:
    item = {
        "b": torch.tensor([1.5, 2], dtype=torch.bfloat16, requires_grad=True),
        "b0": torch.tensor(3.0, dtype=torch.bfloat16),
        "conjugate": torch.tensor([1j]).conj(),
        "text": np.str_("a"),
        "view": memoryview(array.array("h", [0, 1])),
    }
    pack_with([item], out, format="dataset")
    with read(out) as reader:
        kinds = ["array(bfloat16, (2,))", "bfloat16", "array(complex64, (1,))", "string", "bytes"]
        assert [str(kind) for kind in reader.schema.values()] == kinds
        stored = reader[0]
    bits = np.asarray(stored["b"]).view(np.uint16).astype(np.uint32) << 16
    assert bits.view(np.float32).tolist() == [1.5, 2]
    assert (float(stored["b0"]), stored["conjugate"].tolist(), stored["text"]) == (3, [-1j], "a")
    assert bytes(stored["view"]) == b"\0\0\1\0"


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([{"a": 1}, {"a": 1, "b": 2}], {}, "item 1: it has 'b', which the first item lacks"),
        ([{1: 2, "1": 3}], {}, "item 0: an item is a dict with names that are str"),
        ([{}], {}, "item 0: an item is a dict"),
        ([(1, 2)], {"mapping": ["a"]}, "fields names a, but list: item 0 has 2 values"),
        ([(1, 2)], {"mapping": ["a", "a"]}, "names that differ"),
        ([{"a": np.zeros(2, "M8[D]")}], {}, r"list: field 'a': values of datetime64"),
        ([{"a": torch.eye(2).to_sparse()}], {}, "item 0: field 'a': Tensor: can't convert Sparse"),
        ([{"key": "x"}] * 2, {}, r"by Fields\(mapping=, types=\); or leave .* \(bad_files='skip'\)"),
    ],
)
def test_what_would_be_lost_is_refused_by_name(items: Any, options: dict[str, Any], message: str, out: Path) -> None:
    with pytest.raises((fr.FastRecordError, TypeError, ValueError), match=message):
        pack_with(items, out, format="dataset", **options)
    pack_with([{"a": 1, "b": 2}], out, format="dataset", mapping=["a"], mode="overwrite")
