"""Operations that move pixels: flips, rotations, affine maps, perspective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastrecord.transforms.operation import (
    Fill,
    Operation,
    Perhaps,
    Range,
    around,
    center,
    colour,
    interpolation,
    number,
    pair,
)


@dataclass(frozen=True)
class RandomHorizontalFlip(Perhaps):
    """Mirrors left to right. As the first operation it costs nothing.

    Attributes:
        p: Probability.
    """

    moves, changes = True, False


@dataclass(frozen=True)
class RandomVerticalFlip(Perhaps):
    """Mirrors upside down.

    Attributes:
        p: Probability.
    """

    moves, changes = True, False


@dataclass(frozen=True)
class RandomRotation(Operation):
    """Turns an image by a random angle, counterclockwise, within its size.

    Attributes:
        degrees: The range of angles; a number d stands for (-d, d).
        interpolation: "nearest" or "bilinear".
        center: What it turns around, (x, y) in pixels; None: the middle.
        fill: The colour outside the image.
    """

    moves, changes = True, False
    degrees: Range
    interpolation: str = "nearest"
    center: Sequence[float] | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        self._set("degrees", around("degrees", self.degrees))
        self._set("interpolation", interpolation(self.interpolation))
        self._set("center", center(self.center))
        self._set("fill", colour(self.fill))


@dataclass(frozen=True)
class RandomAffine(Operation):
    """A random rotation, translation, scale and shear, within the image's size.

    Attributes:
        degrees: The range of angles; a number d stands for (-d, d). 0: no rotation.
        translate: The largest share of width and height, (x, y), by which it moves; None: none.
        scale: The range of factors; None: 1.
        shear: The range of angles along x: a number d for (-d, d), or two numbers; four numbers: also
            along y. None: none.
        interpolation: "nearest" or "bilinear".
        fill: The colour outside the image.
        center: What it turns around, (x, y) in pixels; None: the middle.
    """

    moves, changes = True, False
    degrees: Range
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: Range | None = None
    interpolation: str = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._set("degrees", around("degrees", self.degrees))
        if self.translate is not None:
            if len(self.translate) != 2:
                raise ValueError(f"translate is two shares (x, y), not {self.translate!r}")
            self._set("translate", tuple(number("translate", share, 0, 1) for share in self.translate))
        if self.scale is not None:
            self._set("scale", pair("scale", self.scale, 1e-6))
        if self.shear is not None:
            four = isinstance(self.shear, Sequence) and len(self.shear) == 4
            x, y = (self.shear[:2], self.shear[2:]) if four else (self.shear, (0, 0))  # type: ignore[index]
            self._set("shear", (around("shear", x), around("shear", y)))
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))
        self._set("center", center(self.center))


@dataclass(frozen=True)
class RandomPerspective(Operation):
    """Shows an image in random perspective.

    Attributes:
        distortion_scale: How far a corner moves at most, as a share of half a side.
        p: Probability.
        interpolation: "nearest" or "bilinear".
        fill: The colour outside the image.
    """

    moves, changes = True, False
    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        self._set("distortion_scale", number("distortion_scale", self.distortion_scale, 0, 1))
        self._set("p", number("p", self.p, 0, 1))
        self._set("interpolation", interpolation(self.interpolation))
        self._set("fill", colour(self.fill))
