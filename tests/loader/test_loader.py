"""FastRecordLoader's batches: shapes, labels, fields, geometry, order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from fastrecord.transforms import (
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from tests.support.loading import CLASSES, COUNT, epoch, make, photo, python_calls, write_payloads
from tests.support.pictures import save


def decoded(number: int) -> torch.Tensor:
    """Return the core's pixels of a record of `photos`, uint8 (3, H, W)."""
    return torch.from_numpy(fr.decode_image(photo(number)).copy()).permute(2, 0, 1)


@pytest.mark.parametrize("size", [24, (20, 31)])
def test_images_are_uint8_in_channels_last_memory_and_labels_int64(photos: Path, size: Any) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    batches = list(make(photos, 8, sample=RandomResizedCrop(size)))
    assert [len(images) for images, _ in batches] == [8, 8, 6]
    for images, labels in batches:
        assert (images.dtype, images.device.type) == (torch.uint8, "cpu")
        assert images.shape[1:] == (3, height, width)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert images.permute(0, 2, 3, 1).is_contiguous()
        assert (labels.dtype, labels.shape) == (torch.int64, (len(images),))
    assert torch.cat([labels for _, labels in batches]).tolist() == [number % 3 for number in range(COUNT)]


def test_fields_of_a_shuffled_batch_are_those_of_its_records(photos: Path) -> None:
    made = make(photos, 5, shuffle=True, seed=3, fields=["image", "label", "key", "weight"])
    for _, labels, keys, weights in map(dict.values, made):
        assert (labels.dtype, weights.dtype) == (torch.int64, torch.float64)
        numbers = [int(key.removeprefix("train/")) for key in keys]
        assert labels.tolist() == [number % 3 for number in numbers]
        assert weights.tolist() == [number / 2 for number in numbers]


def test_without_labels_a_batch_is_the_images_alone(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "key": fr.string()})) as writer:
        for number in range(3):
            writer.append({"image": photo(number), "key": str(number)})
    (images,) = list(make(tmp_path / "a.frec"))
    assert images.shape == (3, 3, 24, 24)
    (again,) = list(make(tmp_path / "a.frec", fields=["image", "key"]))
    assert again["key"] == ["0", "1", "2"]
    assert torch.equal(images, again["image"])


def test_a_label_may_be_a_float_and_a_target_transform_is_applied(tmp_path: Path, photos: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.image(), "label": "float64"})) as writer:
        for number in range(3):
            writer.append({"image": photo(number), "label": number / 4})
    ((_, labels),) = list(make(tmp_path / "a.frec"))
    assert (labels.dtype, labels.tolist()) == (torch.float64, [0, 0.25, 0.5])
    dataset = fr.FastRecordDataset(photos, target_transform=lambda label: 10 * label)
    assert next(iter(make(dataset)))[1].tolist() == [0, 10, 20, 0]


def test_several_files_are_one_with_classes_matched_by_name(photos: Path, tmp_path: Path) -> None:
    other = write_payloads(tmp_path / "more.frec", [photo(100 + number) for number in range(6)], CLASSES[:0:-1])
    dataset = fr.FastRecordDataset([photos, other], fields=["image", "label", "key"])
    loader = make(dataset, 8, sample=CenterCrop(24))
    assert len(loader) == 4
    batches = [list(batch.values()) for batch in loader]
    keys = [key for batch in batches for key in batch[2]]
    assert keys == [f"train/{number}" for number in range(COUNT)] + [f"more/{number}" for number in range(6)]
    labels = torch.cat([batch[1] for batch in batches]).tolist()
    assert labels == [number % 3 for number in range(COUNT)] + [2, 1, 2, 1, 2, 1]
    alone = torch.cat([epoch(make(path, sample=CenterCrop(24))) for path in (photos, other)])
    assert torch.equal(torch.cat([batch[0] for batch in batches]), alone)


@pytest.mark.parametrize("access", ["mmap", "pread"])
@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 5}, {"prefetch": 0}, {"prefetch": 4, "threads": 3}])
def test_order_and_crops_do_not_depend_on_threads_or_on_what_is_under_way(
    photos: Path, options: dict[str, Any], access: str
) -> None:
    expected = list(make(photos, shuffle=True, seed=5))
    batches = list(make(fr.FastRecordDataset(photos, access=access), shuffle=True, seed=5, **options))
    assert len(batches) == len(expected) == 6
    for ours, theirs in zip(batches, expected, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


def test_crops_do_not_depend_on_the_batch_size_but_on_seed_and_epoch(photos: Path) -> None:
    loader = make(photos, 4, shuffle=True, seed=5)
    first, second = epoch(loader), epoch(loader)
    assert torch.equal(epoch(make(photos, 9, shuffle=True, seed=5)), first)
    # The crops differ too, not only the order.
    plain = make(photos)
    once, twice = epoch(plain), epoch(plain)
    assert not any(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    assert not torch.equal(epoch(make(photos, seed=6)), once)
    loader.set_epoch(0)
    assert torch.equal(epoch(loader), first)
    assert torch.equal(epoch(loader), second)


def test_a_record_that_comes_twice_in_an_epoch_is_cropped_anew(photos: Path) -> None:
    ((images, labels),) = list(make(photos, None, batch_sampler=[[4, 4, 4]]))
    assert labels.tolist() == [1, 1, 1]
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[1], images[2])


def ramp(width: int, height: int) -> NDArray[np.uint8]:
    """Return an image whose red is the column and whose green is the row."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([x, y, np.zeros_like(x)], axis=2).astype(np.uint8)


@pytest.fixture(scope="module")
def ramps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 300 copies of a 220 x 180 PNG whose pixels show the position of a crop."""
    data = save(Image.fromarray(ramp(220, 180)), "PNG")
    return write_payloads(tmp_path_factory.mktemp("ramps") / "ramps.frec", [data] * 300)


def part(image: torch.Tensor) -> tuple[float, float, float, float, bool]:
    """Return left, top, width and height of a crop of `ramp`, and whether it is mirrored."""
    red, green = image[0].float().mean(0), image[1].float().mean(1)
    # The filter lacks neighbours at the edges of a part, so the inner pixels give its place.
    size = len(red)
    step_x, step_y = (red[-3] - red[2]) / (size - 5), (green[-3] - green[2]) / (size - 5)
    middle_x, middle_y = (red[-3] + red[2]) / 2, (green[-3] + green[2]) / 2
    width, height = abs(step_x) * size, step_y * size
    left, top = float(middle_x + 0.5 - width / 2), float(middle_y + 0.5 - height / 2)
    return left, top, float(width), float(height), bool(step_x < 0)


def test_random_resized_crops_are_the_resized_parts_that_they_show(ramps: Path) -> None:
    whole = Image.fromarray(ramp(220, 180))
    images = epoch(make(ramps, 50))
    areas, ratios, mirrored = [], [], 0
    for image in images:
        left, top, width, height, flipped = part(image)
        box = tuple(round(value) for value in (left, top, left + width, top + height))
        expected = np.asarray(whole.crop(box).resize((24, 24), Image.Resampling.BILINEAR))  # type: ignore[arg-type]
        shown = image.flip(2) if flipped else image
        assert np.abs(shown.permute(1, 2, 0).numpy().astype(float) - expected).mean() < 1
        areas.append(width * height / (220 * 180))
        ratios.append(width / height)
        mirrored += flipped
    assert 0.07 < min(areas) < 0.15
    assert 0.85 < max(areas) < 1.01
    assert 0.73 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 1.37
    assert 120 < mirrored < 180


def test_scale_and_ratio_are_those_asked_for(ramps: Path) -> None:
    geometry = RandomResizedCrop(24, scale=(0.5, 0.6), ratio=(1.9, 2.0))
    parts = [part(image) for image in epoch(make(ramps, 100, sample=geometry))]
    assert all(0.47 < width * height / (220 * 180) < 0.63 for _, _, width, height, _ in parts)
    assert all(1.85 < width / height < 2.06 for _, _, width, height, _ in parts)
    assert not any(flipped for *_, flipped in parts)


def test_crops_are_the_same_with_and_without_mirroring(ramps: Path) -> None:
    mirrored, plain = epoch(make(ramps, 100)), epoch(make(ramps, 100, sample=RandomResizedCrop(24)))
    for one, other in zip(mirrored, plain, strict=True):
        assert torch.equal(one, other.flip(2) if part(one)[-1] else other)


@pytest.mark.parametrize("padding", [0, 30])
def test_random_crops_are_pixels_of_the_image_and_black_beyond_it(ramps: Path, padding: int) -> None:
    padded = np.pad(ramp(220, 180), ((padding, padding), (padding, padding), (0, 0)))
    corners: Counter[tuple[int, int]] = Counter()
    for image in epoch(make(ramps, 100, sample=RandomCrop((120, 180), padding=padding))):
        pixels = image.permute(1, 2, 0).numpy()
        # The middle of the crop is always inside the image.
        left, top = int(pixels[60, 90, 0]) - 90 + padding, int(pixels[60, 90, 1]) - 60 + padding
        assert np.array_equal(pixels, padded[top : top + 120, left : left + 180])
        corners[left, top] += 1
    lefts, tops = {left for left, _ in corners}, {top for _, top in corners}
    assert (min(lefts), min(tops)) <= (3, 3)
    assert max(lefts) >= 40 + 2 * padding - 3
    assert max(tops) >= 60 + 2 * padding - 3


def test_a_small_image_gets_a_black_border_in_a_random_crop(tmp_path: Path) -> None:
    data = save(Image.new("RGB", (10, 12), (200, 100, 50)), "PNG")
    ((images, _),) = list(make(write_payloads(tmp_path / "a.frec", [data]), sample=RandomCrop((20, 8))))
    assert (images[0].sum(0) > 0).sum() == 8 * 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_byte_becomes_what_normalize_makes_of_it(tmp_path: Path, dtype: torch.dtype) -> None:
    every = np.stack([np.roll(np.arange(256, dtype=np.uint8), turn) for turn in (0, 100, 200)], axis=1)
    image = Image.fromarray(every.reshape(16, 16, 3))
    # The core decodes the first, Pillow the second.
    payloads = [save(image, "PNG"), save(image, "QOI"), b"no image"]
    path = write_payloads(tmp_path / "a.frec", payloads, images=False)
    settings = {"sample": Resize((16, 16)), "shuffle": False, "on_error": "skip"}
    with pytest.warns(UserWarning, match="1 of kind QOI"):
        ((images, labels),) = list(make(path, 3, dtype=dtype, **settings))
    with pytest.warns(UserWarning, match="1 of kind QOI"):
        ((plain, _),) = list(make(path, 3, **settings))
    assert images.dtype == dtype
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len(images) == len(labels) == 2
    assert torch.equal(plain[0], torch.from_numpy(every.reshape(16, 16, 3)).permute(2, 0, 1))
    wanted = Normalize(dtype=torch.float64)(plain)
    step = torch.finfo(dtype).eps
    assert ((images.double() - wanted).abs() <= step / 2 * wanted.abs() + 1e-6).all()


def test_a_device_may_be_named(photos: Path) -> None:
    for images, labels in make(photos, device="cpu", dtype=torch.float32):
        assert images.device.type == labels.device.type == "cpu"
        assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "options",
    [{}, {"fields": ["image", "weight"]}, {"dtype": torch.float16}, {"sample": {"image": Resize((24, 24))}}],
    ids=["images and labels", "a number field", "normalised", "several images"],
)
def test_no_python_runs_for_a_record(ramps: Path, options: dict[str, Any]) -> None:
    few = make(ramps, None, batch_sampler=[list(range(8))] * 5, **options)
    many = make(ramps, None, batch_sampler=[list(range(64))] * 5, **options)
    calls = python_calls(few)
    assert calls > 5
    assert python_calls(many) == calls
