"""The operations on images against torchvision's functions with the numbers that were drawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fastrecord import transforms as T  # noqa: N812
from fastrecord._core import Recipe
from fastrecord.transforms.pipeline import Pipeline

Image = NDArray[np.uint8]


def picture(seed: int, height: int = 97, width: int = 120) -> Image:
    """Return smooth colours with edges and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 32
    waves = [np.sin(x * a + y * b + c) for a, b, c in random.uniform(-3, 3, (3, 3))]
    image = 127 + 90 * np.stack(waves, 2) + random.normal(0, 6, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    return image.clip(0, 255).astype(np.uint8)


def reference(image: torch.Tensor, step: dict[str, Any]) -> Any:
    """Return what torchvision makes of an image, uint8 (3, H, W), with the numbers of a step."""
    kind, given = step["step"], {name: value for name, value in step.items() if name != "step"}
    if "interpolation" in given:
        given["interpolation"] = InterpolationMode(given["interpolation"])
    match kind:
        case "horizontal_flip":
            return functional.horizontal_flip(image)
        case "vertical_flip":
            return functional.vertical_flip(image)
        case "brightness" | "contrast" | "saturation" | "hue" | "sharpness":
            return getattr(functional, f"adjust_{kind}")(image, given["factor"])
        case "grayscale":
            return functional.rgb_to_grayscale(image, 3)
        case "blur":
            return functional.gaussian_blur(image, given["kernel"], given["sigma"])
        case "affine":
            return functional.affine(image, **given)
        case "perspective":
            return functional.perspective(image, None, None, **given)
        case "mix":
            made = given["own"] * image
            for weight, steps in given["chains"]:
                made += weight * chain(image, steps)
            return made.to(torch.uint8)
        case "erase":
            part = image.clone()
            top, left = given["y"], given["x"]
            colour = torch.tensor(given["value"])[:, None, None]
            part[:, top : top + given["height"], left : left + given["width"]] = colour
            return part
        case _:
            return getattr(functional, kind)(image, **given)


def chain(image: torch.Tensor, steps: Sequence[dict[str, Any]]) -> torch.Tensor:
    for step in steps:
        image = reference(image, step)
    return image


# Operation, and how its result may differ: the share of values, and by how much.
EXACT = (0.0, 0)
FUSED = (1e-4, 1)  # torch fuses additions on some processors only
MOVED = (0.002, 255)  # another pixel is the nearest, by a rounding error
BLENDED = (0.05, 2)
OPERATIONS = [
    (T.RandomHorizontalFlip(), EXACT),
    (T.RandomVerticalFlip(), EXACT),
    (T.RandomInvert(), EXACT),
    (T.RandomPosterize(3), EXACT),
    (T.RandomSolarize(100.5), EXACT),
    (T.RandomEqualize(), EXACT),
    (T.RandomAutocontrast(), EXACT),
    (T.RandomGrayscale(1.0), FUSED),
    (T.RandomAdjustSharpness(2), FUSED),
    (T.RandomAdjustSharpness(0), FUSED),
    (T.ColorJitter(brightness=0.9), FUSED),
    (T.ColorJitter(contrast=0.9), FUSED),
    (T.ColorJitter(saturation=0.9), FUSED),
    (T.ColorJitter(hue=0.5), (0.001, 1)),
    (T.GaussianBlur(3), (0.05, 1)),
    (T.GaussianBlur((9, 23), (0.5, 3.0)), (0.05, 1)),
    (T.GaussianBlur((51, 1), (5.0, 9.0)), (0.01, 1)),
    (T.RandomRotation(180), MOVED),
    (T.RandomRotation((-30, 10), "bilinear", center=(10, 20), fill=(9, 99, 199)), BLENDED),
    (T.RandomAffine(90, (0.3, 0.2), (0.5, 2), (-20, 20, -10, 30)), MOVED),
    (T.RandomAffine(0, (0.3, 0.2)), EXACT),
    (T.RandomAffine(20, scale=(0.7, 1.2), interpolation="bilinear", fill=128), BLENDED),
    (T.RandomPerspective(0.7, interpolation="nearest"), MOVED),
    (T.RandomPerspective(0.4, fill=(200, 0, 10)), BLENDED),
    (T.RandomErasing(0.8, value=(1, 2, 3)), EXACT),
    (T.TrivialAugmentWide(), MOVED),
    (T.RandAugment(1, 12), MOVED),
    (T.RandAugment(1, fill=(7, 8, 9), interpolation="bilinear"), BLENDED),
]


def draw(operations: Sequence[T.Operation], position: int, image: Image) -> tuple[Recipe, dict[str, Any]]:
    recipe = Recipe(json.dumps(Pipeline.of([T.RandomResizedCrop(224), *operations]).recipe()), "image")
    return recipe, json.loads(recipe.draw(1, 2, position, image.shape[:2]))


@pytest.mark.parametrize(("operation", "allowed"), OPERATIONS, ids=lambda value: str(value)[:70])
def test_an_operation_makes_what_torchvision_makes_with_the_same_numbers(
    operation: T.Operation, allowed: tuple[float, int]
) -> None:
    different = values = 0
    drawn_once = False
    for position in range(40):
        image = picture(position)
        recipe, drawn = draw([operation], position, image)
        drawn_once |= bool(drawn["steps"])
        made = recipe.apply(image, json.dumps(drawn)).astype(int)
        wanted = chain(torch.from_numpy(image).permute(2, 0, 1), drawn["steps"]).permute(1, 2, 0).numpy()
        distance = np.abs(made - wanted)
        assert distance.max() <= allowed[1], drawn
        different, values = different + int(np.count_nonzero(distance)), values + distance.size
    assert drawn_once
    assert different <= allowed[0] * values


@pytest.mark.parametrize(
    "operation", [T.AugMix(), T.AutoAugment(), T.RandAugment(3, interpolation="bilinear")], ids=str
)
def test_chains_of_operations_stay_near_torchvision(operation: T.Operation) -> None:
    # A value that differs by one may become a far one in the next operation of a chain.
    far = values = 0
    for position in range(60):
        image = picture(position)
        recipe, drawn = draw([operation], position, image)
        made = recipe.apply(image, json.dumps(drawn)).astype(int)
        wanted = chain(torch.from_numpy(image).permute(2, 0, 1), drawn["steps"]).permute(1, 2, 0).numpy()
        far, values = far + int(np.count_nonzero(np.abs(made - wanted) > 1)), values + made.size
    assert far <= 0.003 * values


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 3), (3, 3), (5, 11)])
@pytest.mark.parametrize("operation", [one for one, _ in OPERATIONS if not isinstance(one, T.GaussianBlur)], ids=str)
def test_images_of_few_pixels_are_made(operation: T.Operation, size: tuple[int, int]) -> None:
    image = picture(3, *size)
    for position in range(20):
        recipe, drawn = draw([operation], position, image)
        made = recipe.apply(image, json.dumps(drawn))
        assert made.shape == image.shape
