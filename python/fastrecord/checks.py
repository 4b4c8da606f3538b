"""Checks of arguments that several folders share: integers, flags, seeds and counts; the ranks of a machine."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD = 1 << 64
MOST = 1 << 63
_BYTES = re.compile(r"(\d[\d,_]*(?:\.\d+)?)\s*(?:([kKMGTP]?)(i?)B)?", re.ASCII)


def digest(data: NDArray[Any] | str) -> str:
    """Return a short digest of an array's values, or of a text."""
    import hashlib  # slow to import, and rarely needed

    return hashlib.sha256(data.encode() if isinstance(data, str) else data.tobytes()).hexdigest()[:32]


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Check an int, also of a numpy type, against [low, high)."""
    if isinstance(value, bool):
        raise TypeError(f"{name} is an int, not a bool: {value}")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is an int, not {type(value).__name__}: {value!r}") from error
    if number < low or (high is not None and number >= high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high - 1}"
        raise ValueError(f"{name} is {allowed}, not {number}")
    return number


def flag(name: str, value: Any) -> bool:
    """Check a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def choice(name: str, value: Any, allowed: Sequence[str], others: Sequence[str] = ()) -> str:
    """Check a word against the allowed words; `others` describes what the caller allows besides."""
    if not isinstance(value, str) or value not in allowed:
        *first, last = (*(f'"{word}"' for word in allowed), *others)
        raise ValueError(f"{name} is {', '.join(first)} or {last}, not {value!r}")
    return value


def byte_count(name: str, value: Any) -> int:
    """Check a number of bytes, at least 1: an int, or text such as "500GiB" or "64MB"."""
    if not isinstance(value, str):
        return integer(name, value, 1, MOST)
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{name} is a number of bytes, or text such as 500GiB or 64MB, not {value!r}")
    number, prefix, binary = match.groups()
    power = "_kMGTP".index((prefix or "_").replace("K", "k"))
    scale = (1024 if binary else 1000) ** power
    return integer(name, int(float(number.replace(",", "").replace("_", "")) * scale), 1, MOST)


def local_ranks() -> int | None:
    """Return the number of ranks of this machine, which torchrun sets in `LOCAL_WORLD_SIZE`; None if nothing has."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) or None if text.isdecimal() else None
