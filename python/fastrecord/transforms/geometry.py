"""Crops: which part of an image is shown, at which size. They draw nothing themselves.

The geometry is torchvision's: the same boxes from the same distributions, and antialiased bilinear
resizing. Sizes are an int for a square, or `(height, width)`, in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fastrecord.checks import integer
from fastrecord.transforms.size import SIDES, Size, height_and_width


def _range(name: str, value: Any) -> tuple[float, float]:
    try:
        low, high = (float(number) for number in value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} is two numbers (low, high), not {value!r}") from error
    if not 0 < low <= high < float("inf"):
        raise ValueError(f"{name} is (low, high), both above 0, the first not above the second, not {value!r}")
    return low, high


@dataclass(frozen=True)
class Geometry:
    """Base class of the geometries.

    Attributes:
        size: Size of the output; stored as (height, width).
    """

    size: Size
    kind: ClassVar[str]
    # Whether the part that is shown is drawn at random.
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", height_and_width(self.size))

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the output in pixels."""
        return height_and_width(self.size)

    def spec(self) -> tuple[Any, ...]:
        """Return the description for the core."""
        return (self.kind, self.output)


@dataclass(frozen=True)
class RandomResizedCrop(Geometry):
    """A crop of random area and aspect ratio, resized: torchvision's `RandomResizedCrop`.

    Attributes:
        size: Size of the output.
        scale: Minimum and maximum share of the image's area.
        ratio: Minimum and maximum of width / height; drawn uniformly in its logarithm.

    Raises:
        TypeError, ValueError: a size or range is invalid.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    kind = "random_resized_crop"
    random = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale", _range("scale", self.scale))
        object.__setattr__(self, "ratio", _range("ratio", self.ratio))

    def spec(self) -> tuple[Any, ...]:
        """See `Geometry.spec`."""
        return (*super().spec(), self.scale, self.ratio)


@dataclass(frozen=True)
class CenterCrop(Geometry):
    """The middle of an image: torchvision's `Resize(resize)` and `CenterCrop(size)`.

    Attributes:
        size: Size of the output.
        resize: The shorter side is first resized to this many pixels, the longer side in
            proportion. None: no resizing, and smaller images get a black border.

    Raises:
        TypeError, ValueError: a size is invalid, or the crop is larger than `resize`.
    """

    resize: int | None = None
    kind = "center_crop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize is not None and integer("resize", self.resize, 1, SIDES) < max(self.output):
            raise ValueError(f"a crop of {self.size} does not fit into images resized to {self.resize} pixels")

    def spec(self) -> tuple[Any, ...]:
        """See `Geometry.spec`."""
        return (*super().spec(), self.resize)


@dataclass(frozen=True)
class Resize(Geometry):
    """The whole image, resized to exactly this size: torchvision's `Resize((height, width))`.

    The aspect ratio is not kept.

    Attributes:
        size: Size of the output. All images of a batch have one size, so an int means a square.

    Raises:
        TypeError, ValueError: the size is invalid.
    """

    kind = "resize"


@dataclass(frozen=True)
class RandomCrop(Geometry):
    """A part of exactly this size at a random place, not resized: torchvision's `RandomCrop`.

    Smaller images get a black border.

    Attributes:
        size: Size of the output.
        padding: Width in pixels of the black border that is first added on all sides.

    Raises:
        TypeError, ValueError: a size is invalid.
    """

    padding: int = 0
    kind = "random_crop"
    random = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "padding", integer("padding", self.padding, 0, SIDES))

    def spec(self) -> tuple[Any, ...]:
        """See `Geometry.spec`."""
        return (*super().spec(), self.padding)
