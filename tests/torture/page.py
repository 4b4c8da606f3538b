"""The table in docs/reliability.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Return lines of Markdown: a row for each experiment, in the order of the promises."""
    yield "| promise | experiment | how many | time | result | in |"
    yield "|---:|---|---:|---:|---|---|"
    for row in sorted(rows, key=lambda row: (row["promise"], row["name"])):
        bad = len(row["failures"])
        result = f"**{bad} failed**" if bad else "nothing lost, crashed or leaked"
        detail = f": {row['detail']}" if row["detail"] else ""
        where = ", ".join(f"`{name.strip()}`" for name in row["where"].split(","))
        many = f"{row['count']:,} {row['what']}"
        yield f"| {row['promise']} | {row['name']} | {many} | {_time(row['seconds'])} | {result}{detail} | {where} |"


def write(page: Path, rows: list[dict[str, Any]]) -> None:
    """Put the table between its marks.

    Raises:
        ValueError: the page has no such marks.
    """
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: no {BEGIN} and {END}")
    days = sorted({row["date"] for row in rows})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    made = f"Made by `make torture`, {span}: Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs."
    page.write_text("\n".join([before + BEGIN, made, "", *table(rows), END]) + after)
