"""Lists of torchvision's transforms as this package's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.models import EfficientNet_B7_Weights, ResNet50_Weights, ViT_H_14_Weights
from torchvision.transforms import InterpolationMode, v2

import fastrecord as fr
from fastrecord import transforms as T  # noqa: N812
from fastrecord.transforms import twins
from fastrecord.transforms.pipeline import Pipeline

both = pytest.mark.parametrize("tv", [v1, v2], ids=["v1", "v2"])
BILINEAR, BICUBIC, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.NEAREST
# A transform of either version, and its twin.
TWINS: list[tuple[Callable[[Any], Any], Any]] = [
    (
        lambda tv: tv.RandomResizedCrop((96, 128), (0.2, 0.9), (0.5, 2)),
        T.RandomResizedCrop((96, 128), (0.2, 0.9), (0.5, 2)),
    ),
    (lambda tv: tv.RandomResizedCrop(96), T.RandomResizedCrop(96)),
    (lambda tv: tv.CenterCrop(96), T.CenterCrop(96)),
    (lambda tv: tv.RandomCrop((32, 48)), T.RandomCrop((32, 48))),
    (lambda tv: tv.RandomCrop(32, 4), T.RandomCrop(32, 4)),
    (lambda tv: tv.RandomCrop(32, [4, 4]), T.RandomCrop(32, 4)),
    (lambda tv: tv.RandomCrop(32, (1, 2, 3, 4), fill=(7, 8, 9)), T.RandomCrop(32, (1, 2, 3, 4), fill=(7, 8, 9))),
    (lambda tv: tv.RandomCrop(32, (1, 2), fill=5), T.RandomCrop(32, (1, 2), fill=5)),
    (lambda tv: tv.RandomResizedCrop(96, interpolation=BICUBIC), T.RandomResizedCrop(96, interpolation="bicubic")),
    (lambda tv: tv.Resize(96), T.Resize(96)),
    (lambda tv: tv.Resize([96]), T.Resize(96)),
    (lambda tv: tv.Resize((96, 64), BICUBIC), T.Resize((96, 64), "bicubic")),
    (lambda tv: tv.Resize(96, max_size=128), T.Resize(96, max_size=128)),
    (lambda tv: tv.Pad(3), T.Pad(3)),
    (lambda tv: tv.Pad([1, 2], 9), T.Pad((1, 2), 9)),
    (lambda tv: tv.Pad((1, 2, 3, 4), (7, 8, 9)), T.Pad((1, 2, 3, 4), (7, 8, 9))),
    (lambda tv: tv.FiveCrop((9, 8)), T.FiveCrop((9, 8))),
    (lambda tv: tv.RandomHorizontalFlip(0.3), T.RandomHorizontalFlip(0.3)),
    (lambda tv: tv.RandomVerticalFlip(), T.RandomVerticalFlip()),
    (lambda tv: tv.RandomRotation(30), T.RandomRotation(30)),
    (
        lambda tv: tv.RandomRotation((-5, 60), BILINEAR, center=(3, 4), fill=(1, 2, 3)),
        T.RandomRotation((-5, 60), "bilinear", (3, 4), (1, 2, 3)),
    ),
    (
        lambda tv: tv.RandomAffine(10, (0.1, 0.2), (0.5, 2), (-3, 4, 5, 6), BILINEAR, 7, (8, 9)),
        T.RandomAffine(10, (0.1, 0.2), (0.5, 2), (-3, 4, 5, 6), "bilinear", 7, (8, 9)),
    ),
    (lambda tv: tv.RandomAffine(0, shear=4), T.RandomAffine(0, shear=4)),
    (lambda tv: tv.RandomPerspective(0.3, 0.9, NEAREST, 5), T.RandomPerspective(0.3, 0.9, "nearest", 5)),
    (lambda tv: tv.RandomPerspective(), T.RandomPerspective()),
    (lambda tv: tv.ColorJitter(0.4, (0.5, 2), 0, (-0.1, 0.3)), T.ColorJitter(0.4, (0.5, 2), None, (-0.1, 0.3))),
    (lambda tv: tv.ColorJitter(hue=0.1), T.ColorJitter(hue=0.1)),
    (lambda tv: tv.Grayscale(3), T.RandomGrayscale(1.0)),
    (lambda tv: tv.RandomGrayscale(0.2), T.RandomGrayscale(0.2)),
    (lambda tv: tv.GaussianBlur((5, 9), (0.2, 3)), T.GaussianBlur((5, 9), (0.2, 3))),
    (lambda tv: tv.GaussianBlur(3, 1.5), T.GaussianBlur(3, 1.5)),
    (lambda tv: tv.RandomSolarize(99.5, 0.3), T.RandomSolarize(99.5, 0.3)),
    (lambda tv: tv.RandomPosterize(3, 0.3), T.RandomPosterize(3, 0.3)),
    (lambda tv: tv.RandomInvert(0.3), T.RandomInvert(0.3)),
    (lambda tv: tv.RandomEqualize(0.3), T.RandomEqualize(0.3)),
    (lambda tv: tv.RandomAutocontrast(0.3), T.RandomAutocontrast(0.3)),
    (lambda tv: tv.RandomAdjustSharpness(1.5, 0.3), T.RandomAdjustSharpness(1.5, 0.3)),
    (lambda tv: tv.RandomErasing(0.3, (0.1, 0.2), (0.5, 1.5), 9), T.RandomErasing(0.3, (0.1, 0.2), (0.5, 1.5), 9)),
    (lambda tv: tv.RandomErasing(value=(1, 2, 3)), T.RandomErasing(value=(1, 2, 3))),
    (lambda tv: tv.RandAugment(3, 5, 11, BILINEAR, [9.0] * 3), T.RandAugment(3, 5, 11, "bilinear", 9)),
    (lambda tv: tv.RandAugment(), T.RandAugment()),
    (lambda tv: tv.TrivialAugmentWide(9, BILINEAR, 3), T.TrivialAugmentWide(9, "bilinear", 3)),
    (lambda tv: tv.AutoAugment(interpolation=BILINEAR), T.AutoAugment("bilinear")),
    (lambda tv: tv.AugMix(4, 2, 5, 0.5, False, NEAREST, 1), T.AugMix(4, 2, 5, 0.5, False, "nearest", 1)),
    (lambda tv: tv.AugMix(), T.AugMix()),
    (lambda tv: tv.RandomApply([tv.ColorJitter(0.4)], 0.8), T.RandomApply([T.ColorJitter(0.4)], 0.8)),
    (
        lambda tv: tv.RandomApply(nn.ModuleList([tv.RandomInvert(), tv.RandomEqualize()])),
        T.RandomApply([T.RandomInvert(), T.RandomEqualize()]),
    ),
    (
        lambda tv: tv.RandomChoice([tv.RandomInvert(), tv.RandomEqualize()], p=[0.25, 0.75]),
        T.RandomChoice([T.RandomInvert(), T.RandomEqualize()], [0.25, 0.75]),
    ),
    (
        lambda tv: tv.RandomOrder([tv.RandomInvert(), tv.Compose([tv.RandomGrayscale(), tv.RandomEqualize()])]),
        T.RandomOrder([T.RandomInvert(), T.RandomApply([T.RandomGrayscale(), T.RandomEqualize()], 1.0)]),
    ),
    (
        lambda tv: tv.RandomApply([tv.RandomApply([tv.RandomInvert(1.0)]), tv.RandomSolarize(9)]),
        T.RandomApply([T.RandomApply([T.RandomInvert(1.0)]), T.RandomSolarize(9)]),
    ),
]


@both
@pytest.mark.parametrize(
    ("transform", "twin"), TWINS, ids=lambda value: str(value)[:60] if isinstance(value, T.Operation) else ""
)
def test_a_transform_becomes_its_twin(tv: Any, transform: Callable[[Any], Any], twin: Any) -> None:
    assert T.from_torchvision(transform(tv)) == [twin]


@both
def test_a_twin_takes_over_each_argument_or_checks_it(tv: Any) -> None:
    for name, twin in {**twins._TWINS, "RandomChoice": T.RandomChoice, "RandomApply": T.RandomApply}.items():
        theirs = set(inspect.signature(getattr(tv, name)).parameters) - {"inplace"}
        ours = {field.name for field in fields(twin)}
        assert theirs <= ours | set(twins._FIXED), name


@both
def test_twins_have_the_same_defaults(tv: Any) -> None:
    required: dict[str, Any] = {
        "GaussianBlur": 3,
        "RandomAdjustSharpness": 2,
        "RandomPosterize": 4,
        "RandomSolarize": 9,
    }
    required |= dict.fromkeys(("CenterCrop", "FiveCrop", "Pad", "RandomCrop", "RandomResizedCrop", "Resize"), 9)
    required |= dict.fromkeys(("RandomAffine", "RandomRotation"), 9)
    for name, twin in twins._TWINS.items():
        given = [required[name]] if name in required else []
        assert T.from_torchvision(getattr(tv, name)(*given)) == [twin(*given)]


@both
def test_the_published_recipe_is_converted(tv: Any) -> None:
    floats = [v1.ToTensor()] if tv is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    recipe = tv.Compose(
        [
            tv.RandomResizedCrop(176, antialias=True),
            tv.RandomHorizontalFlip(),
            tv.TrivialAugmentWide(),
            *floats,
            tv.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            tv.RandomErasing(0.1),
        ]
    )
    made = T.from_torchvision(recipe)
    assert made == [
        T.RandomResizedCrop(176),
        T.RandomHorizontalFlip(),
        T.TrivialAugmentWide(),
        T.ToFloat("float32"),
        T.RandomErasing(0.1),
    ]
    assert Pipeline.of(made).after == (T.RandomErasing(0.1),)


def test_the_transforms_of_published_weights_are_converted() -> None:
    for weights in (ResNet50_Weights.IMAGENET1K_V1, EfficientNet_B7_Weights.IMAGENET1K_V1, ViT_H_14_Weights.DEFAULT):
        theirs = weights.transforms()
        made = T.from_torchvision(theirs)
        assert made == [
            T.Resize(theirs.resize_size[0], theirs.interpolation.value),
            T.CenterCrop(theirs.crop_size[0]),
            T.ToFloat("float32", theirs.mean, theirs.std),
        ]
        image = v2.functional.to_image(np.random.default_rng(0).integers(0, 256, (700, 600, 3), np.uint8))
        wanted = theirs(image).shape[-2:]
        pipeline = Pipeline.of(made)
        assert pipeline.frame is not None
        assert pipeline.frame.size == tuple(wanted)


CONVERSIONS: list[tuple[list[Any], T.ToFloat]] = [
    ([v2.ToDtype(torch.float16, scale=True)], T.ToFloat("float16", [0] * 3, [1] * 3)),
    (
        [v2.ToImage(), v2.ToDtype(torch.uint8), v2.ToDtype(torch.bfloat16, scale=True)],
        T.ToFloat("bfloat16", [0] * 3, [1] * 3),
    ),
    ([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)], T.ToFloat("float32", [0] * 3, [1] * 3)),
    ([v1.ToTensor(), v1.Normalize([0.5], [0.25])], T.ToFloat("float32", [0.5] * 3, [0.25] * 3)),
    (
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1, 0.2, 0.3], [1, 2, 3]), v2.ToDtype(torch.float16)],
        T.ToFloat("float16", [0.1, 0.2, 0.3], [1, 2, 3]),
    ),
    ([v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor(), v2.Identity()], T.ToFloat("float32", [0] * 3, [1] * 3)),
]


@pytest.mark.parametrize(("transforms", "made"), CONVERSIONS)
def test_conversions_to_floats_become_one(transforms: list[Any], made: T.ToFloat) -> None:
    assert T.from_torchvision(transforms) == [made]


def test_lists_in_lists_become_one_list() -> None:
    nested = [
        v2.RandomResizedCrop(32),
        v2.Compose([v2.RandomHorizontalFlip(), v2.Compose([v2.RGB()])]),
        nn.Sequential(v2.RandomInvert(), v2.RandomEqualize()),
        [v2.RandomGrayscale()],
    ]
    flat = [
        T.RandomResizedCrop(32),
        T.RandomHorizontalFlip(),
        T.RandomInvert(),
        T.RandomEqualize(),
        T.RandomGrayscale(),
    ]
    assert T.from_torchvision(nested) == flat
    assert T.from_torchvision([]) == []


def test_a_choice_keeps_the_share_of_what_does_nothing() -> None:
    made = T.from_torchvision(v2.RandomChoice([v2.RandomInvert(1.0), v2.Identity()]))
    assert made == [T.RandomChoice([T.RandomInvert(1.0), T.ColorJitter()], [0.5, 0.5])]


class Derived(v2.RandomInvert):  # type: ignore[misc]
    """Another class, which may do something else."""


FAULTS: list[tuple[Any, str]] = [
    (v2.RandomResizedCrop(9, interpolation=NEAREST), "interpolation is .* not 'nearest'"),
    (v2.RandomResizedCrop(9, interpolation=5), "interpolation is .* not 'hamming'"),
    (v2.RandomResizedCrop(9, antialias=False), "antialias is True, not False"),
    (v2.RandomRotation(9, expand=True), "expand is False, not True"),
    (v2.RandomRotation(9, fill={tv_tensors.Image: 3, "others": 0}), "fill is that of images"),
    (v2.RandomRotation(9, fill=0.5), "fill is an int"),
    (v2.RandomCrop(9, 1, padding_mode="reflect"), "padding_mode is 'constant', not 'reflect'"),
    (v2.RandomCrop(9, pad_if_needed=True), "pad_if_needed is False"),
    (v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10), "policy is 'imagenet', not 'cifar10'"),
    (v2.RandomErasing(value="random"), "value is a number"),
    (v2.Grayscale(1), r"num_output_channels is 3; .* T.Decode\(1\)"),
    (v2.Resize(None, max_size=9), "size"),
    (v2.Resize(9, antialias=False), "antialias is True, not False"),
    (v2.Pad(9, padding_mode="edge"), "padding_mode is 'constant', not 'edge'"),
    (v2.TenCrop(9), "TenCrop: not offered"),
    ([v2.Resize(9), v2.RandomResizedCrop(9)], "Resize does not come before RandomResizedCrop"),
    ([v2.Resize(9), v2.RandomInvert(), v2.CenterCrop(9)], "put it after CenterCrop"),
    (v2.ToDtype(torch.float32), "scale is True"),
    (v2.ToDtype(torch.float64, scale=True), 'dtype is "float32", "float16" or "bfloat16"'),
    (v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), "dtype is one type"),
    (v2.Normalize([0.5], [0.5]), "right after the conversion to floats"),
    (v2.ElasticTransform(), "not offered"),
    (v2.MixUp(num_classes=3), r"`batch=\[T.MixUp"),
    (v2.Lambda(lambda x: x), "not offered"),
    (lambda x: x, "function: not offered"),
    (Derived(), "Derived: not offered"),
    (v2.RandomApply([v2.ElasticTransform()]), r"\[0\]\[0\] ElasticTransform: not offered"),
    (v2.RandomApply([v2.CenterCrop(9)]), "only operations on bytes"),
    (v2.RandomChoice([v2.ToDtype(torch.float32, scale=True)]), "only operations on bytes"),
    ([v1.ToTensor(), v2.RandomInvert()], r"\[1\] RandomInvert: it works on bytes: put it before"),
    ([v1.ToTensor(), v2.RandomErasing(), v2.Normalize([0.5], [0.5])], "right after the conversion"),
    ([v1.ToTensor(), *[v2.Normalize([0.5], [0.5])] * 2], r"\[2\] Normalize: one is enough"),
    (
        [v2.RandomInvert(), v2.RandomResizedCrop(9)],
        r"\[0\] RandomInvert: the crop comes first: put it after RandomResizedCrop",
    ),
]


@pytest.mark.parametrize(("transforms", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_what_has_no_twin_is_named_with_the_reason(transforms: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        T.from_torchvision(transforms)


def test_one_error_lists_all_that_have_no_twin() -> None:
    recipe = v2.Compose(
        [
            v2.RandomResizedCrop(9, antialias=False),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.RandomInvert(), v2.JPEG(50)]),
            v2.RandomPhotometricDistort(),
        ]
    )
    with pytest.raises(ValueError, match=r"fastrecord\.transforms has no twin of") as caught:
        T.from_torchvision(recipe)
    assert str(caught.value).splitlines() == [
        "fastrecord.transforms has no twin of:",
        "  [0][0] RandomResizedCrop: antialias is True, not False",
        "  [0][2][1] JPEG: not offered",
        "  [0][3] RandomPhotometricDistort: not offered",
        "Apply these to the batch, by `batch_transform=` of the loader, or to each image, by `T.Lambda`",
    ]


# Lists without chance, which the loader and torchvision must do alike.
CERTAIN: list[list[Any]] = [
    [v2.Resize(40), v2.CenterCrop(32)],
    [v2.Resize(40, BICUBIC), v2.CenterCrop((20, 36))],
    [v2.Resize(60, max_size=64), v2.CenterCrop(32)],
    [v2.Resize((30, 50))],
    [v2.Resize((30, 50), BICUBIC), v2.RandomHorizontalFlip(1.0)],
    [v2.CenterCrop(40)],
    [v2.CenterCrop((100, 30))],
    [v2.Pad((1, 2, 30, 4), (10, 20, 30)), v2.CenterCrop(38)],
    [v2.Resize(40), v2.Pad([5, 9], 99), v2.CenterCrop((50, 44))],
    [v2.FiveCrop(24)],
    [v2.Resize(33), v2.FiveCrop((24, 30))],
    [v2.CenterCrop(40), v2.Grayscale(3), v2.RandomVerticalFlip(1.0), v2.RandomSolarize(128, 1.0)],
    [v2.CenterCrop(40), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])],
]


@pytest.mark.parametrize("theirs", CERTAIN, ids=str)
def test_the_loader_makes_what_torchvision_makes(theirs: list[Any], tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    images = []
    with fr.Writer(tmp_path / "images.frec", fr.Schema({"image": fr.image()})) as writer:
        for height, width in ((48, 64), (71, 50), (64, 64), (33, 90), (120, 44)):
            coarse = Image.fromarray(random.integers(0, 256, (7, 8, 3), np.uint8))
            images.append(image := np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)))
            writer.append({"image": f"P6\n{width} {height}\n255\n".encode() + image.tobytes()})
    data = fr.FastRecordDataset(tmp_path / "images.frec", fields=("image",))
    loader = fr.FastRecordLoader(data, 5, shuffle=False, sample={"image": T.from_torchvision(theirs)})
    (batch,) = loader
    compose = v2.Compose(theirs)
    for made, image in zip(batch["image"], images, strict=True):
        wanted = compose(tv_tensors.Image(torch.from_numpy(image.copy()).permute(2, 0, 1)))
        wanted = torch.stack(wanted) if isinstance(wanted, tuple) else wanted
        assert made.shape == wanted.shape
        assert made.dtype == wanted.dtype
        distance = (made.double() - wanted.double()).abs()
        # Both resize with weights that are integers, of other sizes.
        assert distance.max() <= (1 if made.dtype == torch.uint8 else 1e-5)
        assert distance.mean() <= 0.2
