"""The same random crop of two images of each record of a batch."""

from __future__ import annotations

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from fastrecord import transforms
from fastrecord.transforms import BatchInfo, PairedRandomCrop

SCALE = 4


def info(count: int, *, first: int = 0, epoch: int = 0, seed: int = 5) -> BatchInfo:
    positions = np.arange(first, first + count, dtype=np.int64)
    return BatchInfo(seed, epoch, positions, 1000 + positions)


def coordinates(height: int, width: int, record: int) -> torch.Tensor:
    """Return an image whose pixels show their row, column and record, int16 (height, width, 3)."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns, torch.full_like(rows, record)], 2).to(torch.int16)


def pair(height: int, width: int, record: int = 0, scale: int = SCALE) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image and a larger one whose pixels show their position in the smaller one."""
    small = coordinates(height, width, record)
    return small, small.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


def batch(count: int, height: int = 12, width: int = 17) -> dict[str, Any]:
    small, large = zip(*(pair(height, width, record) for record in range(count)), strict=True)
    return {"lr": torch.stack(small), "hr": torch.stack(large), "key": [str(i) for i in range(count)]}


def enlarged(images: torch.Tensor, scale: int = SCALE) -> torch.Tensor:
    return images.repeat_interleave(scale, 1).repeat_interleave(scale, 2)


ALL_TURNS: dict[str, Any] = {"flip": True, "vertical_flip": True, "rot90": True}


@pytest.mark.parametrize("turns", [{"flip": False}, {}, {"vertical_flip": True}, {"rot90": True}, ALL_TURNS])
@pytest.mark.parametrize("scale", [None, SCALE])
def test_both_crops_show_the_same_part_turned_alike(turns: dict[str, Any], scale: int | None) -> None:
    given = batch(40)
    before = {name: given[name].clone() for name in ("lr", "hr")}
    made = PairedRandomCrop(6, scale=scale, **turns)(given, info(40))
    assert made["lr"].shape == (40, 6, 6, 3)
    assert made["lr"].is_contiguous()
    assert torch.equal(enlarged(made["lr"]), made["hr"])
    assert made["lr"][:, 0, 0, 2].tolist() == list(range(40))
    assert made["key"] is given["key"]
    assert all(torch.equal(given[name], before[name]) for name in before)


def test_a_crop_is_a_part_of_its_image_as_it_is() -> None:
    made = PairedRandomCrop((5, 9), flip=False)(batch(30), info(30))["lr"]
    for record, crop in enumerate(made):
        top, left = crop[0, 0, :2].tolist()
        assert torch.equal(crop, coordinates(12, 17, record)[top : top + 5, left : left + 9])


def test_every_place_and_every_orientation_is_equally_likely() -> None:
    count = 24_000
    small = coordinates(4, 5, 0).expand(count, 4, 5, 3)
    crop = PairedRandomCrop(3, **ALL_TURNS)({"lr": small, "hr": small}, info(count))["lr"]
    top, left = (crop[..., axis].flatten(1).min(1).values.tolist() for axis in (0, 1))
    corner, along = crop[:, 0, 0, :2].tolist(), crop[:, 0, 1, :2].tolist()
    places = Counter(zip(top, left, strict=True))
    orientations = Counter(
        (a[0] - y, a[1] - x, b[0] - a[0], b[1] - a[1]) for a, b, y, x in zip(corner, along, top, left, strict=True)
    )
    assert set(places) == {(y, x) for y in range(2) for x in range(3)}
    for found in (places, orientations):
        expected = count / len(found)
        # Chi square of 5 or 7 degrees of freedom: above 30 for one seed in 10,000.
        assert sum((n - expected) ** 2 / expected for n in found.values()) < 30, found
    assert len(orientations) == 8


def test_one_more_turn_leaves_places_and_other_turns_alone() -> None:
    given = batch(200)
    plain = PairedRandomCrop(6, flip=False)(given, info(200))["lr"]
    flipped = PairedRandomCrop(6)(given, info(200))["lr"]
    mirrored = (flipped == plain.flip(2)).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], plain[~mirrored])
    assert 60 < int(mirrored.sum()) < 140
    both = PairedRandomCrop(6, vertical_flip=True)(given, info(200))["lr"]
    upside_down = (both == flipped.flip(1)).flatten(1).all(1)
    assert torch.equal(both[~upside_down], flipped[~upside_down])
    assert 60 < int(upside_down.sum()) < 140


def test_crops_belong_to_positions_not_to_batches_or_threads() -> None:
    given, crop = batch(64), PairedRandomCrop(6, **ALL_TURNS)
    whole = crop(given, info(64))

    def part(first: int) -> torch.Tensor:
        rows = {name: given[name][first : first + 8] for name in ("lr", "hr")}
        made: torch.Tensor = crop(rows, info(8, first=first))["hr"]
        return made

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(part, range(0, 64, 8)))
    assert torch.equal(torch.cat(parts), whole["hr"])
    assert torch.equal(crop(given, info(64))["hr"], whole["hr"])
    assert not torch.equal(crop(given, info(64, epoch=1))["hr"], whole["hr"])
    assert not torch.equal(crop(given, info(64, seed=6))["hr"], whole["hr"])
    other = PairedRandomCrop(6, **ALL_TURNS, stream=1)
    assert not torch.equal(other(given, info(64))["hr"], whole["hr"])
    assert torch.equal(pickle.loads(pickle.dumps(crop))(given, info(64))["hr"], whole["hr"])


def test_images_of_many_sizes_get_crops_of_one() -> None:
    sizes = [(6 + i % 5, 20 - i) for i in range(12)]
    small, large = zip(*(pair(h, w, record) for record, (h, w) in enumerate(sizes)), strict=True)
    crop = PairedRandomCrop(6, vertical_flip=True)
    made = crop({"lr": list(small), "hr": list(large)}, info(12))
    assert made["lr"].shape == (12, 6, 6, 3)
    assert torch.equal(enlarged(made["lr"]), made["hr"])
    same = batch(12)
    listed = crop({name: list(same[name]) for name in ("lr", "hr")}, info(12))
    assert torch.equal(listed["hr"], crop(same, info(12))["hr"])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.float32, torch.complex128])
def test_values_of_any_type_are_moved_as_they_are(dtype: torch.dtype) -> None:
    given = batch(9)
    crop = PairedRandomCrop(6, **ALL_TURNS)
    typed = crop({name: given[name].to(dtype) for name in ("lr", "hr")}, info(9))
    plain = crop(given, info(9))
    for name in ("lr", "hr"):
        assert typed[name].dtype == dtype
        assert torch.equal(typed[name], plain[name].to(dtype))


def test_memory_need_not_be_contiguous_and_channels_may_be_any_number() -> None:
    given = batch(9)
    crop = PairedRandomCrop(6, **ALL_TURNS)
    plain = crop(given, info(9))
    strided = {name: given[name].permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1) for name in ("lr", "hr")}
    assert torch.equal(crop(strided, info(9))["hr"], plain["hr"])
    grey = {name: given[name][..., 1:2] for name in ("lr", "hr")}
    assert torch.equal(crop(grey, info(9))["hr"], plain["hr"][..., 1:2])


def test_channels_come_first_as_a_view_if_asked_for() -> None:
    made = PairedRandomCrop(6, to_chw=True)(batch(9), info(9))
    plain = PairedRandomCrop(6)(batch(9), info(9))
    for name, side in (("lr", 6), ("hr", 24)):
        assert made[name].shape == (9, 3, side, side)
        assert made[name].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(made[name], plain[name].permute(0, 3, 1, 2))


def test_a_crop_may_be_the_whole_image_and_the_fields_may_have_any_name() -> None:
    small, large = pair(6, 9)
    made = PairedRandomCrop((6, 9), "low", "high", flip=False)({"high": large[None], "low": small[None]}, info(1))
    assert torch.equal(made["low"], small[None])
    assert torch.equal(made["high"], large[None])


@pytest.mark.gpu
def test_on_a_gpu_the_crops_are_the_same() -> None:
    given, crop = batch(32), PairedRandomCrop(6, **ALL_TURNS)
    made = crop({name: given[name].cuda() for name in ("lr", "hr")}, info(32))
    plain = crop(given, info(32))
    for name in ("lr", "hr"):
        assert made[name].is_cuda
        assert torch.equal(made[name].cpu(), plain[name])


def zeros(small: tuple[int, ...], large: tuple[int, ...]) -> dict[str, Any]:
    return {"lr": torch.zeros(*small), "hr": torch.zeros(*large)}


def listed(small: list[tuple[int, ...]], large: list[tuple[int, ...]]) -> dict[str, Any]:
    return {"lr": [torch.zeros(*shape) for shape in small], "hr": [torch.zeros(*shape) for shape in large]}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (zeros((2, 5, 9, 3), (2, 10, 18, 3)), ValueError, "record 1000: 'lr' is 5 x 9: a crop of 6 x 6 does not fit"),
        (zeros((2, 8, 8, 3), (2, 16, 17, 3)), ValueError, "1000: 'hr' is 16 x 17, which is not 2 times 'lr', 8 x 8"),
        (zeros((2, 8, 8, 3), (2, 7, 8, 3)), ValueError, "'hr' is 7 x 8, which is not 1 times 'lr'"),
        (
            listed([(8, 8, 3)] * 2, [(16, 16, 3), (24, 24, 3)]),
            ValueError,
            "1001: 'hr' is 24 x 24, which is not 2 times",
        ),
        (listed([(8, 8, 3), (5, 8, 3)], [(8, 8, 3), (5, 8, 3)]), ValueError, "record 1001: 'lr' is 5 x 8: a crop"),
        ({"lr": torch.zeros(2, 8, 8, 3)}, ValueError, "the batch has no field 'hr': it has 'lr'"),
        (zeros((3, 8, 8, 3), (3, 8, 8, 3)), ValueError, "field 'lr': 3 images in a batch of 2 records"),
        (zeros((2, 8, 8), (2, 8, 8)), ValueError, r"field 'lr': images are \(B, H, W, C\), not \(2, 8, 8\)"),
        (listed([(8, 8)] * 2, [(8, 8)] * 2), ValueError, r"1000, field 'lr': an image is a tensor .* not \(8, 8\)"),
        ({"lr": [b"png"] * 2, "hr": [b"png"] * 2}, ValueError, "record 1000, field 'lr': .* a tensor .* not bytes"),
        ({"lr": 5, "hr": 5}, TypeError, "field 'lr': images are a tensor, or a sequence of them, not int"),
        ((torch.zeros(2, 8, 8, 3), torch.zeros(2)), TypeError, "the batch is a mapping of field -> images, not tuple"),
    ],
)
def test_a_batch_that_is_none_of_pairs_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PairedRandomCrop(6)(given, info(2))


def test_another_scale_than_the_one_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match="record 1000: 'hr' is 48 x 68, which is not 2 times 'lr', 12 x 17"):
        PairedRandomCrop(6, scale=2)(batch(2), info(2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 0}, ValueError, "size: height is from 1 to 65535, not 0"),
        ({"size": "6"}, TypeError, "size: height is an int, not str"),
        ({"size": (6, 6, 3)}, ValueError, r"size is an int or \(height, width\)"),
        ({"size": (6, True)}, TypeError, "size: width is an int, not a bool"),
        ({"size": 6, "scale": 1.5}, TypeError, "scale is an int, not float: 1.5"),
        ({"size": 6, "hr": "lr"}, ValueError, "lr and hr are two fields, not both 'lr'"),
        ({"size": (6, 8), "rot90": True}, ValueError, "with rot90 the crop is a square, not 6 x 8"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        PairedRandomCrop(**arguments)


def test_transforms_lists_what_it_offers() -> None:
    assert all(hasattr(transforms, name) for name in transforms.__all__)
