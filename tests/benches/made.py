"""Small results, as `benches.experiments` writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benches.harness import Facts, Results, Row

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


def reading(case: str, **seconds: tuple[float, ...]) -> list[Row]:
    """Rows of the experiment "formats" in seconds, by contender."""
    return [
        Row("formats", case, name, "s", values, settings={"version": f"{name} 1"}) for name, values in seconds.items()
    ]
