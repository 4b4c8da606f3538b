"""`MixUp` and `CutMix`, which mix the records of a batch in pairs; `Mixing`: a checked list of them.

Record i of a batch of B records is mixed with record B - 1 - i. The middle one of an odd batch stays as
it is. Names, defaults and distributions are those of torchvision's v2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from fastrecord._core import Mixing as CoreMixing
from fastrecord.checks import integer
from fastrecord.transforms.operation import number


@dataclass(frozen=True)
class _Pairs:
    """Base class: what is done to the pairs of a batch."""

    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", number("alpha", self.alpha, 1e-6, 1e6))
        if self.num_classes is not None:
            object.__setattr__(self, "num_classes", integer("num_classes", self.num_classes, 1))

    def spec(self) -> dict[str, Any]:
        """Return the description for the core."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"op": type(self).__name__, **own}


@dataclass(frozen=True)
class MixUp(_Pairs):
    """Replaces both images of a pair by weighted means of them, and labels by the same means.

    Attributes:
        alpha: The weight is drawn from Beta(alpha, alpha); from 1e-6 to 1e6.
        num_classes: Length of the labels; None: that of the data set.
    """


@dataclass(frozen=True)
class CutMix(_Pairs):
    """Exchanges a rectangle between the images of a pair; labels are weighted by the areas.

    Attributes:
        alpha: The part of the area outside the rectangle is drawn from Beta(alpha, alpha), before the
            rectangle is cut off at the border; from 1e-6 to 1e6.
        num_classes: Length of the labels; None: that of the data set.
    """


@dataclass(frozen=True)
class Mixing:
    """What is done to the pairs of batches: one of some operations, chosen for each batch with equal weight.

    Attributes:
        operations: The operations.
        num_classes: Length of the labels; None: unknown.

    Raises:
        TypeError, ValueError: there is no operation, or they differ in the number of classes.
    """

    operations: tuple[MixUp | CutMix, ...]
    num_classes: int | None = None

    @classmethod
    def of(cls, given: Any, num_classes: int | None = None) -> Mixing:
        """Return what one operation, or a list of them, asks for; `num_classes` holds unless they have their own."""
        operations: Any = [given] if isinstance(given, _Pairs) else given
        if not isinstance(operations, Sequence) or not operations:
            raise TypeError(f"batch is a list of MixUp and CutMix, not {given!r}")
        for one in operations:
            if not isinstance(one, (MixUp, CutMix)):
                raise TypeError(f"batch is a list of MixUp and CutMix, which work on pairs: {one!r} does not")
        own = {one.num_classes for one in operations if one.num_classes is not None}
        if len(own) > 1:
            raise ValueError(f"the operations of a batch have one num_classes, not {sorted(own)}")
        return cls(tuple(operations), own.pop() if own else num_classes)

    @cached_property
    def core(self) -> CoreMixing:
        """What the core draws from."""
        return CoreMixing(json.dumps([one.spec() for one in self.operations]))

    def draw(self, seed: int, epoch: int, position: int, size: tuple[int, int]) -> tuple[dict[str, Any], float]:
        """Return what is done to a batch, and the weight of a record's own class.

        Args:
            seed: Of the order.
            epoch: Of the order.
            position: Of the batch's first record.
            size: Height and width of its images.

        Returns:
            {"op": "MixUp", "share"}, or {"op": "CutMix", "x", "y", "width", "height"}; and the weight.
        """
        drawn = json.loads(self.core.draw(seed, epoch, position, size))
        return drawn["blend"], drawn["share"]

    def labels(self, labels: torch.Tensor, share: float, partners: torch.Tensor) -> torch.Tensor:
        """Return the classes of each record with their weights.

        Args:
            labels: Numbers of classes, int64 (B,).
            share: The weight of a record's own class.
            partners: The record that each was mixed with, int64 (B,); itself, if with none.

        Returns:
            float32 (B, num_classes), new; the sum of a row is 1.

        Raises:
            TypeError: labels are not int64.
            ValueError: the number of classes is unknown, or a label is not below it.
        """
        if self.num_classes is None:
            raise ValueError("the number of classes is unknown: give num_classes to MixUp or CutMix")
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise TypeError(f"labels are int64 (B,), not {labels.dtype} {tuple(labels.shape)}")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.num_classes:
            found = f"{int(labels.min())} to {int(labels.max())}"
            raise ValueError(f"labels are from 0 to {self.num_classes - 1}, below num_classes, not {found}")
        made = torch.zeros(len(labels), self.num_classes, device=labels.device)
        for numbers, weight in ((labels, share), (labels[partners], 1 - share)):
            made.scatter_add_(1, numbers[:, None], torch.full((len(labels), 1), weight, device=labels.device))
        return made

    @staticmethod
    def images(images: torch.Tensor, blend: Mapping[str, Any]) -> torch.Tensor:
        """Return images after a blend, on their device; the core's threads do the same on the CPU.

        Args:
            images: (B, C, H, W) in any memory format; floats for MixUp.
            blend: What `draw` of the core chose: {"op": "MixUp", "share"}, or {"op": "CutMix", "x", "y",
                "width", "height"}.

        Returns:
            Of the same shape, type and memory format, new.
        """
        if blend["op"] == "MixUp":
            return torch.lerp(images.flip(0), images, blend["share"])
        made = images.clone()
        rows, columns = (slice(blend[at], blend[at] + blend[side]) for at, side in (("y", "height"), ("x", "width")))
        made[..., rows, columns] = images[..., rows, columns].flip(0)
        return made
