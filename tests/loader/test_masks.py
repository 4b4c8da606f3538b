"""Masks follow an image with their values; where their kind is wrong, an error names the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

import fastrecord as fr
from fastrecord._core import Recipe
from fastrecord.transforms import (
    CenterCrop,
    Decode,
    Letterbox,
    Like,
    Operation,
    Pipeline,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToFloat,
)
from tests.support.loading import make, with_info
from tests.support.pictures import picture, png, save, wide
from tests.support.scenes import classes

IDS = np.random.default_rng(0).choice(np.array([0, 7, 200], np.uint8), (48, 60))
FEW = classes(48, 60, 1)
RGB = save(picture(60, 48), "PNG")
LIKE = Like("image", interpolation="nearest")
CROPS: list[Any] = [
    [RandomResizedCrop(32), RandomHorizontalFlip()],
    [Resize(40), CenterCrop(32), RandomVerticalFlip()],
    [RandomCrop((30, 40), padding=8), RandomHorizontalFlip()],
    [Letterbox(50)],
]


def palette(values: NDArray[np.uint8], bits: int = 8) -> bytes:
    """Return a PNG with a palette and these indices."""
    image = Image.fromarray(values, "L").convert("P")
    image.putdata(values.flatten().tolist())
    return save(image, "PNG", bits=bits)


# Kind -> the encoded mask, and its values.
MASKS: dict[str, tuple[bytes, NDArray[Any]]] = {
    "grey PNG": (png(IDS[..., None]), IDS),
    "palette PNG of 8 bits": (palette(IDS), IDS),
    "palette PNG of 4 bits": (palette(FEW, 4), FEW),
    "palette PNG of 2 bits": (palette(FEW % 4, 2), FEW % 4),
    "palette PNG of 1 bit": (palette(FEW % 2, 1), FEW % 2),
    "interlaced palette PNG of 4 bits": (png(FEW[..., None], interlaced=True, index_bits=4), FEW),
    "interlaced palette PNG of 1 bit": (png(FEW[..., None] % 2, interlaced=True, index_bits=1), FEW % 2),
    "grey PNG with alpha": (png(np.dstack([IDS, FEW])), IDS),
    "grey TIFF": (save(Image.fromarray(IDS), "TIFF"), IDS),
    "PGM": (save(Image.fromarray(IDS), "PPM"), IDS),
}


def write(path: Path, rows: list[tuple[bytes, bytes]]) -> Path:
    with fr.Writer(path, fr.Schema({"image": fr.image(), "mask": fr.image()})) as writer:
        for image, mask in rows:
            writer.append({"image": image, "mask": mask})
    return path


def write_arrays(path: Path, values: list[NDArray[Any]], kind: fr.FieldType, image: bytes = RGB) -> Path:
    with fr.Writer(path, fr.Schema({"image": fr.image(), "mask": kind})) as writer:
        for value in values:
            writer.append({"image": image, "mask": value})
    return path


def both(path: Path) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, fields=("image", "mask"))


def nearest(values: NDArray[Any], view: Any, slot: int, fill: float = 0) -> NDArray[Any]:
    """Return the nearest values of the part that a view shows, mirrored as it is: from its box and matrix alone."""
    height, width = view.output
    left, top, right, bottom = view.boxes[slot]

    def places(start: float, end: float, count: int) -> NDArray[np.int64]:
        return np.floor(start + np.arange(count) * (end - start) / count + 1e-6).astype(np.int64)

    rows, columns = places(top, bottom, height), places(left, right, width)
    inside = ((rows >= 0) & (rows < len(values)))[:, None] & ((columns >= 0) & (columns < values.shape[1]))
    found = values[rows.clip(0, len(values) - 1)][:, columns.clip(0, values.shape[1] - 1)].copy()
    found[~inside] = fill
    matrix = view.matrix[slot]
    found = found[:, ::-1] if matrix[0, 0] < 0 else found
    found = found[::-1] if matrix[1, 1] < 0 else found
    return np.asarray(found)


# --- kinds ---


@pytest.mark.parametrize("crop", CROPS, ids=repr)
@pytest.mark.parametrize("kind", MASKS)
def test_masks_have_the_values_of_their_images(tmp_path: Path, kind: str, crop: Any) -> None:
    data, values = MASKS[kind]
    path = write(tmp_path / "x.frec", [(RGB, data)] * 8)
    ((batch, info),) = with_info(both(path), 8, sample={"image": crop, "mask": LIKE}, seed=2)
    assert batch["mask"].dtype == torch.uint8
    for slot, mask in enumerate(batch["mask"].numpy()):
        np.testing.assert_array_equal(mask, nearest(values, info.views["mask"], slot))


def test_a_grey_jpeg_gives_the_values_that_it_decodes_to(tmp_path: Path) -> None:
    data = save(Image.fromarray(FEW * 20), "JPEG", quality=95)
    path = write(tmp_path / "x.frec", [(RGB, data)])
    (batch,) = make(both(path), 1, sample={"image": CenterCrop((48, 60)), "mask": LIKE})
    np.testing.assert_array_equal(batch["mask"][0], fr.decode_image(data)[:, :, 0])


def test_masks_of_sixteen_bits_are_uint16(tmp_path: Path) -> None:
    values = wide(1)[:, :, 0]
    path = write(tmp_path / "x.frec", [(RGB, png(values[..., None])), (RGB, png(IDS[..., None]))])
    like = Like("image", [Decode(1, bits=16)], interpolation="nearest")
    ((batch, info),) = with_info(both(path), 2, sample={"image": CROPS[0], "mask": like})
    assert batch["mask"].dtype == torch.uint16
    # Numbers of 8 bits stay the same numbers.
    for slot, whole in enumerate((values, IDS)):
        np.testing.assert_array_equal(batch["mask"][slot].numpy(), nearest(whole, info.views["mask"], slot))


DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64", "bool"]
DTYPES += ["float16", "float32", "float64"]


@pytest.mark.parametrize("shape", [(48, 60), (48, 60, 2), (48, 60, 3), (None, None), (None, None, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_type_keep_their_values(tmp_path: Path, dtype: str, shape: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(1)
    values = [rng.integers(0, 100, (48, 60, *[dim or 1 for dim in shape[2:]])).astype(dtype) for _ in range(4)]
    path = write_arrays(tmp_path / "x.frec", values, fr.array(dtype, shape))
    crop = [RandomResizedCrop(32), RandomHorizontalFlip(), RandomVerticalFlip()]
    ((batch, info),) = with_info(both(path), 4, sample={"image": crop, "mask": Like("image", size=(20, 40))})
    assert batch["mask"].shape == (4, 20, 40, *shape[2:])
    for slot, mask in enumerate(batch["mask"].numpy()):
        np.testing.assert_array_equal(mask, nearest(values[slot], info.views["mask"], slot))


def test_bfloat16_arrays_and_borders_of_any_value(tmp_path: Path) -> None:
    values = [torch.from_numpy(IDS.astype(np.float32)).to(torch.bfloat16)]
    path = write_arrays(tmp_path / "x.frec", values, fr.array("bfloat16", (48, 60)))  # type: ignore[arg-type]
    sample = {"image": Letterbox(90), "mask": Like("image", fill=-1)}
    ((batch, info),) = with_info(both(path), 1, sample=sample)
    np.testing.assert_array_equal(batch["mask"][0].float(), nearest(IDS.astype(float), info.views["mask"], 0, -1))
    path = write(tmp_path / "y.frec", [(RGB, MASKS["grey PNG"][0])])
    sample = {"image": Letterbox(90), "mask": Like("image", interpolation="nearest", fill=255)}
    ((batch, info),) = with_info(both(path), 1, sample=sample)
    np.testing.assert_array_equal(batch["mask"][0], nearest(IDS, info.views["mask"], 0, 255))


@pytest.mark.parametrize("scale", [(2, 2), (0.5, 0.5), (1.5, 3)], ids=str)
def test_a_mask_of_another_size_shows_the_same_scene(tmp_path: Path, scale: tuple[float, float]) -> None:
    height, width = round(48 * scale[0]), round(60 * scale[1])
    values = classes(height, width, 5)
    path = write(tmp_path / "x.frec", [(RGB, png(values[..., None]))] * 6)
    for size in (None, (25, 70)):
        like = Like("image", size=size, interpolation="nearest")
        ((batch, info),) = with_info(both(path), 6, sample={"image": CROPS[0], "mask": like})
        image, mask = info.views["image"], info.views["mask"]
        np.testing.assert_allclose(mask.boxes, image.boxes * (*scale[::-1], *scale[::-1]), atol=1e-9)
        assert mask.output == (size or (32, 32))
        for slot, found in enumerate(batch["mask"].numpy()):
            np.testing.assert_array_equal(found, nearest(values, mask, slot))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_arrays_are_blended_if_asked_for(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(3).integers(0, 200, (48, 60, 2)).astype(dtype)
    path = write_arrays(tmp_path / "x.frec", [values], fr.array(dtype, (48, 60, 2)))
    sample = {"image": Resize((20, 40)), "mask": Like("image", interpolation="bilinear")}
    (batch,) = make(both(path), 1, sample=sample)
    floats = torch.from_numpy(values.astype(np.float32)).permute(2, 0, 1)
    wanted = functional.resize(floats, [20, 40], antialias=True).permute(1, 2, 0)
    difference = np.abs(batch["mask"][0].numpy().astype(float) - wanted.numpy())
    assert difference.max() <= (1e-3 if dtype == "float32" else 0.501)


def test_masks_become_floats_of_one_channel(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(RGB, MASKS["grey PNG"][0])])
    like = Like("image", [ToFloat(mean=[0], std=[1])], interpolation="nearest")
    (batch,) = make(both(path), 1, sample={"image": CenterCrop((48, 60)), "mask": like})
    assert batch["mask"].shape == (1, 1, 48, 60)
    np.testing.assert_allclose(batch["mask"][0, 0], IDS / 255, atol=1e-6)


# --- moves ---


def moved(mask: torch.Tensor, step: dict[str, Any]) -> torch.Tensor:
    given = {name: value for name, value in step.items() if name not in ("step", "interpolation", "fill")}
    how: dict[str, Any] = {"interpolation": InterpolationMode.NEAREST, "fill": 0}
    made: torch.Tensor
    match step["step"]:
        case "affine":
            made = functional.affine(mask, **given, **how)
        case "perspective":
            made = functional.perspective(mask, None, None, **given, **how)
        case kind:
            made = getattr(functional, kind)(mask)
    return made


@pytest.mark.parametrize(
    "move",
    [
        RandomRotation(60, "bilinear"),
        RandomRotation(30, center=(10, 40)),
        RandomAffine(20, (0.2, 0.1), (0.7, 1.4), (-20, 20, -10, 10), "bilinear"),
        RandomPerspective(0.6, p=1.0),
    ],
    ids=lambda move: type(move).__name__,
)
@pytest.mark.parametrize("array", [False, True])
def test_moves_are_torchvisions_with_the_nearest_values(tmp_path: Path, move: Operation, array: bool) -> None:
    values = classes(90, 110, 4)
    rows = [(save(picture(110, 90), "PPM"), png(values[..., None]))] * 10
    path = write(tmp_path / "x.frec", rows)
    if array:
        kind = fr.array("int32", (90, 110))
        path = write_arrays(tmp_path / "y.frec", [values.astype(np.int32)] * 10, kind, rows[0][0])
    steps = [Resize((90, 110)), RandomHorizontalFlip(), move]
    recipe = Recipe(json.dumps(Pipeline.of(steps).recipe()), "image")
    (batch,) = make(both(path), 10, sample={"image": steps, "mask": LIKE}, seed=4)
    different = 0
    for position, mask in enumerate(batch["mask"]):
        wanted: torch.Tensor = tv_tensors.Mask(torch.from_numpy(values)[None])
        for step in json.loads(recipe.draw(4, 0, position, (90, 110)))["steps"]:
            wanted = moved(wanted, step)
        different += int((mask != wanted[0]).sum())
    assert different <= 0.002 * batch["mask"].numel()


def test_own_operations_of_a_follower_change_only_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(RGB, MASKS["grey PNG"][0])] * 8)
    sample: dict[str, Any] = {"image": CROPS[0], "mask": LIKE}
    plain, again = (
        next(iter(make(both(path), 8, sample={**sample, "mask": Like("image", own, interpolation="nearest")})))
        for own in ([], [RandomVerticalFlip(1.0)])
    )
    assert torch.equal(plain["image"], again["image"])
    assert torch.equal(plain["mask"].flip(1), again["mask"])


# --- wrong kinds ---


WRONG = {
    "RGB PNG": (RGB, (), "of several channels, where a mask has one"),
    "RGB JPEG": (save(picture(60, 48), "JPEG"), (), "of several channels, where a mask has one"),
    "GIF": (save(Image.fromarray(IDS), "GIF"), (), "with a palette, whose indices only a PNG gives"),
    "palette BMP": (save(Image.fromarray(IDS), "BMP"), (), "with a palette, whose indices only a PNG gives"),
    "PNG of 16 bits": (png(wide(1)), (), r"of 16 bits, where the mask has 8: write T\.Decode\(bits=16\)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_mask_of_a_wrong_kind_is_an_error_that_names_the_record(tmp_path: Path, kind: str) -> None:
    data, own, message = WRONG[kind]
    path = write(tmp_path / "x.frec", [(RGB, MASKS["grey PNG"][0]), (RGB, data)])
    sample = {"image": CROPS[0], "mask": Like("image", own, interpolation="nearest")}
    with pytest.raises(fr.errors.DecodeError, match=rf"x\.frec: record 1, .*field mask: .*{message}"):
        list(make(both(path), 2, sample=sample))
    loader = make(both(path), 2, sample=sample, on_error="skip")
    (batch,) = loader
    assert [len(tensor) for tensor in batch.values()] == [1, 1]
    assert "field mask" in loader.skipped[0].reason


POSSIBLE = {
    "palette PNG": (palette(IDS), "an image with a palette"),
    "GIF": (save(Image.fromarray(IDS), "GIF"), "an image with a palette"),
    "palette TIFF": (save(Image.fromarray(IDS).convert("P"), "TIFF"), "an image with a palette"),
    "grey PNG": (png(IDS[..., None]), "an image of one channel"),
    "PNG of 1 bit": (save(Image.fromarray(IDS).convert("1"), "PNG"), "an image of one channel"),
    "PGM": (save(Image.fromarray(IDS), "PPM"), "an image of one channel"),
    "grey JPEG": (save(Image.fromarray(IDS), "JPEG"), "an image of one channel"),
    "grey JPEG 2000": (save(Image.fromarray(IDS), "JPEG2000"), "an image of one channel"),
}


@pytest.mark.filterwarnings("ignore:fastrecord cannot decode")
@pytest.mark.parametrize("kind", POSSIBLE)
@pytest.mark.parametrize("resized", [RandomResizedCrop(24), Resize((24, 24)), [Resize(30), CenterCrop(24)]], ids=repr)
def test_a_possible_mask_that_follows_as_colours_is_an_error(tmp_path: Path, kind: str, resized: Any) -> None:
    mask, what = POSSIBLE[kind]
    path = write(tmp_path / "x.frec", [(RGB, RGB), (RGB, mask)])
    with pytest.raises(fr.errors.DecodeError, match=rf"x\.frec: record 1, .*field mask: {what} .*FR517"):
        list(make(both(path), 2, sample={"image": resized, "mask": Like("image")}))
    loader = make(both(path), 2, sample={"mask": Like("image"), "image": resized}, on_error="skip")
    (batch,) = loader
    assert [len(tensor) for tensor in batch.values()] == [1, 1]
    assert "field mask" in loader.skipped[0].reason


def test_what_others_follow_may_be_of_any_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(mask, RGB) for mask, _ in POSSIBLE.values()])
    with pytest.warns(UserWarning, match="Pillow decodes"):
        (batch,) = make(both(path), 20, sample={"image": Resize((24, 24)), "mask": Like("image")})
    assert batch["image"].shape == (len(POSSIBLE), 3, 24, 24)


def test_grey_that_is_not_resized_keeps_its_values(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(RGB, png(IDS[..., None]))])
    for crop in (RandomCrop(32), CenterCrop(32)):
        (batch,) = make(both(path), 1, sample={"image": crop, "mask": Like("image")})
        assert set(torch.unique(batch["mask"]).tolist()) == {0, 7, 200}
    path = write(tmp_path / "y.frec", [(RGB, palette(IDS))])
    with pytest.raises(fr.errors.DecodeError, match=r"record 0, .*field mask: an image with a palette"):
        list(make(both(path), 1, sample={"image": RandomCrop(32), "mask": Like("image")}))
