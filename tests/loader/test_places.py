"""Boxes and keypoints follow an image through its crop and moves, in each form of a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord.transforms import (
    CenterCrop,
    Like,
    Operation,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)
from tests.support.loading import make, with_info
from tests.support.pictures import picture, save

HEIGHT, WIDTH = 90, 120
COUNT = 16
IMAGE = save(picture(WIDTH, HEIGHT), "PPM")
MOVES: list[Operation] = [
    RandomHorizontalFlip(1.0),
    RandomVerticalFlip(1.0),
    RandomRotation(40),
    RandomAffine(20, (0.2, 0.1), (0.8, 1.3), (-15, 15, -10, 10)),
    RandomPerspective(0.4, p=1.0, interpolation="nearest"),
]


def whole_boxes(number: int) -> NDArray[np.float32]:
    """Return boxes of whole pixels, left, top, right and bottom, (number % 3 + 1, 4)."""
    rng = np.random.default_rng(number)
    first = rng.integers((2, 2), (WIDTH - 45, HEIGHT - 35), (number % 3 + 1, 2))
    return np.concatenate([first, first + rng.integers(14, 30, first.shape)], 1).astype(np.float32)


def formed(boxes: NDArray[Any], form: str) -> NDArray[Any]:
    low, high = boxes[:, :2], boxes[:, 2:]
    firsts = {"xyxy": boxes, "xywh": np.concatenate([low, high - low], 1)}
    return firsts.get(form, np.concatenate([(low + high) / 2, high - low], 1)).astype(boxes.dtype)


def corners(boxes: NDArray[Any], form: str) -> NDArray[Any]:
    if form == "xyxy":
        return boxes
    low = boxes[:, :2] - (boxes[:, 2:] / 2 if form == "cxcywh" else 0)
    return np.concatenate([low, low + boxes[:, 2:]], 1)


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images with boxes in all forms; masks that have each box as 1 where it is; points in its corners."""
    path = tmp_path_factory.mktemp("boxed") / "x.frec"
    fields = {
        "image": fr.image(),
        **{form: fr.array("float32", (None, 4)) for form in ("xyxy", "xywh", "cxcywh")},
        "three": fr.array("float64", (3, 4)),
        "whole": fr.array("int32", (None, 4)),
        "drawn": fr.array("uint8", (HEIGHT, WIDTH, 3)),
        "points": fr.array("float32", (None, 4, 2)),
        "label": fr.FieldType("int64"),
    }
    with fr.Writer(path, fr.Schema(fields)) as writer:
        for number in range(COUNT):
            boxes = whole_boxes(number)
            drawn = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            for channel, (left, top, right, bottom) in enumerate(boxes.astype(int)):
                drawn[top:bottom, left:right, channel] = 1
            record = {form: formed(boxes, form) for form in ("xyxy", "xywh", "cxcywh")}
            three = np.zeros((3, 4))
            three[: len(boxes)] = boxes
            points = boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
            extra = {"three": three, "whole": boxes.astype(np.int32), "drawn": drawn, "points": points, "label": number}
            writer.append({"image": IMAGE, **record, **extra})
    return path


def dataset(path: Path, *fields: str) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(path, fields=("image", *fields))


@pytest.mark.parametrize("crop", [Resize((HEIGHT, WIDTH)), RandomResizedCrop((80, 100), scale=(0.4, 1))], ids=repr)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: type(move).__name__)
@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_a_box_surrounds_what_is_drawn_in_it(boxed: Path, form: str, move: Operation, crop: Any) -> None:
    sample = {"image": [crop, move], "drawn": Like("image"), "points": Like("image", keypoints=True)}
    sample[form] = Like("image", boxes=form)
    seen = 0
    data = dataset(boxed, "drawn", form, "points")
    for batch, info in with_info(data, 8, sample=sample, seed=3):
        height, width = info.views["image"].output
        for slot, boxes in enumerate(batch[form]):
            kept = batch[f"{form}_kept"][slot]
            assert kept.dtype == torch.bool
            for channel, box in enumerate(corners(boxes.double().numpy(), form)):
                rows, columns = np.nonzero(batch["drawn"][slot, :, :, channel].numpy())
                if len(rows) == 0:
                    continue
                assert kept[channel] or min(box[2:] - box[:2]) < 1.001
                assert (box >= -1e-3).all()
                assert (box <= np.array([width, height, width, height]) + 1e-3).all()
                found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                # What is turned leaves its corners' tips, and what was cut off before it was turned, unshown.
                points, inside = batch["points"][slot][channel], batch["points_kept"][slot][channel]
                assert (found >= box - 1.6).tolist()[:2] == [True, True]
                assert (found <= box + 1.6).tolist()[2:] == [True, True]
                seen += 1
                if isinstance(crop, Resize) and bool(inside.all()):
                    assert np.abs(found - box).max() <= 2.6
                    ends = np.concatenate([points.min(0).values, points.max(0).values])
                    np.testing.assert_allclose(ends, box, atol=1e-2)
    assert seen > COUNT


@pytest.mark.parametrize(
    "steps",
    [[RandomResizedCrop((24, 30))], [Resize(60), CenterCrop((50, 58))], [RandomCrop((60, 100), padding=20)]],
    ids=repr,
)
def test_boxes_are_where_torchvision_moves_them(boxed: Path, steps: list[Any]) -> None:
    sample = {"image": [*steps, RandomHorizontalFlip()], "xyxy": Like("image", boxes="xyxy")}
    for batch, info in with_info(dataset(boxed, "xyxy"), 5, sample=sample):
        view = info.views["image"]
        for slot, row in enumerate(info.rows.tolist()):
            given: Any = torch.from_numpy(whole_boxes(row).astype(np.float64))
            box: Any = tv_tensors.BoundingBoxes(given, format="XYXY", canvas_size=(HEIGHT, WIDTH))
            if isinstance(steps[0], Resize):
                box = v2.CenterCrop([50, 58])(v2.Resize(60)(box))
            else:
                left, top, right, bottom = (round(side) + 100 for side in view.boxes[slot])
                box = v2.functional.pad(box, [100] * 4)  # torchvision clips to the image
                box = v2.functional.resized_crop(box, top, left, bottom - top, right - left, list(view.output))
            if view.matrix[slot, 0, 0] < 0:
                box = v2.functional.horizontal_flip(box)
            np.testing.assert_allclose(batch["xyxy"][slot], box, atol=1e-3)
            sides = (box[:, 2:] - box[:, :2]).min(1).values
            sure = (sides - 1).abs() > 1e-3
            assert torch.equal(batch["xyxy_kept"][slot][sure], (sides >= 1)[sure])


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_all_forms_of_a_column_have_the_same_boxes(boxed: Path, on_error: Any) -> None:
    sample = {"image": [RandomResizedCrop(40), RandomRotation(20)], "xyxy": Like("image", boxes="xyxy", min_size=4)}
    sample |= {"points": Like("image", keypoints=True)}
    data = dataset(boxed, "xyxy", "points")
    made = {
        form: list(make(data, 6, sample=sample, ragged={"xyxy": form, "points": form}, on_error=on_error))
        for form in ("list", "pad", "packed")
    }
    for lists, padded, packed in zip(*made.values(), strict=True):
        for name in ("xyxy", "points"):
            (values, lengths), kept = padded[name], padded[f"{name}_kept"]
            assert kept.shape == values.shape[:-1]
            (flat, offsets), flat_kept = packed[name], packed[f"{name}_kept"]
            assert lengths.tolist() == [len(one) for one in lists[name]] == offsets.diff().tolist()
            assert torch.equal(torch.cat(lists[name]), flat)
            assert torch.equal(torch.cat(lists[f"{name}_kept"]), flat_kept)
            for one, own, row, row_kept in zip(lists[name], lists[f"{name}_kept"], values, kept, strict=True):
                assert torch.equal(one, row[: len(one)])
                assert torch.equal(own, row_kept[: len(one)])
                assert not row[len(one) :].any()
                assert not row_kept[len(one) :].any()


def test_boxes_of_a_fixed_shape_and_of_integers(boxed: Path) -> None:
    crop = [RandomResizedCrop(64), RandomHorizontalFlip()]
    sample = {"image": crop, **{name: Like("image", boxes="xyxy") for name in ("xyxy", "three", "whole")}}
    for batch in make(dataset(boxed, "xyxy", "three", "whole"), 8, sample=sample):
        assert batch["three"].dtype == torch.float64
        assert (batch["three"].shape, batch["three_kept"].shape) == ((8, 3, 4), (8, 3))
        for slot, boxes in enumerate(batch["xyxy"]):
            count = len(boxes)
            torch.testing.assert_close(batch["three"][slot, :count].float(), boxes, atol=1e-3, rtol=0)
            assert torch.equal(batch["three_kept"][slot, :count], batch["xyxy_kept"][slot])
            assert not batch["three_kept"][slot, count:].any()
            assert batch["whole"][slot].dtype == torch.int32
            assert (batch["whole"][slot].float() - boxes).abs().max() <= 0.501


def test_no_boxes_at_all_are_a_batch_of_none(tmp_path: Path) -> None:
    path = tmp_path / "x.frec"
    with fr.Writer(path, fr.Schema({"image": fr.image(), "boxes": fr.array("float32", (None, 4))})) as writer:
        for _ in range(3):
            writer.append({"image": IMAGE, "boxes": np.zeros((0, 4), np.float32)})
    sample = {"image": RandomCrop(32), "boxes": Like("image", boxes="xyxy")}
    forms: tuple[Any, ...] = ("list", "pad", "packed")
    for form in forms:
        (batch,) = make(fr.FastRecordDataset(path, fields=("image", "boxes")), 3, sample=sample, ragged={"boxes": form})
        values = batch["boxes"] if form == "list" else batch["boxes"][:1]
        assert sum(value.numel() for value in values) == 0
        assert sum(kept.numel() for kept in batch["boxes_kept"]) == 0


def test_with_a_batch_transform_boxes_are_moved_before_it(boxed: Path) -> None:
    sample = {"image": [RandomCrop(64)], "xyxy": Like("image", boxes="xyxy")}
    data = dataset(boxed, "xyxy")
    plain = list(make(data, 4, sample=sample))
    for (batch, info), other in zip(with_info(data, 4, sample=sample), plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch["xyxy"], other["xyxy"], strict=True))
        assert list(info.views) == ["image"]
