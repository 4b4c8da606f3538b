"""Geometries: which part of an image is shown, at which size; torchvision's crops and antialiased resizing.

A list of transforms begins with one, or with several that end in one of fixed size, such as
`Resize(256), CenterCrop(224)`. They are one step: pixels are resized once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from fastrecord.checks import choice, integer
from fastrecord.transforms.operation import Fill, colour, pair
from fastrecord.transforms.size import SIDES, Size, height_and_width
from fastrecord.transforms.transform import Transform

_FILTERS = ("bilinear", "bicubic", "lanczos", "box")


@dataclass(frozen=True)
class Geometry(Transform):
    """Base class of the geometries."""

    # Whether it may be the last one: all its outputs have one size.
    fixed: ClassVar[bool] = True
    # Whether it takes pixels as they are: others may come before it.
    cuts: ClassVar[bool] = False
    # Whether the part that is shown is drawn at random.
    random: ClassVar[bool] = False
    # Number of parts of each image.
    views: ClassVar[int] = 1

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Sized(Geometry):
    """Base class of the geometries whose outputs all have one size.

    Attributes:
        size: Size of the output, an int for a square, or (height, width); stored as the latter.
    """

    size: Size

    def __post_init__(self) -> None:
        self._set(size=height_and_width(self.size))


def _interpolation(value: Any) -> str:
    return choice("interpolation", getattr(value, "value", value), _FILTERS)


@dataclass(frozen=True)
class RandomResizedCrop(Sized):
    """A crop of random area and aspect ratio, resized: torchvision's `RandomResizedCrop`.

    Attributes:
        size: Size of the output.
        scale: Minimum and maximum share of the image's area.
        ratio: Minimum and maximum of width / height; drawn uniformly in its logarithm.
        interpolation: The filter: "bilinear", "bicubic", "lanczos" or "box", antialiased.

    Raises:
        TypeError, ValueError: a size or range is invalid.
    """

    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    random = True

    def __post_init__(self) -> None:
        super().__post_init__()
        scale, ratio = pair("scale", self.scale, 1e-9, 1e9), pair("ratio", self.ratio, 1e-9, 1e9)
        self._set(scale=scale, ratio=ratio, interpolation=_interpolation(self.interpolation))


@dataclass(frozen=True)
class Resize(Geometry):
    """Resizes the whole image: torchvision's `Resize`, antialiased.

    Attributes:
        size: (height, width): exactly this size. An int: the shorter side gets so many pixels, the longer
            one in proportion; a crop must follow, such as `CenterCrop`, because all images of a batch have
            one size.
        interpolation: The filter: "bilinear", "bicubic", "lanczos" or "box".
        max_size: With an int, the most that the longer side gets; the shorter one is then smaller.

    Raises:
        TypeError, ValueError: a size is invalid.
    """

    size: Size
    interpolation: str = "bilinear"
    max_size: int | None = None

    def __post_init__(self) -> None:
        size = integer("size", self.size, 1, SIDES) if isinstance(self.size, int) else height_and_width(self.size)
        self._set(size=size, interpolation=_interpolation(self.interpolation))
        if self.max_size is not None:
            if isinstance(size, tuple):
                raise ValueError("max_size goes with a size of one number, the shorter side")
            self._set(max_size=integer("max_size", self.max_size, size, SIDES))

    @property
    def fixed(self) -> bool:  # type: ignore[override]
        """Whether all outputs have one size."""
        return not isinstance(self.size, int)


@dataclass(frozen=True)
class CenterCrop(Sized):
    """The middle of an image: torchvision's `CenterCrop`. Smaller images get a black border.

    Attributes:
        size: Size of the output.

    Raises:
        TypeError, ValueError: a size is invalid.
    """

    cuts = True


@dataclass(frozen=True)
class RandomCrop(Sized):
    """A part of exactly this size at a random place, not resized: torchvision's `RandomCrop`.

    Smaller images get a border.

    Attributes:
        size: Size of the output.
        padding: Width in pixels of the border that is first added: one number, (left and right, top and
            bottom), or (left, top, right, bottom).
        fill: The colour of the border.

    Raises:
        TypeError, ValueError: a size is invalid.
    """

    padding: int | Sequence[int] = 0
    _: KW_ONLY
    fill: Fill = 0
    cuts = True
    random = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(padding=_padding(self.padding), fill=colour(self.fill))

    @property
    def sides(self) -> tuple[int, ...]:
        """The widths of the border: left, top, right, bottom."""
        return _padding(self.padding)


@dataclass(frozen=True)
class FiveCrop(Sized):
    """The four corners of an image and its middle, five views of it: torchvision's `FiveCrop`.

    Attributes:
        size: Size of each output. A batch is (B, 5, 3, height, width).

    Raises:
        TypeError, ValueError: a size is invalid.
    """

    cuts = True
    views = 5


@dataclass(frozen=True)
class Pad(Geometry):
    """Adds a border; a crop that is not resized must follow: torchvision's `Pad`.

    Attributes:
        padding: Its width in pixels: one number, (left and right, top and bottom), or (left, top, right,
            bottom).
        fill: Its colour.

    Raises:
        TypeError, ValueError: a width or the colour is invalid.
    """

    padding: int | Sequence[int]
    fill: Fill = 0
    fixed = False

    def __post_init__(self) -> None:
        self._set(padding=_padding(self.padding), fill=colour(self.fill))

    @property
    def sides(self) -> tuple[int, ...]:
        """The widths of the border: left, top, right, bottom."""
        return _padding(self.padding)


@dataclass(frozen=True)
class Letterbox(Sized):
    """The whole image in proportion, as large as fits into the middle of the output, with a border around it.

    Attributes:
        size: Size of the output.
        fill: The colour of the border.
        interpolation: The filter: "bilinear", "bicubic", "lanczos" or "box".

    Raises:
        TypeError, ValueError: a size or the colour is invalid.
    """

    fill: Fill = 0
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(fill=colour(self.fill), interpolation=_interpolation(self.interpolation))


def _padding(value: Any) -> tuple[int, ...]:
    """Check a border, and return it as left, top, right, bottom."""
    sides = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if len(sides) not in (1, 2, 4):
        raise ValueError(f"padding is one number, two or four, not {value!r}")
    return tuple(integer("padding", side, 0, SIDES) for side in (sides * (4 // len(sides))))
