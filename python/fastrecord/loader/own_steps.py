"""`OwnSteps`: what the consumer's thread does to images from a `Lambda` on, one after the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastrecord._core import Recipe
from fastrecord.loader.sample import Picture
from fastrecord.transforms import Lambda


class OwnSteps:
    """The rest of the transforms of an output.

    Args:
        picture: The output, which has bytes so far.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        parts = picture.pipeline.own_recipes()
        self._parts: list[Lambda | list[Recipe]] = [
            part
            if isinstance(part, Lambda)
            else [Recipe(json.dumps(part), picture.name, view) for view in range(picture.count or 1)]
            for part in parts
        ]

    def apply(self, images: torch.Tensor, order: tuple[int, int], positions: NDArray[np.int64]) -> torch.Tensor:
        """Return a batch after the steps.

        Args:
            images: uint8 (B, [views,] H, W, C), on the CPU.
            order: Seed and epoch.
            positions: Of the records, int64 (B,).

        Returns:
            (B, [views,] C, H, W).

        Raises:
            TypeError, ValueError: a function returned something else than an image of the same shape.
        """
        views = images if self._picture.count else images[:, None]
        made = [
            torch.stack([self._one(image, view, (*order, position)) for view, image in enumerate(record)])
            for record, position in zip(views, positions.tolist(), strict=True)
        ]
        batch = torch.stack(made) if made else torch.empty(0)
        return batch if self._picture.count else batch[:, 0]

    def _one(self, image: torch.Tensor, view: int, place: tuple[int, int, int]) -> torch.Tensor:
        """Return one image (H, W, C) as (C, H, W)."""
        to_float = self._picture.pipeline.to_float
        shape = tuple(image.permute(2, 0, 1).shape)
        for part in self._parts:
            if isinstance(part, Lambda):
                made: Any = part.lambd(image.permute(2, 0, 1))
                found = (made.dtype, tuple(made.shape)) if isinstance(made, torch.Tensor) else type(made).__name__
                if found != (torch.uint8, shape):
                    raise ValueError(f"the function of Lambda returns an image, uint8 {shape}, not {found}")
                image = made.permute(1, 2, 0)
                continue
            recipe, array = part[view], np.ascontiguousarray(image.numpy())
            drawn = recipe.draw(*place, array.shape[:2])
            array = recipe.apply(array, drawn)
            if part is not self._parts[-1] or to_float is None:
                image = torch.from_numpy(array)
                continue
            values = torch.from_numpy(recipe.convert(array, drawn)).view(to_float.torch_dtype)
            return values.view(shape) if to_float.layout == "nchw" else values.view(array.shape).permute(2, 0, 1)
        return image.permute(2, 0, 1)
