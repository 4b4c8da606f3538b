"""Images in memory, appended with `Writer.append_images`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.conftest import encode
from tests.support.child import run_child
from tests.support.recoding import FILES

LABELLED = fr.Schema({"image": fr.image(), "label": "int64"})
IMAGES = list(FILES.values())


def contents(path: Path) -> dict[str, list[Any]]:
    """Return everything that a file stores about its images."""
    reader = fr.Reader(path)
    assert reader.verify()["ok"]
    columns = [reader.column(name).tolist() for name in ("image.width", "image.height", "label")]
    checksums = reader.checksums("image").tolist()  # these include the side bytes
    return {"bytes": [bytes(record["image"]) for record in reader], "columns": columns, "checksums": checksums}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"short_side": 120},
        {"max_side": 150, "quality": 70},
        {"raw": True},
        {"raw": True, "short_side": 64},
        {"crop_index": True},
        {"crop_index": True, "short_side": 120},
        {"raw": True, "sixteen_bit": "scale"},
    ],
    ids=repr,
)
def test_images_in_memory_are_stored_as_the_same_files_are(tmp_path: Path, options: dict[str, Any]) -> None:
    images = [*IMAGES, encode(0), b"not an image", b"", *IMAGES]
    paths = [tmp_path / str(number) for number in range(len(images))]
    for path, data in zip(paths, images, strict=True):
        path.write_bytes(data)
    values = {"label": np.arange(len(images))}
    with fr.Writer(tmp_path / "files.frec", LABELLED) as writer:
        from_files = writer.append_files("image", paths, values, on_error="skip", recode=fr.Recode(**options))
        counts = (writer.recoded, writer.foreign)
    with fr.Writer(tmp_path / "memory.frec", LABELLED) as writer:
        from_memory = writer.append_images("image", images, values, on_error="skip", recode=fr.Recode(**options))
        assert (writer.recoded, writer.foreign) == counts
    assert contents(tmp_path / "memory.frec") == contents(tmp_path / "files.frec")
    for error, of_file in zip(from_memory, from_files, strict=True):
        assert str(of_file[1]) == str(error[1]).replace(f"images[{error[0]}]", str(paths[error[0]]))
        assert error[0] == of_file[0]
    assert [i for i, _ in from_memory] == [len(IMAGES) + 1, len(IMAGES) + 2]


@pytest.mark.parametrize("options", [{}, {"short_side": 16}], ids=repr)
def test_raise_names_the_position_and_keeps_the_images_before_it(tmp_path: Path, options: dict[str, Any]) -> None:
    images = [encode(0), encode(1), b"not an image", encode(2), b"nor this"]
    with fr.Writer(tmp_path / "a.frec", LABELLED) as writer:
        with pytest.raises(fr.errors.DecodeError, match=r"^images\[2\]: .* \[FR510\]$"):
            writer.append_images("image", images, {"label": range(5)}, recode=fr.Recode(**options))
        assert len(writer) == 2
        writer.append_images("image", [encode(3)], {"label": [9]}, recode=fr.Recode(**options))
    assert fr.Reader(tmp_path / "a.frec").column("label").tolist() == [0, 1, 9]


def test_any_bytes_like_objects_are_taken(tmp_path: Path) -> None:
    data = encode(0)
    gaps = np.repeat(np.frombuffer(data, np.uint8), 2)[::2]
    images: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), gaps, gaps.data]
    same = np.stack([np.frombuffer(data, np.uint8)] * 3)
    with fr.Writer(tmp_path / "a.frec", LABELLED) as writer:
        writer.append_images("image", images, {"label": range(len(images))})
        writer.append_images("image", tuple(images), {"label": range(len(images))}, recode=fr.Recode(raw=True))
        writer.append_images("image", same, {"label": torch.arange(3)})
    stored = [bytes(record["image"]) for record in fr.Reader(tmp_path / "a.frec")]
    assert set(stored[: len(images)]) == set(stored[2 * len(images) :]) == {data}
    assert len(set(stored[len(images) : 2 * len(images)])) == 1


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([b"x", 5], r"images\[1\]: a bytes-like object is wanted, not int"),
        (["text"], r"images\[0\]: a bytes-like object is wanted, not str"),
        ([None], r"images\[0\]: a bytes-like object is wanted, not NoneType"),
        ([np.zeros(3, np.float32)], r"images\[0\]: a bytes-like object is wanted, not ndarray"),
        (b"one image", r"images\[0\]: a sequence of values"),
        ({b"x": 1}, r"images\[0\]: a sequence of values"),
        (7, r"images\[0\]: a sequence of values"),
    ],
    ids=repr,
)
def test_other_objects_are_refused_and_append_nothing(tmp_path: Path, images: Any, message: str) -> None:
    with fr.Writer(tmp_path / "a.frec", LABELLED) as writer:
        with pytest.raises(fr.errors.SchemaError, match=message):
            writer.append_images("image", images, {"label": [0]}, on_error="skip")
        assert len(writer) == 0


def test_values_are_as_many_as_images_and_of_every_type(tmp_path: Path) -> None:
    schema = {
        "mask": fr.image(),
        "image": fr.image(),
        "data": fr.bytes_(),
        "point": fr.array("float32", (2,)),
        "wave": fr.array("int16", (None,)),
        "words": fr.list_(fr.string()),
        "meta": fr.json(),
        "flag": fr.FieldType("bool"),
        "half": fr.FieldType("float16"),
        "key": fr.string(),
    }
    values: dict[str, Any] = {
        "mask": [encode(5, kind="PNG"), memoryview(encode(6))],
        "data": [b"", np.arange(3, dtype=np.uint8)],
        "point": np.arange(4, dtype=np.float32).reshape(2, 2),
        "wave": [np.arange(3, dtype=np.int16), torch.zeros(1, dtype=torch.int16)],
        "words": [["a"], []],
        "meta": [{"a": 1}, None],
        "flag": [True, False],
        "half": np.array([0.5, 1], np.float16),
        "key": ["x", "ü"],
    }
    images = [encode(0), encode(1)]
    with fr.Writer(tmp_path / "a.frec", schema) as writer:
        assert writer.append_images("image", images, values) == []
        writer.extend({"image": images, **values})
        for change, message in (
            ({"key": ["x"]}, "field key: 1 values for 2 images"),
            ({"point": np.zeros((3, 2), np.float32)}, "field point: 3 values for 2 images"),
            ({"point": np.zeros((2, 3), np.float32)}, "field point: value 0: an array of shape"),
            ({"wave": [np.zeros(1, np.int16), np.zeros(1)]}, "field wave: value 1: int16 values are wanted"),
            ({"image": images}, "field image: both images and values are given for it"),
            ({"more": [1, 2]}, "no field .*more"),
        ):
            with pytest.raises(fr.errors.SchemaError, match=message):
                writer.append_images("image", images, {**values, **change})
        assert len(writer) == 4
    reader = fr.Reader(tmp_path / "a.frec")
    for name in schema:
        for number in range(2):
            first, second = reader[number][name], reader[number + 2][name]
            assert np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second
    assert reader.lengths("mask").tolist() == [len(data) for data in values["mask"]] * 2


def test_a_field_of_bytes_takes_anything_but_nothing_is_recoded(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", {"data": fr.bytes_()}) as writer:
        assert writer.append_images("data", [b"no image", b"", encode(0)], {}) == []
        with pytest.raises(fr.errors.SchemaError, match="only the images of a field of type image can be recoded"):
            writer.append_images("data", [encode(0)], {}, recode=fr.Recode(raw=True))
        with pytest.raises(TypeError, match=r"recode is a fastrecord\.Recode, not dict"):
            writer.append_images("data", [], {}, recode={"raw": True})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match='on_error is "raise" or "skip"'):
            writer.append_images("data", [], {}, on_error="ignore")
    assert [record["data"] for record in fr.Reader(tmp_path / "a.frec")] == [b"no image", b"", encode(0)]


@pytest.mark.parametrize("options", [{}, {"crop_index": True}], ids=repr)
def test_no_images_append_nothing_and_a_closed_writer_refuses(tmp_path: Path, options: dict[str, Any]) -> None:
    with fr.Writer(tmp_path / "a.frec", LABELLED) as writer:
        assert writer.append_images("image", [], {"label": []}, recode=fr.Recode(**options)) == []
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append_images("image", [encode(0)], {"label": [1]}, recode=fr.Recode(**options))
    assert len(fr.Reader(tmp_path / "a.frec")) == 0


def test_ctrl_c_while_images_are_recoded_leaves_a_prefix_that_can_be_committed(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(encode(0))
    script = """
    image, count = open("image", "rb").read(), 1_000_000
    writer = fr.Writer("a.frec", {"image": fr.image(), "label": "int64"})
    def interrupt():
        while os.path.getsize("a.frec") <= 4096:
            pass
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    recode = fr.Recode(short_side=10)
    try:
        writer.append_images("image", [image] * count, {"label": np.arange(count)}, recode=recode)
    except KeyboardInterrupt:
        done = len(writer)
        assert 0 < done < count
        assert writer.recoded["images"] == writer.recoded["smaller"] == done
        writer.close()
        reader = fr.Reader("a.frec")
        assert reader.verify()["ok"] and reader.column("label").tolist() == [*range(done)]
        print("interrupted", threading.active_count())
    """
    assert run_child(script, tmp_path) == "interrupted 1\n"
