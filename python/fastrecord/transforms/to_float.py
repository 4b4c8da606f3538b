"""`ToFloat`: pixels as normalised floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastrecord.checks import choice
from fastrecord.transforms.operation import number
from fastrecord.transforms.transform import Transform

# Mean and standard deviation of ImageNet's RGB values in [0, 1], as in torchvision's own training.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The mean of ImageNet's pixels, red, green and blue, of 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviation, of 1."""


@dataclass(frozen=True)
class ToFloat(Transform):
    """Converts values to floats: `byte / (255 * std) - mean / std`, in float32, then rounded to `dtype`.

    It comes after all operations on bytes; only `RandomErasing` can follow.

    Attributes:
        dtype: "float32", "float16" or "bfloat16", or torch's type.
        mean, std: One number for each channel, for values in [0, 1]; std above 0. Values of 16 bits are divided
            by 65535, floats by nothing.
        layout: "channels_last" memory, or "nchw". The shape is (B, C, H, W) in any case.
    """

    dtype: Any = "float32"
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    layout: str = "channels_last"

    def __post_init__(self) -> None:
        dtype = str(self.dtype).removeprefix("torch.")
        object.__setattr__(self, "dtype", choice("dtype", dtype, ("float32", "float16", "bfloat16")))
        for name, low in (("mean", -float("inf")), ("std", 1e-9)):
            values = getattr(self, name)
            values = values if isinstance(values, Sequence) else [values]
            object.__setattr__(self, name, tuple(number(name, one, low) for one in values))
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean and std have a number for each channel, not {self.mean!r} and {self.std!r}")
        choice("layout", self.layout, ("channels_last", "nchw"))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the tensors."""
        made: torch.dtype = getattr(torch, self.dtype)
        return made

    def spec(self) -> dict[str, Any]:
        """Return the description for the core."""
        return {"dtype": self.dtype, "mean": self.mean, "std": self.std, "planar": self.layout == "nchw"}
