"""Two folders of paired images, and the contents of their packed file, shared by the pair tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from tests.support.packing import write
from tests.support.pictures import picture, save

SCALE = 4


def small(seed: int, width: int = 12, height: int = 10, **options: Any) -> bytes:
    return save(picture(width, height, seed=seed, **options), "PNG")


def large(seed: int, width: int = 12, height: int = 10, scale: int = SCALE, **options: Any) -> bytes:
    return save(picture(scale * width, scale * height, seed=seed, **options), "PNG")


def folders(root: Path, low: Mapping[str, bytes], high: Mapping[str, bytes]) -> tuple[Path, Path]:
    for name in ("lr", "hr"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return write(root / "lr", low), write(root / "hr", high)


def numbered_pairs(root: Path, count: int, suffix: str = "x4") -> tuple[Path, Path]:
    """Make pairs named like super-resolution data sets: 0001x4.png and 0001.png."""
    return folders(
        root,
        {f"{i:04d}{suffix}.png": small(i) for i in range(count)},
        {f"{i:04d}.png": large(i) for i in range(count)},
    )


def rows(path: Path) -> list[dict[str, Any]]:
    with fr.Reader(path) as reader:
        return [
            {
                "key": row["key"],
                **{n: row[n].copy() if isinstance(row[n], np.ndarray) else bytes(row[n]) for n in ("lr", "hr")},
            }
            for row in (reader[i] for i in range(len(reader)))
        ]


def keys(path: Path) -> list[str]:
    return [row["key"] for row in rows(path)]
