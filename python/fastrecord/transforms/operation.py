"""`Operation`: what the core's threads do to the pixels of an image, after its crop.

Names, arguments, ranges and defaults are those of torchvision's v2, whose functions on uint8 tensors
give the same values. Each draw depends only on the seed, the epoch, the position, the output, and the
operation's name and number among those of its name (docs/order.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from fastrecord.checks import choice, integer
from fastrecord.transforms.transform import Transform

# A colour: one number for all channels, or one for each; None: black.
Fill: TypeAlias = int | Sequence[int] | None
# A range, or the distance from its middle to its ends.
Range: TypeAlias = float | Sequence[float]


@dataclass(frozen=True)
class Operation(Transform):
    """Base class of the operations."""

    # Whether it may move pixels.
    moves: ClassVar[bool] = False
    # Whether it may change the pixels' values, and so needs bytes in RGB or grey.
    changes: ClassVar[bool] = True
    # Whether boxes, masks and the like cannot follow: no map says where a pixel went.
    mixes: ClassVar[bool] = False

    def spec(self) -> dict[str, Any]:
        """Return the description for the core."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"op": type(self).__name__, **own}

    def check_size(self, size: tuple[int, int]) -> None:
        """Check that it works on images of that height and width.

        Raises:
            ValueError: it does not.
        """

    def names(self) -> list[str]:
        """Return its name, and those of the operations that it is made of; each has random numbers of its own."""
        return [type(self).__name__]

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Perhaps(Operation):
    """Base class of operations that happen with a probability, and have no other argument."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self._set("p", number("p", self.p, 0, 1))


def number(name: str, value: Any, low: float, high: float = float("inf")) -> float:
    """Check a number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not low <= value <= high:
        allowed = f"at least {low:g}" if high == float("inf") else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} is {allowed}, not {value!r}")
    return float(value)


def pair(name: str, value: Any, low: float = -float("inf"), high: float = float("inf")) -> tuple[float, float]:
    """Check two ascending numbers in [low, high]."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"{name} is two numbers (low, high), not {value!r}")
    first, last = number(f"{name}: low", value[0], low, high), number(f"{name}: high", value[1], low, high)
    if first > last:
        raise ValueError(f"{name} is (low, high), low not above high, not {value!r}")
    return first, last


def around(name: str, value: Any) -> tuple[float, float]:
    """Check a range; a number stands for the range from minus it to it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return -number(name, value, 0), float(value)
    return pair(name, value)


def center(value: Any) -> tuple[float, float] | None:
    """Check a point (x, y)."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"center is (x, y) or None, not {value!r}")
    return tuple(number("center", side, -float("inf")) for side in value)  # type: ignore[return-value]


def colour(value: Any) -> tuple[int, int, int] | None:
    """Check a fill, and return it for three channels."""
    if value is None:
        return None
    values = value if isinstance(value, Sequence) else [value] * 3
    if len(values) not in (1, 3):
        raise ValueError(f"fill is one number, three, or None, not {value!r}")
    red, green, blue = (integer("fill", one, 0, 256) for one in ([*values] * 3)[:3])
    return red, green, blue


def interpolation(value: Any) -> str:
    """Check a way to find pixels between pixels; torchvision's enum is one, too."""
    return choice("interpolation", getattr(value, "value", value), ("nearest", "bilinear"))
