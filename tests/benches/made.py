"""Small results, as `benches.experiments` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from benches.harness import Bench, Facts, Results, Row, read

FACTS = Facts(
    cpu="A Processor",
    cores=2,
    memory_bytes=8 << 30,
    disk="ext2/ext3",
    kernel="Linux 6.1",
    gpu="",
    versions={"fastrecord": "0.1.0", "python": "3.11.7", "torchvision": None},
    commit="0123456",
    command="python -m benches.experiments --full NAME",
    date="2026-01-02 03:04",
    full=True,
)


def save(folder: Path, name: str, rows: Iterable[Row]) -> Path:
    """Write FOLDER/NAME.jsonl and return the folder."""
    with Results(folder / f"{name}.jsonl", FACTS) as results:
        for row in rows:
            results.add(row)
    return folder


def row(experiment: str, case: str, name: str, unit: str, *values: float, **settings: Any) -> Row:
    """A row; rates are better the higher they are."""
    better: Literal["less", "more"] = "more" if unit.endswith("/s") or "%" in unit else "less"
    return Row(experiment, case, name, unit, values, better, settings=settings)


def reading(case: str, **seconds: tuple[float, ...]) -> list[Row]:
    """Rows of the experiment "formats" in seconds, by contender."""
    return [row("formats", case, name, "s", *values, version=f"{name} 1") for name, values in seconds.items()]


def rows_of(folder: Path, name: str, run: Callable[[Bench], object], *, full: bool) -> list[Row]:
    """Run an experiment, and return its rows."""
    path = folder / "results.jsonl"
    with Results(path, FACTS) as results:
        run(Bench(name, folder / "data", results, full=full))
    return read(path)[1]
