"""A possible mask beside another image: refused before resizing mixes its numbers."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fastrecord as fr
from fastrecord.transforms import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from tests.support.loading import make
from tests.support.pictures import picture, save

IDS = np.random.default_rng(0).choice(np.array([0, 7, 200], np.uint8), (48, 60))
GREY = save(Image.fromarray(IDS), "PNG")
PALETTE = save(Image.fromarray(IDS).convert("P"), "PNG")
MASKS = {
    "palette PNG": (PALETTE, "an image with a palette"),
    "GIF": (save(Image.fromarray(IDS), "GIF"), "an image with a palette"),
    "palette BMP": (save(Image.fromarray(IDS), "BMP"), "an image with a palette"),
    "palette TIFF": (save(Image.fromarray(IDS).convert("P"), "TIFF"), "an image with a palette"),
    "grey PNG": (GREY, "an image of one channel"),
    "grey PNG with alpha": (save(Image.fromarray(IDS).convert("LA"), "PNG"), "an image of one channel"),
    "PNG of 1 bit": (save(Image.fromarray(IDS).convert("1"), "PNG"), "an image of one channel"),
    "grey TIFF": (save(Image.fromarray(IDS), "TIFF"), "an image of one channel"),
    "PGM": (save(Image.fromarray(IDS), "PPM"), "an image of one channel"),
    "grey JPEG": (save(Image.fromarray(IDS), "JPEG"), "an image of one channel"),
    "grey JPEG 2000": (save(Image.fromarray(IDS), "JPEG2000"), "an image of one channel"),
}
RGB = save(picture(60, 48), "PNG")


def write(path: Path, rows: list[tuple[bytes, bytes]]) -> Path:
    with fr.Writer(path, fr.Schema({"image": fr.image(), "mask": fr.image()})) as writer:
        for image, mask in rows:
            writer.append({"image": image, "mask": mask})
    return path


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("resized", [RandomResizedCrop(24), Resize(24), CenterCrop(24, resize=30)])
def test_one_in_a_further_field_is_an_error_that_names_it(tmp_path: Path, kind: str, resized: object) -> None:
    mask, what = MASKS[kind]
    path = write(tmp_path / "x.frec", [(RGB, RGB), (RGB, mask)])
    with pytest.raises(
        fr.errors.DecodeError, match=rf"x\.frec: record 1, field mask: {what} .*store masks as arrays.*FR517"
    ):
        list(make(path, 2, image={"image": resized, "mask": resized}))
    # For any order of the fields: the image is the data set's.
    loader = make(path, 2, image={"mask": resized, "image": resized}, on_error="skip")
    (images,) = loader
    assert [len(tensor) for tensor in images.values()] == [1, 1]
    assert "field mask" in loader.skipped[0].reason


def test_the_first_image_and_a_single_one_may_be_of_any_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(mask, RGB) for mask, _ in MASKS.values()])
    with pytest.warns(UserWarning, match="Pillow decodes"):
        (images,) = make(path, 20, image={"image": Resize(24), "mask": Resize(24)})
    assert images["image"].shape == (len(MASKS), 3, 24, 24)
    dataset = fr.FastRecordDataset(path, image_field="image")
    with pytest.warns(UserWarning, match="Pillow decodes"):
        assert sum(len(batch) for batch in make(dataset, 20, image=Resize(24))) == len(MASKS)


def test_grey_that_is_not_resized_keeps_its_values(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(RGB, GREY)])
    for crop in (RandomCrop(32), CenterCrop(32)):
        (images,) = make(path, 1, image={"image": crop, "mask": crop}, flip=False)
        assert set(torch.unique(images["mask"]).tolist()) == {0, 7, 200}
    path = write(tmp_path / "y.frec", [(RGB, PALETTE)])
    with pytest.raises(fr.errors.DecodeError, match="record 0, field mask: an image with a palette"):
        list(make(path, 1, image={"image": RandomCrop(32), "mask": RandomCrop(32)}))


@pytest.mark.parametrize("kind", ["palette PNG", "grey PNG", "GIF", "palette BMP"])
def test_the_way_out_that_the_error_names_keeps_the_numbers(tmp_path: Path, kind: str) -> None:
    mask, _ = MASKS[kind]
    path = write(tmp_path / "x.frec", [(RGB, mask)] * 3)
    crops = {"image": Resize(24), "mask": Resize(24)}
    with pytest.raises(fr.errors.DecodeError, match=re.escape("leave the field out of image=, which gives its bytes")):
        list(make(path, 3, image=crops))

    def assert_kept(value: bytes) -> None:
        with Image.open(io.BytesIO(value)) as image:
            assert image.mode in ("P", "L")
            # GIF and BMP are written with palettes of their own.
            assert len(np.unique(np.asarray(image))) == 3
            if "PNG" in kind:
                np.testing.assert_array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(mask))))

    dataset = fr.FastRecordDataset(path, fields=("image", "mask"))
    with pytest.warns(UserWarning, match="'mask' come as they are stored"):
        (batch,) = make(dataset, 3, image={"image": RandomCrop(24)})
    for value in (*batch["mask"], fr.FastRecordDataset(path, fields=("mask",), decode=None)[2]["mask"]):
        assert_kept(value)
    # What is no way out: RGB.
    rgb = fr.FastRecordDataset(path, fields=("mask",))[0]["mask"]
    assert rgb.mode == "RGB"
