"""`Lambda`: a function of the user's on each image, in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fastrecord.transforms.transform import Transform


@dataclass(frozen=True)
class Lambda(Transform):
    """Calls a function with each image, in the thread of the training loop: slow.

    The core's threads do what comes before it, and the loop's thread what comes after it, one image after the
    other. No operation that moves pixels can follow. A function of whole batches, `batch_transform`, costs
    less.

    Attributes:
        lambd: Takes and returns an image, uint8 (C, H, W) of the same shape.

    Raises:
        TypeError: it is not callable.
    """

    lambd: Callable[[torch.Tensor], torch.Tensor]

    def __post_init__(self) -> None:
        if not callable(self.lambd):
            raise TypeError(f"Lambda takes a function, not {self.lambd!r}")
