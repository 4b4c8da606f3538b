"""`Size`: the size of an output, as transforms take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from fastrecord.checks import integer

Size: TypeAlias = int | tuple[int, int]

# Sides are below this number of pixels.
SIDES = 1 << 16


def height_and_width(size: Any) -> tuple[int, int]:
    """Check a size, and return it as (height, width).

    Raises:
        TypeError, ValueError: it is neither an int nor two of them, or out of range.
    """
    if isinstance(size, Sequence) and not isinstance(size, str):
        if len(size) != 2:
            raise ValueError(f"size is an int or (height, width), not {size!r}")
        height, width = size
    else:
        height = width = size
    return integer("size: height", height, 1, SIDES), integer("size: width", width, 1, SIDES)
