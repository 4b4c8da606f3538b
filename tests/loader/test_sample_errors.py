"""What is no sample is refused when the loader is made, in words that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord.transforms import (
    AugMix,
    CenterCrop,
    ColorJitter,
    Decode,
    FiveCrop,
    GaussianBlur,
    Letterbox,
    Like,
    Pad,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    Resize,
    ToFloat,
    View,
)
from tests.support.loading import make
from tests.support.pictures import picture, save

CROP = RandomResizedCrop(8)
# For arguments of wrong types.
any_view: Any = View
any_like: Any = Like
FIELDS: dict[str, Any] = {
    "image": fr.image(),
    "mask": fr.image(),
    "classes": fr.array("int32", (None, None)),
    "floats": fr.array("float32", (48, 60)),
    "planes": fr.array("float32", (3, 48, None)),
    "flat": fr.array("uint8", (5,)),
    "tiny": fr.array("bool", (6, 7)),
    "boxes": fr.array("float32", (None, 4)),
    "points": fr.array("float32", (3, 2)),
    "deep": fr.array("float32", (2, 3, 4)),
    "label": "int64",
    "key": fr.string(),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("errors") / "x.frec"
    with fr.Writer(made, fr.Schema(FIELDS)) as writer:
        record: dict[str, Any] = {"image": save(picture(60, 48), "PNG"), "mask": save(picture(60, 48, "L"), "PNG")}
        for name, kind in FIELDS.items():
            if isinstance(kind, fr.FieldType) and kind.name == "array":
                record[name] = np.zeros([dim or 48 for dim in kind.shape or ()], kind.dtype)
        writer.append({**record, "boxes": np.ones((1, 4), np.float32), "label": 1, "key": "a"})
    return made


# --- lists ---


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: View("image", []), TypeError, "a list begins with the crop"),
        (
            lambda: View("image", [RandomHorizontalFlip()]),
            TypeError,
            r"begins with the crop, .*, not RandomHorizontalFlip",
        ),
        (lambda: any_view("image", "crop"), TypeError, "transforms"),
        (lambda: any_view("image", 3), TypeError, "transforms"),
        (lambda: View("image", [CROP, ToFloat(), ToFloat()]), ValueError, "a list has one ToFloat"),
        (lambda: View("image", [CROP, RandomInvert(), CenterCrop(4)]), ValueError, "comes at the start of a list"),
        (lambda: View("image", [CROP, Decode(1)]), ValueError, "comes at the start of a list"),
        (
            lambda: any_view("image", [CROP, torch.nn.Identity()]),
            TypeError,
            "is not a transform of fastrecord.transforms",
        ),
        (
            lambda: View("image", [CROP, ToFloat(), RandomInvert()]),
            ValueError,
            "only RandomErasing can follow, not RandomInvert",
        ),
        (lambda: View("image", [Resize(8)]), ValueError, r"end Resize\(size=8, .* or write Resize\(\(8, 8\)\)"),
        (lambda: View("image", [Pad(8)]), ValueError, r"end Pad\(.*with CenterCrop\(\.\.\.\), or write a crop"),
        (lambda: View("image", [CROP, CenterCrop(4)]), ValueError, "RandomResizedCrop does not come before CenterCrop"),
        (
            lambda: View("image", [Pad(2), Resize(8), CenterCrop(4)]),
            ValueError,
            "Resize does not come before CenterCrop",
        ),
        (lambda: View("image", [Pad(2), Letterbox(8)]), ValueError, "Pad does not come before Letterbox"),
        (lambda: View("image", [Resize(8), CROP]), ValueError, "Resize does not come before RandomResizedCrop"),
        (lambda: View("image", [Resize(8), CenterCrop(9)]), ValueError, "does not fit into images resized to 8 pixels"),
        (lambda: View("image", [Pad(2, 1), RandomCrop(8, 2, fill=3)]), ValueError, "a border has one colour"),
        (lambda: View("image", FiveCrop(8), 4), ValueError, "FiveCrop makes 5 views, not 4"),
        (lambda: View("image", CROP, 0), ValueError, "count is from 1 to"),
        (lambda: View("image", CROP, 5000), ValueError, "count is from 1 to"),
        (lambda: any_view("image", CROP, 1.5), TypeError, "count is an int, not float"),
        (lambda: Decode(2), ValueError, "channels is 1, 3 or 4, not 2"),
        (lambda: Decode(bits=12), ValueError, "bits is 8 or 16, not 12"),
        (lambda: Decode(4, bits=16), ValueError, "images with alpha have 8 bits"),
        (lambda: Like("image", [CROP]), ValueError, "comes at the start of a list|follows"),
        (lambda: Like("image", size=0), ValueError, "size: height is from 1 to 65535"),
        (lambda: Like("image", interpolation="bicubic"), ValueError, 'interpolation is "nearest" or "bilinear"'),
        (lambda: Like("image", boxes="xxyy"), ValueError, 'boxes is "xyxy", "xywh" or "cxcywh", not'),
        (lambda: any_like("image", keypoints=1), TypeError, "keypoints is True or False, not 1"),
        (lambda: any_like("image", fill="0"), TypeError, "fill is a number, not '0'"),
        (lambda: Like("image", boxes="xyxy", min_size=-1), ValueError, "min_size is at least 0, not -1"),
        (lambda: Like("image", boxes="xyxy", keypoints=True), ValueError, "boxes and keypoints go with min_size alone"),
        (lambda: Like("image", boxes="xyxy", size=8), ValueError, "boxes and keypoints go with min_size alone"),
        (lambda: Like("image", [RandomInvert()], keypoints=True), ValueError, "go with min_size alone"),
        (lambda: ToFloat(mean=(0.5, 0.5)), ValueError, "mean and std have a number for each channel"),
        (lambda: ToFloat("float64"), ValueError, 'dtype is "float32", "float16" or "bfloat16"'),
        (lambda: ToFloat(std=[0, 1, 1]), ValueError, "std is at least 1e-09, not 0"),
        (lambda: ToFloat(layout="nhwc"), ValueError, 'layout is "channels_last" or "nchw"'),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(made: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made()


# --- against the fields ---


SCHEMA_ERROR = fr.errors.SchemaError
LEAD: dict[str, Any] = {"image": CROP}


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ([CROP], ValueError, r"in fields mode, .*write sample=\{'image': \[transforms.CenterCrop\(224\)\]\}"),
        ({}, ValueError, "sample= names no output"),
        ({"image": 8}, TypeError, "the transforms of 'image' are of fastrecord.transforms, .*, not int"),
        ({"image": "crop"}, TypeError, "not str"),
        ({"image": [len, CROP]}, TypeError, "not builtin_function_or_method"),
        ({"image": None}, TypeError, "not NoneType"),
        ({"nowhere": CROP}, SCHEMA_ERROR, "'nowhere' for 'nowhere', which is not among the data set's fields"),
        ({"a": View("nowhere", CROP)}, SCHEMA_ERROR, "'nowhere' for 'a', which is not among the data set's fields"),
        ({"key": CROP}, SCHEMA_ERROR, "field 'key' holds string, not images"),
        ({**LEAD, "key": Like("image")}, SCHEMA_ERROR, "field 'key' holds string, not images"),
        ({**LEAD, "other": Like("image")}, SCHEMA_ERROR, "'other' for 'other', which is not among"),
        (
            {"mask": Like("image")},
            ValueError,
            "'mask' follows 'image', which is not an output with its own crop: add 'image'",
        ),
        (
            {**LEAD, "mask": Like("image"), "floats": Like("mask")},
            ValueError,
            r"'floats' follows 'mask', .*: follow 'image'",
        ),
        ({"image": [CROP, AugMix()], "mask": Like("image")}, ValueError, "'mask' cannot follow 'image': AugMix"),
        ({"image": [CROP, RandomApply([AugMix()])], "boxes": Like("image", boxes="xyxy")}, ValueError, "cannot follow"),
        (
            {**LEAD, "planes": Like("image")},
            SCHEMA_ERROR,
            r"arrays of shape \(3, 48, None\): those that are cropped are",
        ),
        ({**LEAD, "flat": Like("image")}, SCHEMA_ERROR, r"arrays of shape \(5,\): those that are cropped are \(H, W\)"),
        ({**LEAD, "tiny": Like("image")}, SCHEMA_ERROR, "of at most 64 bytes, which lie in the index"),
        ({"deep": RandomCrop(2)}, None, ""),
        (
            {"image": [CROP, RandomApply([GaussianBlur(17)])]},
            ValueError,
            "a kernel of 17 x 17 is too large for images of 8",
        ),
        ({"image": [CROP, GaussianBlur(15)]}, None, ""),
        ({"classes": CROP}, ValueError, "arrays of int32 are cropped, not resized: write RandomCrop or CenterCrop"),
        ({"classes": [Resize(9), CenterCrop(8)]}, ValueError, "arrays of int32 are cropped, not resized"),
        (
            {"classes": [RandomCrop(8), ColorJitter(0.1)]},
            ValueError,
            "'classes': ColorJitter needs RGB or grey",
        ),
        (
            {"classes": [RandomCrop(8), ToFloat(mean=[0], std=[1])]},
            ValueError,
            "ToFloat takes uint8, uint16 and float32, not int32",
        ),
        (
            {**LEAD, "classes": Like("image", interpolation="bilinear")},
            ValueError,
            "arrays of int32 are not blended: write",
        ),
        (
            {"floats": [CROP, ToFloat()]},
            ValueError,
            "'floats' has 1 channel, and ToFloat statistics of 3: write mean= and std= with a number",
        ),
        ({**LEAD, "mask": Like("image", [ToFloat()], interpolation="nearest")}, ValueError, "with a number"),
        (
            {**LEAD, "mask": Like("image", [RandomInvert()], interpolation="nearest")},
            ValueError,
            "RandomInvert needs RGB or grey",
        ),
        (
            {"image": [Decode(4), CROP, ToFloat()]},
            ValueError,
            "4 channels, and ToFloat statistics of 3: write mean= and std= with 4 numbers",
        ),
        (
            {"image": [Decode(1), CROP, ToFloat()]},
            ValueError,
            "ToFloat statistics of 3: write mean= and std= with a number",
        ),
        (
            {"image": [Decode(4), CROP, ColorJitter(0.1)]},
            ValueError,
            "ColorJitter needs RGB or grey of 8 bits",
        ),
        ({"image": [Decode(bits=16), CROP, RandomErasing()]}, ValueError, "RandomErasing needs RGB or grey"),
        (
            {**LEAD, "label": Like("image", boxes="xyxy")},
            SCHEMA_ERROR,
            r"field 'label' has no boxes, arrays \(N, 4\), but int64",
        ),
        ({**LEAD, "points": Like("image", boxes="xyxy")}, SCHEMA_ERROR, "field 'points' has no boxes"),
        ({**LEAD, "boxes": Like("image", keypoints=True)}, SCHEMA_ERROR, "field 'boxes' has no keypoints"),
        ({**LEAD, "deep": Like("image", boxes="xyxy")}, SCHEMA_ERROR, "field 'deep' has no boxes"),
        ({**LEAD, "gone": Like("image", boxes="xyxy")}, SCHEMA_ERROR, "sample= names 'gone', which is not among"),
        ({"a": View("image", CROP, 2), "boxes": Like("a", boxes="xyxy")}, ValueError, "'a', which has several views"),
        ({"boxes": Like("image", boxes="xyxy")}, ValueError, "'boxes' follows 'image', which is not an output"),
    ],
)
def test_a_sample_that_contradicts_the_fields_is_refused(
    path: Path, sample: Any, error: type[Exception] | None, message: str
) -> None:
    data = fr.FastRecordDataset(path, fields=tuple(FIELDS))
    if error is None:
        make(data, 1, sample=sample)
        return
    with pytest.raises(error, match=message):
        make(data, 1, sample=sample)


def test_floats_are_made_once(path: Path) -> None:
    data = fr.FastRecordDataset(path, image_field="image")
    twice: list[Any] = [[CROP, ToFloat()], {"image": [CROP, ToFloat()]}]
    for given in twice:
        with pytest.raises(ValueError, match="the images become floats twice: leave out ToFloat, or dtype of delivery"):
            make(data, 1, sample=given, dtype=torch.float32)
    # Masks stay what they are.
    sample = {**LEAD, "mask": Like("image", interpolation="nearest")}
    (batch,) = make(fr.FastRecordDataset(path, fields=("image", "mask")), 1, sample=sample, dtype=torch.float16)
    assert (batch["image"].dtype, batch["mask"].dtype) == (torch.float16, torch.uint8)
