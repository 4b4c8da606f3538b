"""The core's decoder against Pillow's, for every kind of image found in real folders."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as transform

import fastrecord as fr
from fastrecord import _core
from tests.support.loading import write_payloads
from tests.support.packing import pack_with, records, write
from tests.support.pictures import KINDS, SOI, exif, jpeg, picture, reference, save, with_segment

LIMIT = 1.0  # mean absolute difference from Pillow's crop, of 255

# Pillow warns about some of these images.
pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency", "ignore:Corrupt EXIF data")


# --- whole images ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_those_of_pillow(kind: str) -> None:
    data = KINDS[kind]()
    np.testing.assert_array_equal(fr.decode_image(data, sixteen_bit="clip"), reference(data))


def test_the_array_is_rgb_of_its_own_memory_and_any_buffer_is_read() -> None:
    image = picture(61, 43)
    data = save(image, "PNG")
    buffers: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)]
    for given in buffers:
        found = fr.decode_image(given)
        assert (str(found.dtype), found.shape, found.flags.c_contiguous) == ("uint8", (43, 61, 3), True)
        np.testing.assert_array_equal(found, np.asarray(image))
        found[:] = 0
    np.testing.assert_array_equal(fr.decode_image(data), np.asarray(image))


def test_a_jpeg_within_a_tiff_differs_from_pillow_by_one_at_most() -> None:
    data = save(picture(), "TIFF", compression="jpeg")
    assert int(np.abs(fr.decode_image(data).astype(int) - reference(data)).max()) <= 1


def test_what_the_first_frame_of_a_gif_does_not_cover_is_black() -> None:
    image = picture(20, 10, mode="P")
    data = bytearray(save(image, "GIF"))
    data[6:10] = struct.pack("<HH", 30, 20)
    found = fr.decode_image(data)
    np.testing.assert_array_equal(found[:10, :20], np.asarray(image.convert("RGB")))
    assert found.shape == (20, 30, 3)
    assert not found[10:].any()
    assert not found[:, 20:].any()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (save(picture(mode="P"), "TIFF"), "this kind of TIFF is not supported: Photometric interpretation RGBPalette"),
        (save(picture(mode="F"), "TIFF"), "this kind of TIFF is not supported: pixels of "),
        (save(picture(32, 32), "ICO"), "this kind of image is not supported: ICO"),
        (save(picture(32, 32), "AVIF"), "this kind of image is not supported: AVIF"),
        (save(picture(32, 32), "PCX"), "not an image of a known type: "),
        (b"", "not an image of a known type: 0 bytes"),
        (b"hello, world", "not an image of a known type: 12 bytes, the first are 68 65 6c 6c 6f 2c 20 77"),
        (SOI + b"\xff", "the JPEG is truncated: "),
    ],
)
def test_what_is_not_decoded_is_named_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(fr.errors.DecodeError) as error:
        fr.decode_image(data)
    assert str(error.value).startswith(reason)


# --- EXIF ---


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_is_ignored_by_default_and_applied_as_pillow_does_on_demand(orientation: int) -> None:
    for data in (
        with_segment(jpeg(61, 43), 0xE1, exif(orientation)),
        save(picture(61, 43), "PNG", exif=exif(orientation)[6:]),
        save(picture(61, 43), "WEBP", exif=exif(orientation)[6:], lossless=True),
    ):
        with Image.open(io.BytesIO(data)) as image:
            upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert upright.shape == ((61, 43, 3) if orientation > 4 else (43, 61, 3))
        np.testing.assert_array_equal(fr.decode_image(data, exif_orientation=True), upright)
        np.testing.assert_array_equal(fr.decode_image(data), reference(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_tiff_is_that_of_other_formats(orientation: int, tmp_path: Path) -> None:
    image = picture(61, 43)
    data = save(image, "TIFF", tiffinfo={0x112: orientation})
    exif_image = Image.open(io.BytesIO(with_segment(jpeg(61, 43), 0xE1, exif(orientation))))
    turned = ImageOps.exif_transpose(exif_image).size
    np.testing.assert_array_equal(fr.decode_image(data), np.asarray(image))
    upright = fr.decode_image(data, exif_orientation=True)
    # Pillow always applies the orientation of TIFFs.
    np.testing.assert_array_equal(upright, reference(data))
    assert (upright.shape[1], upright.shape[0]) == turned
    path = write_payloads(tmp_path / "x.frec", [data])
    stored, _ = fr.FastRecordDataset(path)[0]
    native, _ = fr.FastRecordDataset(path, decode="native")[0]
    np.testing.assert_array_equal(np.asarray(stored), np.asarray(image))
    np.testing.assert_array_equal(native.permute(1, 2, 0).numpy(), np.asarray(image))
    pack_with(write(tmp_path / "src", {"a/0.tif": data}), tmp_path / "small.frec", short_side=20)
    ((small, *_),) = records(tmp_path / "small.frec")
    with Image.open(io.BytesIO(small)) as shrunk:
        assert shrunk.size == (28, 20)
        assert shrunk.getexif().get(0x112, 1) == orientation


# --- truncated, damaged and too large ---


@pytest.mark.parametrize("truncated", ["reject", "accept"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_lacks_its_end_marker_alone_is_whole(truncated: str, progressive: bool) -> None:
    data = jpeg(progressive=progressive)
    np.testing.assert_array_equal(fr.decode_image(data[:-2], truncated=truncated), reference(data))


def test_an_image_above_the_limit_is_refused_with_both_numbers() -> None:
    assert fr.decode_image(jpeg(20, 10), max_pixels=200).shape == (10, 20, 3)
    for data in (jpeg(20, 10), save(picture(20, 10), "PNG")):
        with pytest.raises(fr.errors.DecodeError, match="20 x 10 pixels are more than the limit of 199"):
            fr.decode_image(data, max_pixels=199)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncated": "maybe"}, 'truncated is "reject" or "accept", not "maybe"'),
        ({"max_pixels": 0}, "max_pixels is at least 1"),
    ],
)
def test_other_values_of_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fr.decode_image(jpeg(), **options)


# --- crops ---


def mean_difference(ours: NDArray[np.uint8], theirs: Image.Image) -> float:
    assert ours.shape == np.asarray(theirs).shape
    return float(np.abs(ours.astype(int) - np.asarray(theirs)).mean())


SOURCES = {
    "JPEG 4:4:4": lambda: jpeg(400, 300, subsampling="4:4:4"),
    "JPEG 4:2:0": lambda: jpeg(400, 300, subsampling="4:2:0"),
    "large JPEG": lambda: jpeg(1600, 1200, subsampling="4:2:0"),
    "progressive JPEG": lambda: jpeg(640, 480, progressive=True),
    "grey JPEG": lambda: jpeg(401, 303, mode="L"),
    "CMYK JPEG": lambda: jpeg(401, 303, mode="CMYK"),
    "small JPEG": lambda: jpeg(37, 29),
    "PNG": lambda: save(picture(401, 303), "PNG"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_random_and_center_crops_are_those_of_pillow(source: str) -> None:
    data = SOURCES[source]()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    torch.manual_seed(0)
    for _ in range(10):
        y, x, h, w = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        theirs = transform.resized_crop(image, y, x, h, w, [224, 224], InterpolationMode.BILINEAR)
        ours = _core.crop_image(data, (x, y, w, h), (x, y, w, h), (224, 224))
        assert mean_difference(ours, theirs) <= LIMIT
    resized = transform.resize(image, 256)
    left, top = round((resized.width - 224) / 2), round((resized.height - 224) / 2)
    sx, sy = image.width / resized.width, image.height / resized.height
    ours = _core.crop_image(data, (left * sx, top * sy, 224 * sx, 224 * sy), (0, 0, *image.size), (224, 224))
    assert mean_difference(ours, transform.center_crop(resized, 224)) <= LIMIT


def test_a_part_in_its_own_size_is_the_part_of_the_whole() -> None:
    for kind, make in KINDS.items():
        if kind in ("grey PNG of 16 bits", "TIFF of 16 bits"):
            continue  # an error
        data = make()
        whole = fr.decode_image(data)
        height, width = whole.shape[:2]
        x, y = width // 3, height // 4
        w, h = max(1, width // 2), max(1, height // 2)
        found = _core.crop_image(data, (x, y, w, h), (x, y, w, h), (w, h))
        np.testing.assert_array_equal(found, whole[y : y + h, x : x + w])


# --- random crops ---


def distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Return the largest difference between the two distribution functions."""
    at = np.concatenate([ours, theirs])
    shares = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (ours, theirs)]
    return float(np.abs(shares[0] - shares[1]).max())


def views(boxes: NDArray[Any]) -> list[NDArray[Any]]:
    x, y, w, h = boxes.astype(float).T
    return [x, y, w, h, w * h, w / h, x + w, y + h, x * y]


def drawn_by_torchvision(
    size: tuple[int, int], n: int, scale: Sequence[float], ratio: Sequence[float]
) -> NDArray[np.int64]:
    torch.manual_seed(0)
    image = torch.empty(1, size[1], size[0])
    rows = (RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(n))
    return np.array([(x, y, w, h) for y, x, h, w in rows])


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((64, 400), (0.08, 1.0), (3 / 4, 4 / 3)),  # some tries fail
        ((7, 5), (0.08, 1.0), (3 / 4, 4 / 3)),  # rounding matters
        ((300, 300), (0.9, 1.0), (0.5, 2.0)),
        ((300, 200), (0.25, 0.25), (1.0, 1.0)),
    ],
)
def test_random_crops_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    n = 8_000
    boxes = _core.draw_crops(size, n, 1, scale, ratio)
    theirs = drawn_by_torchvision(size, n, scale, ratio)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= size[0]).all()
    assert (boxes[:, 1] + boxes[:, 3] <= size[1]).all()
    # Two-sample Kolmogorov-Smirnov, at 1e-5 for each of the nine; the seeds are fixed.
    limit = math.sqrt(-math.log(1e-5 / 2) / n)
    for ours, others in zip(views(boxes), views(theirs), strict=True):
        assert distance(ours, others) < limit


@pytest.mark.parametrize("size", [(1000, 30), (30, 1000), (400, 1), (1, 400), (1, 1)])
def test_where_no_try_fits_the_central_part_is_torchvisions(size: tuple[int, int]) -> None:
    scale, ratio = (0.9, 1.0), (3 / 4, 4 / 3)
    ours = _core.draw_crops(size, 50, 1, scale, ratio)
    theirs = drawn_by_torchvision(size, 50, scale, ratio)
    assert len(np.unique(theirs, axis=0)) == 1
    np.testing.assert_array_equal(ours, theirs)
