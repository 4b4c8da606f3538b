"""Amounts as people write them: `4GB/s`, `100Gb/s`, `256GiB`, `1.28M images`. Knows no plan."""

from __future__ import annotations

import math
import re
from typing import Any

from fastrecord.checks import byte_count

_NUMBER = r"(\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*"
_PREFIX = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_RATE = re.compile(_NUMBER + r"([kKMGT]?)(i?)(B|bit|b)(?:/s|ps)", re.ASCII)
_COUNT = re.compile(_NUMBER + r"([kKMGT]?)\s*(?:images|reads|parameters)?(?:/s)?", re.ASCII)
# Beyond these an amount is a mistake. Within them all products and quotients of a plan are finite.
_LEAST, _MOST = 1e-12, 1e18


def bytes_per_second(name: str, value: Any) -> float:
    """Return bytes per second: of a number, which is that already, or of text such as `100Gb/s`.

    `B` is a byte, `b` a bit; `G` is a thousand million, `Gi` is 2**30.
    """
    if not isinstance(value, str):
        return positive(name, value)
    match = _RATE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{name} is a rate such as 4GB/s (bytes) or 100Gb/s (bits), not {value!r}")
    number, prefix, binary, unit = match.groups()
    return positive(name, _scaled(number, prefix, binary) / (1 if unit == "B" else 8))


def size(name: str, value: Any) -> float:
    """Return bytes: of a number, or of text such as `256GiB` or `116kB`."""
    return positive(name, byte_count(name, value) if isinstance(value, str) else value)


def count(name: str, value: Any, *, zero: bool = False) -> float:
    """Return a number of images, reads or parameters, or such a number a second: `1.28M images`, `1200/s`."""
    if not isinstance(value, str):
        return positive(name, value, zero=zero)
    match = _COUNT.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{name} is a number such as 1281167, 1.28M or 850 images/s, not {value!r}")
    return positive(name, _scaled(match[1], match[2], ""), zero=zero)


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """Check a finite number above zero, or at least zero, of a size that occurs."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number or text with a unit, not {type(value).__name__}: {value!r}")
    # Compared, not converted: an integer may be too large for a float.
    if not 0 <= value < math.inf or (value == 0 and not zero):
        raise ValueError(f"{name} is a finite number {'of at least' if zero else 'above'} zero, not {value}")
    if value and not _LEAST <= value <= _MOST:
        raise ValueError(f"{name} is too {'large' if value > 1 else 'small'}: it is from {_LEAST:g} to {_MOST:g}")
    return float(value)


def size_text(value: float) -> str:
    """Return bytes in the largest fitting unit: `148.6 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} EB" if value < 999.5 else f"{value:,.0f} EB"


def time_text(seconds: float) -> str:
    """Return a duration: `1 h 07 min 51 s`, `42.3 s`, `18.1 ms`; from 100 hours on in days, `13,513 days 5 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        days, hours = divmod(hours, 24)
        return f"{days:,} days {hours} h"
    return f"{hours} h {minutes:02} min {rest:02} s" if hours else f"{minutes} min {rest:02} s"


def _scaled(number: str, prefix: str, binary: str) -> float:
    factor = (1024.0 if binary else 1000.0) ** _PREFIX[prefix]
    return float(number.replace(",", "").replace("_", "")) * float(factor)
