"""`Pipeline`: a list of transforms, checked once: which pixels, the crop, what is done to bytes, to floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastrecord.transforms.colours import RandomErasing
from fastrecord.transforms.decode import Decode
from fastrecord.transforms.frame import Frame
from fastrecord.transforms.geometry import Geometry
from fastrecord.transforms.operation import Operation
from fastrecord.transforms.own import Lambda
from fastrecord.transforms.to_float import ToFloat

RGB = Decode()


@dataclass(frozen=True)
class Pipeline:
    """What becomes of a field of images.

    Attributes:
        decode: Which pixels an image has.
        frame: The crop, which decides the size; None: it follows another output's.
        operations: What is done to bytes, by the threads.
        own: What the thread of the training loop does to bytes after that: it begins with a `Lambda`.
        to_float: What bytes become; None: they stay.
        after: What is done to floats.

    Raises:
        TypeError, ValueError: transforms do not follow one another.
    """

    decode: Decode = RGB
    frame: Frame | None = None
    operations: tuple[Operation, ...] = ()
    own: tuple[Operation | Lambda, ...] = ()
    to_float: ToFloat | None = None
    after: tuple[RandomErasing, ...] = ()

    @classmethod
    def of(cls, given: Any, *, follows: bool = False) -> Pipeline:
        """Return the pipeline of a list, or of a single geometry.

        Args:
            given: It begins with the crop, or has none if it `follows` another output.
            follows: Whether it does.
        """
        steps = [given] if isinstance(given, Geometry) else given
        if not isinstance(steps, Sequence) or isinstance(steps, str):
            raise TypeError(f"a list of fastrecord.transforms, not {given!r}")
        rest = list(steps)
        decode = rest.pop(0) if rest and isinstance(rest[0], Decode) else RGB
        count = next((at for at, step in enumerate(rest) if not isinstance(step, Geometry)), len(rest))
        crops, rest = rest[:count], rest[count:]
        if follows and crops:
            raise ValueError(f"{crops[0]!r}: what follows another output has no crop of its own")
        if not follows and not crops:
            found = f", not {steps[0]!r}" if len(steps) else ""
            raise TypeError(f"a list begins with the crop, such as RandomResizedCrop(224){found}")
        floats = [at for at, step in enumerate(rest) if isinstance(step, ToFloat)]
        if len(floats) > 1:
            raise ValueError("a list has one ToFloat")
        end = floats[0] if floats else len(rest)
        before, after = rest[:end], rest[end + 1 :]
        for step in (*before, *after):
            if isinstance(step, Geometry | Decode):
                raise ValueError(f"{step!r} comes at the start of a list")
            if not isinstance(step, Operation | Lambda):
                raise TypeError(
                    f"{step!r} is not a transform of fastrecord.transforms: from_torchvision converts torchvision's"
                )
        for step in after:
            if not isinstance(step, RandomErasing):
                raise ValueError(f"after ToFloat, only RandomErasing can follow, not {type(step).__name__}")
        at = next((at for at, step in enumerate(before) if isinstance(step, Lambda)), len(before))
        own = tuple(before[at:])
        if moving := [step for step in own if isinstance(step, Operation) and step.moves]:
            raise ValueError(f"{type(moving[0]).__name__} moves pixels: it comes before Lambda")
        to_float = rest[end] if floats else None
        return cls(decode, Frame(tuple(crops)) if crops else None, tuple(before[:at]), own, to_float, tuple(after))

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
        return (self.frame is not None and self.frame.random) or any(one.moves for one in self.operations)

    @property
    def mixes(self) -> bool:
        """Whether no map says where a pixel went."""
        return any(one.mixes for one in self.operations)

    @property
    def is_planar(self) -> bool:
        """Whether images lie channel by channel."""
        return self.to_float is not None and self.to_float.layout == "nchw"

    def recipe(self) -> dict[str, Any]:
        """Return the description for the core of what its threads do after the crop."""
        if self.own:
            return {"operations": [one.spec() for one in self.operations], "to_float": None, "after": []}
        return self._recipe(self.operations, last=True)

    def own_recipes(self) -> list[Lambda | dict[str, Any]]:
        """Return what the thread of the training loop does: functions, and descriptions for the core between them."""
        parts: list[Lambda | dict[str, Any]] = []
        seen, run = list(self.operations), list[Operation]()
        for step in (*self.own, None):
            if isinstance(step, Operation):
                run.append(step)
                continue
            if run or (step is None and self.to_float is not None):
                described = self._recipe(tuple(run), last=step is None)
                parts.append({**described, "seen": [name for one in seen for name in one.names()]})
                seen, run = [*seen, *run], []
            if step is not None:
                parts.append(step)
        return parts

    def _recipe(self, operations: tuple[Operation, ...], *, last: bool) -> dict[str, Any]:
        return {
            "operations": [one.spec() for one in operations],
            "to_float": self.to_float.spec() if last and self.to_float is not None else None,
            "after": [one.spec() for one in self.after] if last else [],
        }
