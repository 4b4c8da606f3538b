from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastrecord as fr
from fastrecord.look.pictures import Picture, make_picture, may_be_picture
from tests.support.pictures import KINDS, jpeg, pixels, save

PLENTY = 1_000_000


def pixels_of(picture: Picture | None) -> np.ndarray[Any, Any]:
    assert picture is not None
    with Image.open(io.BytesIO(base64.b64decode(picture.url.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's, about a value that is not shown
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_any_kind_becomes_a_picture_of_its_size(kind: str) -> None:
    data = KINDS[kind]()
    picture = make_picture(data, fr.image(), PLENTY)
    assert picture is not None
    with Image.open(io.BytesIO(data)) as image:
        assert (picture.width, picture.height) == image.size


def test_a_small_image_stays_byte_for_byte_and_a_large_one_stays_below_its_limit() -> None:
    data = jpeg(700, 500)
    whole, small = make_picture(data, fr.image(), len(data)), make_picture(data, fr.image(), 8000)
    assert whole is not None
    assert small is not None
    assert base64.b64decode(whole.url.partition(",")[2]) == data
    assert len(base64.b64decode(small.url.partition(",")[2])) <= 8000
    assert (small.width, small.height) == (700, 500)
    assert small.shown[0] < 700
    assert small.shown[0] / small.shown[1] == pytest.approx(1.4, rel=0.05)


def test_noise_gets_smaller_until_it_fits() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    picture = make_picture(save(Image.fromarray(noise), "PNG"), fr.image(), 5000)
    assert picture is not None
    assert len(picture.url) < 7000


@pytest.mark.parametrize(
    "shape", [(20, 30), (20, 30, 1), (20, 30, 3), (20, 30, 4), (1, 20, 30), (3, 20, 30), (4, 20, 30)]
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_arrays_of_an_image_shape_are_pictures_of_these_pixels(shape: tuple[int, ...], dtype: str) -> None:
    values = pixels(30, 20, 4)[:, :, : 1 if len(shape) == 2 else next(n for n in shape if n < 5)]
    array: np.ndarray[Any, Any] = values[:, :, 0] if len(shape) == 2 else values
    array = array.transpose(2, 0, 1) if shape[0] < 5 else array
    stored = array if dtype == "uint8" else (array / 255).astype("float32" if dtype == "bfloat16" else dtype)
    if dtype == "bfloat16":
        stored = (stored.view(np.uint32) >> 16).astype(np.uint16)
    found = pixels_of(make_picture(stored, fr.array(dtype, shape), PLENTY))
    assert found.shape == (20, 30, 3)
    expected = values[:, :, :3].astype(int)
    assert abs(found - (expected if expected.shape[2] == 3 else expected.repeat(3, 2))).max() <= (
        0 if dtype == "uint8" else 1
    )


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((20, 30, 2), np.uint8),
        np.zeros((3, 30), np.uint8),
        np.zeros(30, np.uint8),
        np.zeros((2, 3, 20, 30), np.uint8),
        np.zeros((20, 30), np.int64),
        np.full((20, 30), 1.5, np.float32),
        np.full((20, 30), -0.5, np.float32),
        np.full((20, 30), np.nan, np.float32),
    ],
    ids=lambda array: f"{array.dtype} {array.shape} {array.flat[0]}",
)
def test_other_arrays_are_not_pictures(array: np.ndarray[Any, Any]) -> None:
    assert make_picture(array, fr.array(array.dtype.name, array.shape), PLENTY) is None


def test_bytes_are_pictures_if_they_are_an_image() -> None:
    assert make_picture(b"just bytes", fr.bytes_(), PLENTY) is None
    assert make_picture(memoryview(jpeg()), fr.bytes_(), PLENTY) is not None
    assert not may_be_picture(fr.string())
    assert may_be_picture(fr.array("uint8", (None, None, 3)))


@pytest.mark.parametrize("data", [jpeg(300, 200)[:3000], b"\xff\xd8\xff not a JPEG", b"", b"nothing known"])
@pytest.mark.parametrize("most", [500, PLENTY])
def test_a_damaged_image_is_an_error_with_its_reason(data: bytes, most: int) -> None:
    with pytest.raises(fr.errors.DecodeError, match=r"\[FR512\]"):
        make_picture(data, fr.image(), most)


def test_an_image_of_too_many_pixels_is_not_decoded() -> None:
    header = b"P6\n60000 60000\n255\n"
    with pytest.raises(fr.errors.DecodeError, match=r"60000 x 60000 .*\[FR505\]"):
        make_picture(header + bytes(100), fr.image(), PLENTY)
