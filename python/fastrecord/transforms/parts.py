"""`View` and `Like`: outputs of a sample besides the plain list of transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fastrecord.checks import choice, flag, integer
from fastrecord.transforms.annotations import FORMS
from fastrecord.transforms.frame import Frame
from fastrecord.transforms.operation import number
from fastrecord.transforms.pipeline import Pipeline
from fastrecord.transforms.size import Size, height_and_width
from fastrecord.transforms.transform import Transform

# More views of an image than this are a mistake.
_MANY = 1 << 12


@dataclass(frozen=True)
class View:
    """Crops of a field of images. An image is read and decoded once for all its views.

    Attributes:
        of: The field.
        transforms: A list that begins with a crop. Each view draws its own numbers.
        count: Number of views: the output is (B, count, C, height, width). None: one, (B, C, height,
            width). `FiveCrop` makes five.

    Raises:
        TypeError, ValueError: the transforms do not follow one another, or the count is out of range.
    """

    of: str
    transforms: Sequence[Transform] | Transform
    count: int | None = None

    def __post_init__(self) -> None:
        views = self.frame.views
        if self.count is not None:
            integer("count", self.count, 1, _MANY)
        if views > 1:
            if self.count not in (None, views):
                raise ValueError(f"FiveCrop makes {views} views, not {self.count}")
            object.__setattr__(self, "count", views)

    @property
    def pipeline(self) -> Pipeline:
        """The transforms, checked."""
        return Pipeline.of(self.transforms)

    @property
    def frame(self) -> Frame:
        """The crop."""
        frame = self.pipeline.frame
        if frame is None:
            raise TypeError("a list begins with the crop")
        return frame


@dataclass(frozen=True)
class Like:
    """What moves along with an image: masks, other images of the scene, boxes, keypoints.

    It shows the same part as the image, through the same flips, rotations and other maps. The image may be
    of another size: the scene is the same.

    Attributes:
        of: The output that it follows.
        transforms: What is done to it besides: operations of its own, `ToFloat`.
        size: Size of its output; None: as the one that it follows.
        interpolation: "nearest" for masks: an output (B, height, width), uint8, or uint16 with
            `Decode(bits=16)`, of the values of images of one channel, of the indices of PNGs with palettes, or of
            arrays (H, W) of any type. "bilinear" for images and for arrays of uint8, uint16 or float32. None:
            "bilinear" for images, "nearest" for arrays. Arrays (H, W, C) give (B, height, width, C).
        fill: The value outside the image.
        boxes: The field has boxes, arrays (N, 4): "xyxy", "xywh" or "cxcywh", in pixels. They are clipped; the
            batch gets a second entry, `NAME_kept`, bool (N,), False for what is left too small.
        keypoints: The field has points (x, y), arrays (..., 2). They are not clipped; `NAME_kept`, bool (...),
            is False outside.
        min_size: The shortest side of a box that is kept, in pixels.

    Raises:
        TypeError, ValueError: an argument is out of range, or contradicts another.
    """

    of: str
    transforms: Sequence[Transform] = ()
    _: KW_ONLY
    size: Size | None = None
    interpolation: str | None = None
    fill: float = 0
    boxes: str | None = None
    keypoints: bool = False
    min_size: float = 1.0

    def __post_init__(self) -> None:
        Pipeline.of(self.transforms, follows=True)
        if self.size is not None:
            object.__setattr__(self, "size", height_and_width(self.size))
        interpolation: Any = getattr(self.interpolation, "value", self.interpolation)
        if interpolation is not None:
            choice("interpolation", interpolation, ("nearest", "bilinear"))
        object.__setattr__(self, "interpolation", interpolation)
        if self.boxes is not None:
            choice("boxes", self.boxes, FORMS)
        flag("keypoints", self.keypoints)
        number("fill", self.fill, -float("inf"))
        number("min_size", self.min_size, 0)
        if self.is_places:
            given = (self.transforms, self.size, self.interpolation, self.fill)
            if (self.boxes and self.keypoints) or any(value for value in given):
                raise ValueError("boxes and keypoints go with min_size alone: they are not resampled")

    @property
    def is_places(self) -> bool:
        """Whether it has boxes or keypoints."""
        return self.boxes is not None or self.keypoints

    @property
    def pipeline(self) -> Pipeline:
        """The transforms, checked."""
        return Pipeline.of(self.transforms, follows=True)
