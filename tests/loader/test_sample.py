"""Batches of several outputs: lists, views, what follows; of any channels and bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms.v2 import functional

import fastrecord as fr
from fastrecord._core import Recipe
from fastrecord.transforms import (
    CenterCrop,
    ColorJitter,
    Decode,
    FiveCrop,
    GaussianBlur,
    Like,
    Pipeline,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ToFloat,
    View,
)
from tests.support.loading import make, with_info, write_payloads
from tests.support.pictures import jpeg, picture, pixels, png, reference, save, wide
from tests.support.scenes import COUNT, SCHEMA, classes, scene, size_of, write_scenes

SMALL = [RandomResizedCrop(24, scale=(0.1, 0.6)), RandomHorizontalFlip(), RandomRotation(20), ColorJitter(0.4, hue=0.1)]
EVERYTHING: dict[str, Any] = {
    "image": [
        RandomResizedCrop((32, 40)),
        RandomHorizontalFlip(),
        RandomRotation(30),
        ToFloat("float16"),
    ],
    "small": View("image", SMALL, count=3),
    "mask": Like("image", interpolation="nearest"),
    "depth": Like("image"),
    "boxes": Like("image", boxes="xyxy"),
    "points": Like("image", keypoints=True),
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("scenes") / "x.frec")


def dataset(path: Path, *fields: str) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, fields=fields) if fields else fr.FastRecordDataset(path, image_field="image")


# --- what is in a batch ---


@pytest.mark.parametrize("fields", [(), tuple(SCHEMA)], ids=["image mode", "fields mode"])
def test_a_mapping_makes_dicts_of_all_outputs_and_all_other_fields(scenes: Path, fields: tuple[str, ...]) -> None:
    first, *_ = make(dataset(scenes, *fields), 4, sample=EVERYTHING)
    kept = ["boxes_kept", "points_kept"]
    if fields:
        assert list(first) == [*fields, "small", *kept]
    else:
        assert list(first) == [*EVERYTHING, "label", *kept]
    tensors = {name: value for name, value in first.items() if isinstance(value, torch.Tensor)}
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    assert shapes == {
        "image": ((4, 3, 32, 40), torch.float16),
        "small": ((4, 3, 3, 24, 24), torch.uint8),
        "mask": ((4, 32, 40), torch.uint8),
        "depth": ((4, 32, 40), torch.float32),
        "points": ((4, 3, 2), torch.float32),
        "points_kept": ((4, 3), torch.bool),
        "label": ((4,), torch.int64),
    }
    assert [tuple(boxes.shape) for boxes in first["boxes"]] == [(number % 4, 4) for number in range(4)]
    assert [tuple(kept.shape) for kept in first["boxes_kept"]] == [(number % 4,) for number in range(4)]
    assert first["image"].is_contiguous(memory_format=torch.channels_last)
    assert first.get("key", ["0", "1", "2", "3"]) == ["0", "1", "2", "3"]


def test_a_list_and_a_mapping_of_its_field_make_the_same_images(scenes: Path) -> None:
    steps = [RandomResizedCrop(24), RandomHorizontalFlip(), ColorJitter(0.3)]
    data = dataset(scenes, "image", "label")
    batches = list(make(data, 4, sample=steps))
    for found, batch in zip(make(data, 4, sample={"image": steps}), batches, strict=True):
        assert torch.equal(found["image"], batch["image"])
        assert torch.equal(found["label"], batch["label"])


def test_other_outputs_change_nothing_of_an_output(scenes: Path) -> None:
    data = dataset(scenes, "image", "mask", "depth", "label")
    chosen = {name: EVERYTHING[name] for name in ("image", "mask", "depth", "small")}
    together = list(make(data, 5, sample=chosen))
    for name in ("image", "small"):
        alone = list(make(dataset(scenes, "image"), 5, sample={name: EVERYTHING[name]}))
        assert all(torch.equal(one[name], other[name]) for one, other in zip(alone, together, strict=True))
    backwards = list(make(data, 5, sample=dict(reversed(chosen.items()))))
    for one, other in zip(backwards, together, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in chosen)


# --- views ---


def test_each_view_is_its_crop_with_the_operations_that_the_recipe_draws_for_it(scenes: Path) -> None:
    steps = [*SMALL, RandomErasing(0.5), GaussianBlur(3)]
    recipe = json.dumps(Pipeline.of(steps).recipe())
    data = dataset(scenes)
    crops = [batch["small"] for batch in make(data, 4, sample={"small": View("image", steps[:1], count=3)}, seed=5)]
    for (batch, info), crop in zip(
        with_info(data, 4, sample={"small": View("image", steps, count=3)}, seed=5), crops, strict=True
    ):
        for slot, position in enumerate(info.positions.tolist()):
            for view in range(3):
                of = Recipe(recipe, "small", view)
                drawn = of.draw(5, 0, position, (24, 24))
                wanted = of.apply(crop[slot, view].permute(1, 2, 0).contiguous().numpy(), drawn)
                np.testing.assert_array_equal(batch["small"][slot, view].permute(1, 2, 0), wanted)
        assert len({box.tobytes() for box in info.views["small"].boxes.reshape(-1, 4)}) == 3 * len(info)


def test_fewer_views_are_the_first_of_more(scenes: Path) -> None:
    data = dataset(scenes)
    made = [with_info(data, 4, sample={"a": View("image", SMALL, count)}) for count in (None, 1, 4)]
    for (alone, _), (one, _), (four, info) in zip(*made, strict=True):
        assert alone["a"].shape[1:] == (3, 24, 24)
        assert torch.equal(alone["a"], one["a"][:, 0])
        assert torch.equal(alone["a"], four["a"][:, 0])
        view = info.views["a"]
        assert (view.boxes.shape, view.matrix.shape) == ((len(info), 4, 4), (len(info), 4, 3, 3))


def test_five_crops_are_the_corners_and_the_middle(scenes: Path) -> None:
    (((images, _), _),) = with_info(dataset(scenes), COUNT, sample=[FiveCrop((40, 30))])
    for number, views in enumerate(images):
        image = torch.from_numpy(reference(scene(number)["image"]).copy()).permute(2, 0, 1)
        assert torch.equal(views, torch.stack(functional.five_crop(image, [40, 30])))


@pytest.mark.parametrize("kind", ["JPEG", "crop index", "raw pixels"])
def test_views_of_one_decoding_are_those_of_separate_ones(tmp_path: Path, kind: str) -> None:
    data = [save(picture(320, 240, seed=seed), "JPEG", quality=90) for seed in range(5)]
    if kind == "raw pixels":
        data = [save(Image.fromarray(reference(image)), "PPM") for image in data]
    path = write_payloads(tmp_path / "x.frec", data)
    if kind == "crop index":
        assert fr.files.index(path).indexed == 5
    steps = [RandomResizedCrop(24, scale=(0.05, 1)), RandomHorizontalFlip()]
    large = [RandomResizedCrop(96, scale=(0.3, 1))]
    ((together, _),) = with_info(path, 5, sample={"small": View("image", steps, count=4), "image": large})
    ((small, info),) = with_info(path, 5, sample={"small": View("image", steps, count=4)})
    ((image, _),) = with_info(path, 5, sample={"image": large})
    for name, alone in (("small", small), ("image", image)):
        # A JPEG is decoded at a smaller scale where all its views are smaller still.
        difference = (alone[name].float() - together[name].float()).abs()
        assert difference.mean() <= (0 if kind == "raw pixels" else 0.3)
        assert difference.max() <= 4
    shown = info.views["small"]
    for slot, views in enumerate(small["small"]):
        whole = torch.from_numpy(reference(data[slot]).copy()).permute(2, 0, 1)
        for number, view in enumerate(views):
            left, top, right, bottom = shown.boxes[slot, number].round().astype(int).tolist()
            wanted = functional.resized_crop(whole, top, left, bottom - top, right - left, [24, 24], antialias=True)
            mirrored = shown.matrix[slot, number, 0, 0] < 0
            assert (view.float() - (wanted.flip(2) if mirrored else wanted).float()).abs().mean() <= 1.0


# --- channels and bits ---


RGBA = np.dstack([pixels(61, 43), pixels(61, 43, 1, seed=9)])


def one(path: Path, data: bytes, sample: Any) -> torch.Tensor:
    """Return the image that a loader makes of an encoded one."""
    number = len(list(path.iterdir()))
    ((images, _),) = make(write_payloads(path / f"{number}.frec", [data]), 1, sample=sample)
    image: torch.Tensor = images[0]
    return image


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_one_channel_is_the_grey_of_torchvision(tmp_path: Path, kind: str, mode: str) -> None:
    data = save(picture(mode=mode), kind)
    found = one(tmp_path, data, [Decode(channels=1), CenterCrop((43, 61))])
    assert (found.shape, found.dtype) == ((1, 43, 61), torch.uint8)
    colours = torch.from_numpy(fr.decode_image(data).copy()).permute(2, 0, 1)
    wanted = colours[:1] if mode == "L" else functional.rgb_to_grayscale(colours)
    assert (found.int() - wanted.int()).abs().max() <= (mode == "RGB")


def test_operations_treat_one_channel_as_grey(tmp_path: Path) -> None:
    steps = [
        RandomResizedCrop(32),
        RandomHorizontalFlip(),
        RandomRotation(20, fill=7),
        ColorJitter(0.5),
        GaussianBlur(5),
    ]
    data = save(picture(mode="L"), "PNG")
    colours = one(tmp_path, data, steps)
    grey = one(tmp_path, data, [Decode(channels=1), *steps])
    assert (colours.int() - grey.int()).abs().max() <= 1


def test_four_channels_have_alpha_that_is_moved_and_resized_with_the_colours(tmp_path: Path) -> None:
    data = png(RGBA)
    found = one(tmp_path, data, [Decode(channels=4), CenterCrop((43, 61)), RandomHorizontalFlip(1.0)])
    np.testing.assert_array_equal(found.permute(1, 2, 0), RGBA[:, ::-1])
    small = one(tmp_path, data, [Decode(channels=4), Resize((20, 30))])
    wanted = functional.resize(torch.from_numpy(RGBA).permute(2, 0, 1), [20, 30], antialias=True)
    assert (small.float() - wanted.float()).abs().max() <= 1
    opaque = one(tmp_path, save(picture(), "PNG"), [Decode(channels=4), CenterCrop((50, 61))])
    assert (opaque[3, 3:46] == 255).all()
    np.testing.assert_array_equal(opaque[:3, 3:46].permute(1, 2, 0), np.asarray(picture()))
    # The border is as opaque as the image.
    assert (opaque[:, :3] == torch.tensor([0, 0, 0, 255]).view(4, 1, 1)).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_stay_and_eight_are_widened(tmp_path: Path, channels: int) -> None:
    values = wide(channels)
    decode = Decode(channels, bits=16)
    found = one(tmp_path, png(values), [decode, CenterCrop((43, 61))])
    assert (found.dtype, found.shape) == (torch.uint16, (channels, 43, 61))
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), values)
    small = one(tmp_path, png(values), [decode, Resize((20, 30))]).numpy().astype(float)
    floats = torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)
    wanted = functional.resize(floats, [20, 30], antialias=True)
    assert np.abs(small - wanted.numpy()).max() <= 1
    narrow = pixels(61, 43, channels)
    widened = one(tmp_path, png(narrow), [decode, CenterCrop((43, 61)), RandomHorizontalFlip(1.0)])
    np.testing.assert_array_equal(widened.permute(1, 2, 0).numpy(), narrow[:, ::-1].astype(np.uint16) * 257)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channels_last", "nchw"])
@pytest.mark.parametrize("decode", [Decode(1), Decode(3), Decode(4), Decode(1, 16), Decode(3, 16)], ids=repr)
def test_floats_are_the_values_less_the_mean_over_the_deviation(
    tmp_path: Path, decode: Decode, layout: str, dtype: torch.dtype
) -> None:
    channels = decode.channels
    data = png(wide(channels) if decode.bits == 16 else RGBA if channels == 4 else pixels(61, 43, channels))
    mean, std = np.linspace(0.2, 0.6, channels), np.linspace(0.3, 0.5, channels)
    steps = [decode, RandomCrop((30, 40)), RandomHorizontalFlip()]
    path = write_payloads(tmp_path / "x.frec", [data] * 3)
    ((plain, _),) = make(path, 3, sample=steps)
    ((found, _),) = make(path, 3, sample=[*steps, ToFloat(dtype, mean.tolist(), std.tolist(), layout)])
    assert (found.dtype, found.shape) == (dtype, (3, channels, 30, 40))
    assert found.is_contiguous(
        memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format
    )
    wanted = (plain.numpy() / (2.0**decode.bits - 1) - mean[:, None, None]) / std[:, None, None]
    step = torch.finfo(dtype).eps
    assert (np.abs(found.double().numpy() - wanted) <= step * np.abs(wanted) + 1e-6).all()


def test_erasing_after_floats_erases_floats(scenes: Path) -> None:
    steps: list[Any] = [RandomResizedCrop(32), ToFloat()]
    plain, *_ = make(dataset(scenes, "image"), COUNT, sample=steps)
    erased, *_ = make(dataset(scenes, "image"), COUNT, sample=[*steps, RandomErasing(1.0)])
    same = (plain["image"] == erased["image"]).all(1)
    assert (erased["image"].permute(0, 2, 3, 1)[~same] == 0).all()
    assert 0.01 < (~same).float().mean() < 0.4


# --- masks of other kinds follow views too ---


def test_what_follows_several_views_has_one_of_each(scenes: Path) -> None:
    views = View("image", [RandomCrop((40, 30)), RandomHorizontalFlip(), RandomInvert()], count=4)
    data = dataset(scenes, "image", "mask", "depth")
    for batch, info in with_info(
        data, 5, sample={"a": views, "mask": Like("a", interpolation="nearest"), "depth": Like("a")}
    ):
        assert batch["mask"].shape == batch["depth"].shape == (len(info), 4, 40, 30)
        assert torch.equal(batch["mask"].float() / 4, batch["depth"])
        for slot, row in enumerate(info.rows.tolist()):
            whole: NDArray[np.uint8] = classes(*size_of(row), row)
            for view in range(4):
                left, top, right, bottom = info.views["a"].boxes[slot, view].round().astype(int)
                part = whole[top:bottom, left:right]
                mirrored = info.views["mask"].matrix[slot, view, 0, 0] < 0
                np.testing.assert_array_equal(batch["mask"][slot, view], part[:, ::-1] if mirrored else part)


def test_a_mapping_reads_a_field_once_however_many_outputs_it_has(tmp_path: Path) -> None:
    path = write_payloads(tmp_path / "x.frec", [jpeg()] * 6)
    steps = [RandomResizedCrop(16), RandomPerspective()]
    loader = make(
        path, 3, sample={"a": View("image", steps, count=3), "b": View("image", [Resize((9, 9))]), "image": steps}
    )
    list(loader)
    assert (loader.stats().reads, loader.stats().images) == (6, 6)
