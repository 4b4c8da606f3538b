"""What each list of geometries shows, against torchvision's v2 on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

import fastrecord as fr
from fastrecord.transforms import (
    CenterCrop,
    FiveCrop,
    Geometry,
    Letterbox,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from tests.support.loading import with_info
from tests.support.pictures import pixels, save

SIZES = [(40, 60), (61, 43), (30, 80), (96, 33), (50, 50), (41, 67)]
FILL = (1, 2, 255)
MEASURED = (0.6, 4)  # the mean difference and the largest


def source(number: int) -> torch.Tensor:
    """Return an image that has no pixel of the colour `FILL`, uint8 (3, H, W)."""
    height, width = SIZES[number]
    image = pixels(width, height, seed=number)
    return torch.from_numpy(image.clip(30, 220)).permute(2, 0, 1).contiguous()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources") / "x.frec"
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        for number in range(len(SIZES)):
            # Raw pixels, as `pack(raw=True)` stores them, every other time.
            image = Image.fromarray(source(number).permute(1, 2, 0).numpy())
            writer.append({"image": save(image, "PPM" if number % 2 else "PNG")})
    return path


def resize(image: torch.Tensor, step: Resize) -> torch.Tensor:
    size = [step.size] if isinstance(step.size, int) else list(step.size)
    mode = InterpolationMode(step.interpolation)
    resized: torch.Tensor = functional.resize(image, size, mode, max_size=step.max_size, antialias=True)
    return resized


def expected(image: torch.Tensor, steps: Sequence[Geometry], box: Sequence[float]) -> list[torch.Tensor]:
    """Return the views that torchvision makes; a crop at random is at the place that was drawn."""
    whole, border = image.shape[1:], (0, 0)
    for step in steps:
        match step:
            case Resize():
                image = resize(image, step)
            case Pad():
                border = step.padding[0], step.padding[1]  # type: ignore[index]
                image = functional.pad(image, list(step.padding), fill=list(step.fill or [0]))  # type: ignore[arg-type]
            case CenterCrop():
                return [functional.center_crop(image, list(step.size))]  # type: ignore[arg-type]
            case FiveCrop():
                return list(functional.five_crop(image, list(step.size)))  # type: ignore[arg-type]
            case RandomResizedCrop():
                left, top, right, bottom = (round(side) for side in box)
                assert np.allclose(box, [left, top, right, bottom], atol=1e-9)
                mode = InterpolationMode(step.interpolation)
                where = (top, left, bottom - top, right - left)
                return [functional.resized_crop(image, *where, list(step.size), mode, antialias=True)]  # type: ignore[arg-type]
            case Letterbox():
                height, width = step.size  # type: ignore[misc]
                scale = min(height / whole[0], width / whole[1])
                small = [round(side * scale) for side in whole]
                image = resize(image, Resize(tuple(small), step.interpolation))  # type: ignore[arg-type]
                top, left = (height - small[0]) // 2, (width - small[1]) // 2
                sides = [left, top, width - small[1] - left, height - small[0] - top]
                return [functional.pad(image, sides, fill=list(step.fill or [0]))]  # type: ignore[arg-type]
            case RandomCrop():
                # Its place in the image that was resized before.
                height, width = image.shape[1] - 2 * border[1], image.shape[2] - 2 * border[0]
                place = box[0] * width / whole[1] + border[0], box[1] * height / whole[0] + border[1]
                left, top = (round(side) for side in place)
                assert np.allclose(place, [left, top], atol=1e-6)
                around = [100] * 4
                image = functional.pad(image, around, fill=list(step.fill or [0]))  # type: ignore[arg-type]
                return [functional.crop(image, top + 100, left + 100, *step.size)]  # type: ignore[misc]
    return [image]


CHAINS: list[list[Geometry]] = [
    [Resize(32), CenterCrop(24)],
    [Resize(61), CenterCrop((20, 30))],
    [Resize(128), CenterCrop(48)],
    [Resize(48, max_size=56), CenterCrop((28, 40))],
    [Resize(48, "bicubic", max_size=60), CenterCrop(46)],
    [Resize((50, 64)), CenterCrop(40)],
    [Resize((50, 64)), CenterCrop(80)],
    [CenterCrop(30)],
    [CenterCrop((90, 50))],
    [Resize((24, 24))],
    [Resize((50, 90))],
    [Resize((50, 90), "bicubic")],
    [Resize((20, 17), "bicubic")],
    [FiveCrop((20, 30))],
    [Resize(40), FiveCrop(32)],
    [Resize(40, "bicubic"), FiveCrop(32)],
    [Resize((40, 50)), FiveCrop((40, 20))],
    [Pad(5, FILL), CenterCrop((38, 40))],
    [Pad((30, 2, 7, 40), FILL), CenterCrop(60)],
    [Resize(40), Pad((9, 20), FILL), CenterCrop(58)],
    [Pad((8, 3), FILL), FiveCrop(36)],
    [Letterbox((40, 56), FILL)],
    [Letterbox((80, 70))],
    [Letterbox((120, 30), 9, "bicubic")],
    [RandomResizedCrop((24, 30))],
    [RandomResizedCrop((24, 30), interpolation="bicubic")],
    [RandomResizedCrop(70, scale=(0.05, 0.3))],
    [RandomCrop((24, 30))],
    [RandomCrop((50, 90), padding=20)],
    [RandomCrop((50, 60), padding=(30, 4, 9, 15), fill=FILL)],
    [Resize(40), RandomCrop(32)],
    [Resize((40, 60), "bicubic"), RandomCrop(32, padding=6, fill=FILL)],
    [Resize(40, max_size=44), RandomCrop((30, 50), padding=(7, 3), fill=FILL)],
    [Pad(4, FILL), RandomCrop(48, fill=FILL)],
]


@pytest.mark.parametrize("steps", CHAINS, ids=repr)
def test_pixels_and_borders_are_those_of_torchvision(sources: Path, steps: list[Geometry]) -> None:
    fill = torch.tensor(FILL, dtype=torch.uint8).view(3, 1, 1)
    for images, info in with_info(sources, 4, sample=steps, seed=7):
        view = info.views["image"]
        for slot, row in enumerate(info.rows):
            shown = images[slot] if images.ndim == 5 else images[slot][None]
            boxes = view.boxes[slot].reshape(-1, 4)
            wanted = expected(source(int(row)), steps, boxes[0])
            assert len(shown) == len(boxes) == len(wanted)
            for image, reference in zip(shown, wanted, strict=True):
                difference = (image.float() - reference.float()).abs()
                assert difference.mean() <= MEASURED[0]
                assert difference.max() <= MEASURED[1]
                assert torch.equal((image == fill).all(0), (reference == fill).all(0))
                assert torch.equal((image == 0).all(0), (reference == 0).all(0))
