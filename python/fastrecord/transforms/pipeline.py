"""`Pipeline`: the crop of an image and what follows it, checked once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastrecord._core import Recipe
from fastrecord.transforms.colours import RandomErasing
from fastrecord.transforms.compose import Several
from fastrecord.transforms.geometry import Geometry
from fastrecord.transforms.operation import Operation
from fastrecord.transforms.to_float import ToFloat


@dataclass(frozen=True)
class Pipeline:
    """What becomes of a field of images.

    Attributes:
        geometry: The crop; it decides the size.
        operations: What is done to bytes.
        to_float: What bytes become; None: they stay.
        after: What is done to floats.

    Raises:
        TypeError, ValueError: operations do not follow one another.
    """

    geometry: Geometry
    operations: tuple[Operation, ...] = ()
    to_float: ToFloat | None = None
    after: tuple[RandomErasing, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Pipeline:
        """Return the pipeline of a geometry, or of a list that begins with one."""
        steps = [given] if isinstance(given, Geometry) else given
        if not isinstance(steps, Sequence) or isinstance(steps, str) or not steps:
            raise TypeError(f"a pipeline is a list of fastrecord.transforms, not {given!r}")
        first, *rest = steps
        if not isinstance(first, Geometry):
            raise TypeError(f"a pipeline begins with the crop, such as RandomResizedCrop(224), not {first!r}")
        floats = [at for at, step in enumerate(rest) if isinstance(step, ToFloat)]
        if len(floats) > 1:
            raise ValueError("a pipeline has one ToFloat")
        end = floats[0] if floats else len(rest)
        before, after = rest[:end], rest[end + 1 :]
        for step in (*before, *after):
            if isinstance(step, Geometry):
                raise ValueError(f"a pipeline has one crop, at its start: {step!r} is another")
            if not isinstance(step, Operation):
                raise TypeError(f"{step!r} is no operation of fastrecord.transforms")
        for step in after:
            if not isinstance(step, RandomErasing):
                raise ValueError(f"after ToFloat, only RandomErasing can follow, not {type(step).__name__}")
        return cls(first, tuple(before), rest[end] if floats else None, tuple(after))

    def converted(self, to_float: ToFloat) -> Pipeline:
        """Return the same pipeline with a conversion at its end.

        Raises:
            ValueError: it has one.
        """
        if self.to_float is not None:
            raise ValueError("the images become floats twice: leave out ToFloat, or dtype of delivery")
        return replace(self, to_float=to_float)

    @property
    def moves(self) -> bool:
        """Whether pixels are moved at random."""
        return self.geometry.random or any(_moves(one) for one in self.operations)

    @property
    def planar(self) -> bool:
        """Whether images lie channel by channel."""
        return self.to_float is not None and self.to_float.layout == "nchw"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors."""
        return torch.uint8 if self.to_float is None else self.to_float.torch_dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of an image in memory."""
        height, width = self.geometry.output
        return (3, height, width) if self.planar else (height, width, 3)

    def recipe(self, output: str) -> Recipe | None:
        """Return what the core does after the crop, whose draws the output's name separates from others."""
        if not self.operations and self.to_float is None:
            return None
        described = {
            "operations": [one.spec() for one in self.operations],
            "to_float": None if self.to_float is None else self.to_float.spec(),
            "after": [one.spec() for one in self.after],
        }
        return Recipe(json.dumps(described), output)


def _moves(operation: Operation) -> bool:
    return operation.moves or (isinstance(operation, Several) and any(map(_moves, operation.transforms)))
