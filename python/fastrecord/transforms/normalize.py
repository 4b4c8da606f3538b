"""`Normalize`: normalises images on a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fastrecord.transforms.to_float import IMAGENET_MEAN, IMAGENET_STD


class Normalize(nn.Module):
    """Normalises uint8 images to about zero mean and unit variance, on any device, also compiled.

    Args:
        mean, std: One number for each channel, for values in [0, 1].
        dtype: Type of the result; the computation is in float32.

    Raises:
        ValueError: the numbers of means and standard deviations differ, or a standard deviation is
            not above 0.
        TypeError: `dtype` is not a float type.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise ValueError(f"mean and std have a number for each channel, std above 0: not {mean} and {std}")
        if not getattr(dtype, "is_floating_point", False):
            raise TypeError(f"dtype is a float type, not {dtype}")
        self.dtype = dtype
        # Arguments, not part of a model's state: checkpoints without them load.
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return normalised `images`, uint8 (B, C, H, W), in `dtype` and the same memory format."""
        return ((images - self.mean) / self.std).to(self.dtype)

    def extra_repr(self) -> str:
        """Describe the arguments."""
        return f"mean={(self.mean / 255).flatten().tolist()}, std={(self.std / 255).flatten().tolist()}, {self.dtype}"
