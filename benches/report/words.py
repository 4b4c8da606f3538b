"""Values as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benches.harness import Facts, Row

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "bytes"))
_SCALED = {"s": _TIMES, "bytes": _BYTES, "bytes/s": tuple((scale, f"{unit}/s") for scale, unit in _BYTES)}


def number(value: float) -> str:
    """Return a number with three significant digits, or all of the integer part."""
    if value == 0 or value != value:
        return "0" if value == 0 else "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) >= 1 else 3}g}" if abs(value) < 1 else f"{value:.{2 if abs(value) < 10 else 1}f}"


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """Return the size and the name of the unit in which a value reads best."""
    steps = _SCALED.get(unit)
    if steps is None:
        return 1.0, unit
    if unit == "s" and abs(value) >= 0.1:
        return steps[0]
    return next((step for step in steps if abs(value) >= step[0]), steps[-1])


def shown(value: float, unit: str, scaled: tuple[float, str] | None = None) -> str:
    """Return a value with its unit, in the one that reads best."""
    scale, name = scaled or scale_of(value, unit)
    return f"{number(value / scale)} {name}".strip()


def spread(row: Row, scaled: tuple[float, str] | None = None) -> str:
    """Return the least and the most of the rounds, or nothing if there was one."""
    if len(row.values) < 2:
        return ""
    scale, _ = scaled or scale_of(row.median, row.unit)
    return f"{number(min(row.values) / scale)} - {number(max(row.values) / scale)}"


def times(ratio: float) -> str:
    """Return a ratio: two decimals below 10, then fewer."""
    return f"{ratio:,.{2 if ratio < 10 else 1 if ratio < 100 else 0}f} x"


def as_good(ratio: float, unit: str) -> str:
    """Return what fastrecord is beside a contender, from how many times as good it is."""
    if is_speed(unit):
        return f"{times(ratio)} as fast"
    return f"{1 / ratio if ratio else 0:.4g} x of it" if unit == "bytes" else times(ratio)


def is_speed(unit: str) -> bool:
    """Return whether a unit is one of time, or of a rate."""
    return unit in ("s", "ms", "us", "ns") or unit.endswith("/s")


def minutes(seconds: float) -> str:
    """Return a duration."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def machine(facts: Facts) -> str:
    """Return the machine in one line."""
    parts = [
        facts.cpu,
        f"{facts.cores} cores",
        f"{facts.memory_bytes / 2**30:.0f} GiB",
        facts.gpu or "no GPU",
        facts.disk,
        facts.kernel,
    ]
    return ", ".join(part for part in parts if part)


def versions(facts: Facts) -> str:
    """Return the versions in one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.versions.items() if value)


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def cell(text: str) -> str:
    """Return a text as a cell of a Markdown table, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
