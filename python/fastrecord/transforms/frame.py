"""`Frame`: the geometries at the start of a list, as one step: a crop that is resized once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastrecord.transforms.geometry import (
    CenterCrop,
    FiveCrop,
    Geometry,
    Letterbox,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Sized,
)


@dataclass(frozen=True)
class Frame:
    """Which part of an image becomes an output.

    Attributes:
        steps: The geometries, in order.

    Raises:
        ValueError: they do not follow one another, or do not end in one size.
    """

    steps: tuple[Geometry, ...]

    def __post_init__(self) -> None:
        *before, last = self.steps
        if not last.fixed:
            way_out = f"Resize({(last.size, last.size)})" if isinstance(last, Resize) else "a crop"
            raise ValueError(
                f"all images of a batch have one size: end {last!r} with CenterCrop(...), or write {way_out}"
            )
        for at, step in enumerate(before):
            if isinstance(step, Sized) or (isinstance(step, Resize) and at > 0) or not last.cuts:
                raise ValueError(
                    f"{type(step).__name__} does not come before {type(last).__name__}: a list begins with one crop, "
                    "or with Resize, Pad and then CenterCrop, RandomCrop or FiveCrop"
                )
        short = before[0].size if before and isinstance(before[0], Resize) else None
        if isinstance(last, CenterCrop) and isinstance(short, int) and len(before) == 1 and short < max(self.size):
            raise ValueError(f"a crop of {last.size} does not fit into images resized to {short} pixels")
        fills = {step.fill for step in self.steps if isinstance(step, Pad | RandomCrop) and any(step.sides)}
        if len(fills) > 1:
            raise ValueError(f"a border has one colour, not {fills}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the output."""
        size: tuple[int, int] = self.steps[-1].size  # type: ignore[attr-defined]
        return size

    @property
    def random(self) -> bool:
        """Whether the part is drawn at random."""
        return self.steps[-1].random

    @property
    def views(self) -> int:
        """Number of parts of each image."""
        return self.steps[-1].views

    @property
    def filter(self) -> str:
        """The filter for resizing."""
        filters = [getattr(step, "interpolation", None) for step in self.steps]
        return next((name for name in filters if name), "bilinear")

    @property
    def fill(self) -> tuple[int, int, int]:
        """The colour outside the image."""
        fills = [step.fill for step in self.steps if isinstance(step, Pad | RandomCrop | Letterbox)]
        return next((fill for fill in fills if fill), (0, 0, 0))  # type: ignore[return-value]

    def spec(self) -> dict[str, Any]:
        """Return the description for the core, whose sizes are (width, height)."""
        *before, last = self.steps
        size = self.size[::-1]
        match last:
            case RandomResizedCrop():
                return {"kind": "random_resized_crop", "size": size, "scale": last.scale, "ratio": last.ratio}
            case Resize():
                return {"kind": "resize", "size": size}
            case Letterbox():
                return {"kind": "letterbox", "size": size}
        resize = None
        if before and isinstance(before[0], Resize):
            first = before[0]
            exact = first.size if isinstance(first.size, tuple) else None
            resize = {"exact": exact[::-1]} if exact else {"short": (first.size, first.max_size)}
        borders: list[Sequence[int]] = [step.sides for step in before if isinstance(step, Pad)]
        place = "center"
        if isinstance(last, RandomCrop):
            place = "random"
            borders.append(last.sides)
        elif isinstance(last, FiveCrop):
            place = "corners"
        padding = [sum(sides) for sides in zip(*borders, strict=True)] or [0] * 4
        return {"kind": "window", "size": size, "resize": resize, "padding": padding, "place": place}
