"""Scenes: an image with a mask, boxes, keypoints, depth, a label and a key, shared by the sample tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from tests.support.pictures import pixels, png, save

SCHEMA = fr.Schema(
    {
        "image": fr.image(),
        "mask": fr.image(),
        "depth": fr.array("float32", (None, None)),
        "boxes": fr.array("float32", (None, 4)),
        "points": fr.array("float32", (3, 2)),
        "label": "int64",
        "key": fr.string(),
    }
)
COUNT = 14


def size_of(number: int) -> tuple[int, int]:
    """Return height and width of a scene."""
    height, width = np.random.default_rng(number).integers(50, 90, 2).tolist()
    return height, width


def classes(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return a mask of blocks with numbers from 0 to 9, uint8 (height, width)."""
    blocks = np.random.default_rng(seed).integers(0, 10, (-(-height // 6), -(-width // 6)), np.uint8)
    return blocks.repeat(6, 0).repeat(6, 1)[:height, :width]


def scene(number: int, kind: str = "PNG") -> dict[str, Any]:
    """Return a record; `kind` is of its image."""
    height, width = size_of(number)
    rng = np.random.default_rng(100 + number)
    corners = np.sort(rng.uniform(0, 1, (number % 4, 2, 2)), 1) * (width, height)
    return {
        "image": save(Image.fromarray(pixels(width, height, seed=number)), kind),
        "mask": png(classes(height, width, number)[..., None]),
        "depth": classes(height, width, number).astype(np.float32) / 4,
        "boxes": corners.reshape(-1, 4).astype(np.float32),
        "points": (rng.uniform(0, 1, (3, 2)) * (width, height)).astype(np.float32),
        "label": number,
        "key": str(number),
    }


def write_scenes(path: Path, numbers: Sequence[int] = range(COUNT), kind: str = "PNG") -> Path:
    """Write scenes with these numbers."""
    with fr.Writer(path, SCHEMA) as writer:
        for number in numbers:
            writer.append(scene(number, kind))
    return path
