"""Which part of its source each image shows: boxes, sizes and matrices in `BatchInfo`."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from fastrecord.transforms import (
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Letterbox,
    Like,
    Operation,
    Pad,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomOrder,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    TrivialAugmentWide,
    View,
    ViewInfo,
)
from fastrecord.transforms.frame import Frame
from tests.support.loading import make, with_info
from tests.support.pictures import exif, pixels, save, with_segment

GEOMETRIES: list[list[Any]] = [
    [RandomResizedCrop((24, 30))],
    [Resize(32), CenterCrop((20, 28))],
    [Resize(32, max_size=36), CenterCrop((20, 28))],
    [Resize((40, 50)), CenterCrop((36, 28))],
    [CenterCrop(30)],
    [CenterCrop((90, 100))],
    [Resize((17, 33))],
    [RandomCrop((24, 40))],
    [RandomCrop((50, 90), padding=20)],
    [Resize(40), Pad((5, 9)), RandomCrop(32)],
    [Letterbox((50, 44))],
]
SIZES = [(40, 60), (61, 43), (30, 80), (96, 33), (50, 50), (41, 67)]
KINDS = ["PNG", "PPM", "JPEG2000", "JPEG"]


def smooth(height: int, width: int) -> NDArray[np.uint8]:
    """Return colours that say where they are: red by x, green by y; the blue ones are never black."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.stack([x * 255 / width, y * 255 / height, np.full((height, width), 200)], -1).astype(np.uint8)


def write(path: Path, sizes: Sequence[tuple[int, int]] = SIZES, kind: str = "PNG", boxes: bool = False) -> Path:
    fields = {"image": fr.image()} | ({"boxes": fr.array("float32", (None, 4))} if boxes else {})
    with fr.Writer(path, fr.Schema(fields)) as writer:
        for number, (height, width) in enumerate(sizes):
            quality: dict[str, Any] = {"quality": 98, "subsampling": 0} if kind == "JPEG" else {}
            image = save(Image.fromarray(smooth(height, width)), kind, **quality)
            rows = np.random.default_rng(number).uniform(0, 1, (number % 3, 2, 2)) * (width, height)
            sorted_rows = np.sort(rows, axis=1).reshape(-1, 4).astype(np.float32)
            writer.append({"image": image} | ({"boxes": sorted_rows} if boxes else {}))
    return path


def assert_is_where_it_says(image: torch.Tensor, view: ViewInfo, slot: int) -> None:
    """Compare the colours of an image with the places in the source that its matrix names."""
    height, width = view.output
    y, x = np.mgrid[:height, :width] + 0.5
    points = np.stack([x, y, np.ones_like(x)], -1) @ np.linalg.inv(view.matrix[slot]).T
    source_height, source_width = view.sizes[slot]
    wanted = points[..., :2] * 255 / (source_width, source_height)
    inside = ((points[..., :2] > 0) & (points[..., :2] < (source_width, source_height))).all(-1)
    found = image.permute(1, 2, 0).numpy().astype(float)
    assert (found[inside][:, 2] > 150).all()
    assert (found[~inside] == 0).all()
    # Beside an edge the filter reads less on one side; a scale of source pixels wide.
    step = np.abs(np.diff(view.boxes[slot].reshape(2, 2), axis=0)[0]) / (width, height) * 255
    margin = 4 + 1.5 * np.maximum(step / (source_width, source_height), 255 / np.array([source_width, source_height]))
    assert (np.abs(found[..., :2] - wanted)[inside] <= margin).all()


@pytest.mark.filterwarnings("ignore:fastrecord cannot decode")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_the_matrix_leads_from_the_source_to_the_pixels_of_the_batch(
    tmp_path: Path, geometry: list[Any], kind: str
) -> None:
    path = write(tmp_path / "x.frec", kind=kind)
    flips = []
    for _ in range(2):  # the same again
        for images, info in with_info(path, 4, sample=[*geometry, RandomHorizontalFlip()]):
            view = info.views["image"]
            assert [tuple(size) for size in view.sizes] == [SIZES[row] for row in info.rows]
            assert (view.output, view.matrix.shape) == (Frame(tuple(geometry)).size, (len(info), 3, 3))
            assert [str(a.dtype) for a in (view.sizes, view.boxes, view.matrix)] == ["int64", "float64", "float64"]
            for slot, image in enumerate(images):
                assert_is_where_it_says(image, view, slot)
            flips += (view.matrix[:, 0, 0] < 0).tolist()
    assert flips[: len(SIZES)] == flips[len(SIZES) :]
    assert 0 < sum(flips) < len(flips)


def test_the_box_is_that_of_the_crop_in_whole_pixels(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", kind="PPM")
    ((images, info),) = with_info(path, len(SIZES), sample=RandomCrop(24))
    for image, (left, top, right, bottom), row in zip(images, info.views["image"].boxes, info.rows, strict=True):
        part = smooth(*SIZES[row])[int(top) : int(bottom), int(left) : int(right)]
        np.testing.assert_array_equal(image.permute(1, 2, 0), part)


def test_a_crop_beside_the_image_has_its_box_and_the_images_matrix(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(8, 8)] * 60)
    ((images, info),) = with_info(path, 60, sample=[RandomCrop(4, padding=10), RandomHorizontalFlip()])
    boxes = info.views["image"].boxes
    beside = (boxes[:, :2] >= 8).any(1) | (boxes[:, 2:] <= 0).any(1)
    assert 0 < beside.sum() < 60
    assert (boxes[:, 2:] - boxes[:, :2] == 4).all()
    assert [bool((image == 0).all()) for image in images] == beside.tolist()


def test_images_of_several_fields_have_a_view_each_of_the_same_part(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, fr.Schema({"hr": fr.image(), "lr": fr.image(), "id": "int64"})) as writer:
        for number, (height, width) in enumerate(SIZES):
            for_field = {
                "lr": save(Image.fromarray(smooth(height, width)), "PNG"),
                "hr": save(Image.fromarray(smooth(2 * height, 2 * width)), "PPM"),
            }
            writer.append({**for_field, "id": number})
    dataset = fr.FastRecordDataset(path, fields=("lr", "hr", "id"))
    samples: list[dict[str, Any]] = [
        {"lr": [RandomCrop(12, padding=2), RandomHorizontalFlip()], "hr": Like("lr", size=24)},
        {"lr": Like("hr", size=(30, 20)), "hr": [RandomResizedCrop(40), RandomHorizontalFlip()]},
    ]
    for sample in samples:
        for batch, info in with_info(dataset, 4, sample=sample):
            assert list(info.views) == list(sample)
            low, high = info.views["lr"], info.views["hr"]
            np.testing.assert_array_equal(low.matrix[:, 0, 0] < 0, high.matrix[:, 0, 0] < 0)
            np.testing.assert_allclose(2 * low.boxes, high.boxes, atol=1e-9)
            np.testing.assert_array_equal(2 * low.sizes, high.sizes)
            for name, view in info.views.items():
                for slot, image in enumerate(batch[name]):
                    assert_is_where_it_says(image, view, slot)


def test_skipped_records_leave_no_gap_and_views_are_pure_functions_of_the_position(tmp_path: Path) -> None:
    path, sizes = tmp_path / "x.frec", [(30 + n, 90 - n) for n in range(20)]
    schema = fr.Schema({"image": fr.bytes_()})
    with fr.Writer(path, schema) as writer:
        for number, size in enumerate(sizes):
            image = save(Image.fromarray(smooth(*size)), "PNG")
            writer.append({"image": b"no image" if number in (0, 3, 7, 19) else image})
    seen = {}
    for threads, batch_size in ((1, 5), (2, 8)):
        dataset = fr.FastRecordDataset(path, image_field="image")
        options: dict[str, Any] = {"on_error": "skip", "limit": None, "threads": threads, "seed": 3, "shuffle": True}
        infos = [info for _, info in with_info(dataset, batch_size, **options)]
        views = [info.views["image"] for info in infos]
        rows = np.concatenate([info.rows for info in infos])
        assert sorted(rows) == [row for row in range(20) if row not in (0, 3, 7, 19)]
        assert [tuple(size) for view in views for size in view.sizes] == [sizes[row] for row in rows]
        seen[threads] = (rows.tolist(), np.concatenate([view.matrix for view in views]).tolist())
    assert seen[1] == seen[2]


def test_with_exif_orientation_the_source_is_the_image_turned_upright(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        for orientation in range(1, 9):
            turned = np.array(Image.fromarray(smooth(40, 70)))
            stored = {1: turned, 2: turned[:, ::-1], 3: turned[::-1, ::-1], 4: turned[::-1]}.get(orientation)
            if stored is None:
                across = turned.swapaxes(0, 1)
                stored = {5: across, 6: across[::-1], 7: across[::-1, ::-1], 8: across[:, ::-1]}[orientation]
            data = save(Image.fromarray(np.ascontiguousarray(stored)), "JPEG", quality=98, subsampling=0)
            writer.append({"image": with_segment(data, 0xE1, exif(orientation))})
    ((images, info),) = with_info(path, 8, exif_orientation=True)
    assert info.views["image"].sizes.tolist() == [[40, 70]] * 8
    for slot, image in enumerate(images):
        assert_is_where_it_says(image, info.views["image"], slot)


def test_views_are_there_after_the_iteration_and_in_a_pickle_and_arrays_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", boxes=True)
    (_, info), *_ = with_info(path, 4)
    copy = pickle.loads(pickle.dumps(info))
    np.testing.assert_array_equal(copy.views["image"].matrix, info.views["image"].matrix)
    assert "boxes" in repr(info)
    with pytest.raises(KeyError):
        info.views["boxes"]
    for _, info in with_info(fr.FastRecordDataset(path, fields=("boxes",)), 4, sample=None):
        assert dict(info.views) == {}


# --- operations that move pixels ---


MOVES: list[Operation] = [
    RandomHorizontalFlip(1.0),
    RandomVerticalFlip(1.0),
    RandomRotation(40),
    RandomRotation((60, 90), "bilinear", center=(30, 20)),
    RandomAffine(10, (0.2, 0.1), (0.7, 1.4), (-20, 20, -10, 15)),
    RandomAffine(0, (0.3, 0.3)),
    RandomPerspective(0.5, p=1.0),
    RandomPerspective(0.3, p=1.0, interpolation="nearest"),
    RandomApply([RandomRotation(20), RandomHorizontalFlip()], p=0.7),
    RandomChoice([RandomRotation(30), RandomPerspective(0.4, p=1.0), RandomVerticalFlip()]),
    RandomOrder([RandomRotation(30), RandomHorizontalFlip(1.0), RandomAffine(0, (0.1, 0.2))]),
    TrivialAugmentWide(),
    RandAugment(3, 12),
    AutoAugment(),
]
DOTS = [(40, 30), (80, 34), (58, 66)]  # x, y: the middle of each dot, one for each channel
REACH = 5
WIDTH, HEIGHT = 120, 96


def dots(scale: int) -> NDArray[np.uint8]:
    """Return a dark image with a square dot in each channel."""
    image = np.zeros((HEIGHT * scale, WIDTH * scale, 3), np.uint8)
    for channel, (x, y) in enumerate(DOTS):
        image[(y - REACH) * scale : (y + REACH) * scale, (x - REACH) * scale : (x + REACH) * scale, channel] = 255
    return image


@pytest.fixture(scope="module")
def dotted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dots, and the same of twice the size; a mask of the first dot."""
    path = tmp_path_factory.mktemp("dots") / "x.frec"
    fields = {"image": fr.image(), "twice": fr.image(), "mask": fr.array("int32", (None, None))}
    with fr.Writer(path, fr.Schema(fields)) as writer:
        for _ in range(24):
            image, twice = (save(Image.fromarray(dots(scale)), "PPM") for scale in (1, 2))
            writer.append({"image": image, "twice": twice, "mask": dots(3)[:, :, 0].astype(np.int32)})
    return path


def found(values: torch.Tensor, view: ViewInfo, slot: int, channel: int, allowed: float = 0.6) -> bool:
    """Compare the place of a dot with the matrix's; return whether the whole dot is in the picture."""
    scale = view.sizes[slot][0] / HEIGHT
    x, y = DOTS[channel]
    square = np.array([[x + i * REACH, y + j * REACH] for i, j in ((0, 0), (-1, -1), (1, -1), (1, 1), (-1, 1))])
    matrix = view.matrix[slot]
    points = np.concatenate([square * scale, np.ones((5, 1))], 1) @ matrix.T
    points = points[:, :2] / points[:, 2:]
    around = points[1:]
    along = np.roll(around, -1, 0)
    area = abs((around[:, 0] * along[:, 1] - along[:, 0] * around[:, 1]).sum()) / 2
    weight = values.double().numpy() / values.max().clamp(1).item()
    if not 0.9 < weight.sum() / area < 1.1 or area < 20:
        return False  # it was cut off
    row, column = np.mgrid[: values.shape[0], : values.shape[1]] + 0.5
    # A perspective moves the middle of a square from the middle of its image: the mean of the corners is near.
    middle = np.array([(weight * column).sum(), (weight * row).sum()]) / weight.sum()
    bent = 0.12 * np.ptp(around, 0).max() if abs(matrix[2, :2]).max() > 0 else 0
    assert np.abs(middle - points[0]).max() < allowed + bent
    return True


@pytest.mark.parametrize("crop", [Resize((HEIGHT, WIDTH)), RandomResizedCrop((80, 90), scale=(0.7, 1))], ids=repr)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: str(move)[:60])
def test_dots_are_where_the_matrix_says_after_every_move(dotted: Path, move: Operation, crop: Any) -> None:
    sample = {
        "image": [crop, move],
        "twice": Like("image", size=(70, 130)),
        "mask": Like("image", size=(150, 120)),
    }
    seen = 0
    ((batch, info),) = with_info(fr.FastRecordDataset(dotted, fields=("image", "twice", "mask")), 24, sample=sample)
    for slot in range(24):
        for channel in range(3):
            if not move.changes:
                seen += found(batch["image"][slot, channel], info.views["image"], slot, channel)
            seen += found(batch["twice"][slot, channel], info.views["twice"], slot, channel)
        # The nearest pixel is that under the corner of a pixel, not under its middle, as in torch.
        seen += found(batch["mask"][slot], info.views["mask"], slot, 0, allowed=1.5)
    assert seen > 24 * (4 if move.changes else 7) / 3


# --- fields that need them ---


FIELDS: dict[str, fr.FieldType] = {
    "bbox": fr.array("float32", (4,)),
    "Boxes": fr.array("float32", (None, 4)),
    "gt_boxes": fr.list_(fr.array("float32", (4,))),
    "places": fr.array("int32", (None, 4)),
    "mask": fr.image(),
    "panoptic": fr.array("uint8", (None, None)),
    "objects_segmentation": fr.json(),
    "keypoints": fr.array("float64", (17, 3)),
}
OTHERS: dict[str, fr.FieldType] = {
    "attention_mask": fr.array("int64", (None,)),
    "loss_mask": fr.array("bool", (77,)),
    "boxes_count": fr.FieldType("int64"),
    "tokens": fr.array("int64", (None,)),
    "embedding": fr.array("float32", (None, 768)),
    "spectrogram": fr.array("float32", (None, None)),
    "sandbox": fr.string(),
}


@pytest.mark.parametrize("name", [*FIELDS, *OTHERS])
def test_boxes_masks_and_keypoints_beside_images_cropped_at_random_are_warned_of_once(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "x.frec"
    kind = {**FIELDS, **OTHERS}[name]
    values: dict[str, Any] = {"image": save(Image.fromarray(pixels(9, 9)), "PNG"), "json": {}, "string": "", "list": []}
    value = values.get(kind.name)
    if value is None:
        value = np.zeros([dim or 2 for dim in kind.shape or ()], kind.dtype)
    with fr.Writer(path, fr.Schema({"image": fr.image(), name: kind})) as writer:
        for _ in range(4):
            writer.append({"image": values["image"], name: value})
    data = fr.FastRecordDataset(path, fields=("image", name))

    def loader(sample: Any, **options: Any) -> fr.FastRecordLoader:
        return make(data, 2, sample=sample if isinstance(sample, dict) else {"image": sample}, **options)

    warned = [
        loader({"image": RandomResizedCrop(8)}),
        loader({"small": View("image", RandomCrop(8))}),
        loader([Resize((8, 8)), RandomHorizontalFlip()]),
        loader([Resize((8, 8)), RandomRotation(10)]),
        loader(RandomCrop(8), batch_transform=lambda batch, _: batch),
    ]
    for made in warned:
        if name in FIELDS:
            with pytest.warns(
                UserWarning, match=rf"cropped or mirrored at random, and '{name}' come as they are stored"
            ):
                list(made)
        list(made)  # once
    for made in (
        loader([Resize((8, 8)), ColorJitter(0.1)]),
        loader(CenterCrop(8)),
        loader(RandomCrop(8), batch_transform=lambda batch, info: (batch, info.views["image"])),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(made)
