"""Which part of its source each image shows: boxes, flips, sizes and matrices in `BatchInfo`."""

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
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord.transforms import CenterCrop, Geometry, RandomCrop, RandomResizedCrop, Resize, ViewInfo
from fastrecord.transforms.batch_info import BatchInfo
from tests.support.loading import make
from tests.support.pictures import exif, pixels, save, with_segment

GEOMETRIES = [
    RandomResizedCrop((24, 30)),
    CenterCrop((20, 28), resize=32),
    CenterCrop(30),
    CenterCrop((90, 100)),
    Resize((17, 33)),
    RandomCrop((24, 40)),
    RandomCrop((50, 90), padding=20),
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


def gathered(path: Any, batch_size: int, **options: Any) -> list[tuple[Any, BatchInfo]]:
    """Return batches and their infos, whose views were used."""
    return list(
        make(path, batch_size, batch_transform=lambda batch, info: (batch, info, dict(info.views))[:2], **options)
    )


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
    tmp_path: Path, geometry: Geometry, kind: str
) -> None:
    path = write(tmp_path / "x.frec", kind=kind)
    flips = []
    for _ in range(2):  # the same again
        for images, info in gathered(path, 4, image=geometry, flip=True):
            view = info.views["image"]
            assert [tuple(size) for size in view.sizes] == [SIZES[row] for row in info.rows]
            assert (view.output, view.matrix.shape) == (geometry.output, (len(info), 3, 3))
            assert [str(a.dtype) for a in (view.sizes, view.boxes, view.flipped)] == ["int64", "float64", "bool"]
            for slot, image in enumerate(images):
                assert_is_where_it_says(image, view, slot)
            flips += view.flipped.tolist()
    assert flips[: len(SIZES)] == flips[len(SIZES) :]
    assert 0 < sum(flips) < len(flips)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=repr)
def test_boxes_moved_by_the_matrix_are_where_torchvision_moves_them(tmp_path: Path, geometry: Geometry) -> None:
    path = write(tmp_path / "x.frec", boxes=True)
    for batch, info in gathered(path, 3, image=geometry, flip=True, fields=("image", "boxes")):
        view = info.views["image"]
        for slot, boxes in enumerate(batch["boxes"]):
            height, width = (int(side) for side in view.sizes[slot])
            box: Any = tv_tensors.BoundingBoxes(boxes.double(), format="XYXY", canvas_size=(height, width))
            box = v2.functional.pad(box, [300] * 4)  # torchvision clips to the image
            part = view.boxes[slot][[1, 0, 3, 2]] + 300
            if np.allclose(part, part.round(), atol=1e-9):
                top, left, bottom, right = (round(side) for side in part)
                shown = v2.functional.resized_crop(box, top, left, bottom - top, right - left, list(view.output))
            else:
                assert isinstance(geometry, CenterCrop)
                assert geometry.resize is not None
                box = tv_tensors.BoundingBoxes(boxes.double(), format="XYXY", canvas_size=(height, width))
                shown = v2.CenterCrop(geometry.output)(v2.Resize(geometry.resize)(box))
            if view.flipped[slot]:
                shown = v2.functional.horizontal_flip(shown)
            moved = move(boxes.double().numpy(), view.matrix[slot])
            clipped = np.clip(moved.reshape(-1, 2, 2), 0, view.output[::-1]).reshape(-1, 4)
            np.testing.assert_allclose(clipped, shown.numpy(), atol=1e-3)


def move(boxes: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    corners = boxes.reshape(-1, 2, 2) @ matrix[:2, :2].T + matrix[:2, 2]
    return np.concatenate([corners.min(1), corners.max(1)], 1)


def test_the_box_is_that_of_the_crop_in_whole_pixels(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", kind="PPM")
    ((images, info),) = gathered(path, len(SIZES), image=RandomCrop(24), flip=False)
    for image, (left, top, right, bottom), row in zip(images, info.views["image"].boxes, info.rows, strict=True):
        part = smooth(*SIZES[row])[int(top) : int(bottom), int(left) : int(right)]
        np.testing.assert_array_equal(image.permute(1, 2, 0), part)


def test_a_crop_beside_the_image_has_its_box_and_the_images_matrix(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", [(8, 8)] * 60)
    ((images, info),) = gathered(path, 60, image=RandomCrop(4, padding=10), flip=True)
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
    for geometries in (
        {"lr": RandomCrop(12, padding=2), "hr": RandomCrop(24)},
        {"hr": RandomResizedCrop(40), "lr": RandomResizedCrop((30, 20))},
    ):
        options: dict[str, Any] = {"image": geometries, "flip": True}
        for batch, info in gathered(dataset, 4, **options):
            assert list(info.views) == list(geometries)
            low, high = info.views["lr"], info.views["hr"]
            assert low.flipped.tolist() == high.flipped.tolist()
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
        infos = [info for _, info in gathered(dataset, batch_size, **options)]
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
    ((images, info),) = gathered(path, 8, exif_orientation=True)
    assert info.views["image"].sizes.tolist() == [[40, 70]] * 8
    for slot, image in enumerate(images):
        assert_is_where_it_says(image, info.views["image"], slot)


def test_views_are_there_after_the_iteration_and_in_a_pickle_and_arrays_have_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x.frec", boxes=True)
    (_, info), *_ = gathered(path, 4)
    copy = pickle.loads(pickle.dumps(info))
    np.testing.assert_array_equal(copy.views["image"].matrix, info.views["image"].matrix)
    assert "boxes" in repr(info)
    with pytest.raises(KeyError):
        info.views["boxes"]
    for _, info in gathered(fr.FastRecordDataset(path, fields=("boxes",)), 4, image=None, flip=False):
        assert dict(info.views) == {}


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

    def loader(geometry: Geometry, flip: bool = False, **options: Any) -> fr.FastRecordLoader:
        return make(data, 2, image={"image": geometry}, flip=flip, **options)

    warned = [
        loader(RandomResizedCrop(8)),
        loader(RandomCrop(8)),
        loader(Resize(8), flip=True),
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
        loader(Resize(8)),
        loader(CenterCrop(8)),
        loader(RandomCrop(8), batch_transform=lambda batch, info: (batch, info.views["image"])),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(made)
