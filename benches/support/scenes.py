"""`Scenes`: masks and boxes for a folder of images, made at random."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from benches.peers import Data

BOXES = 20
CLASSES = 21
SHAPES = 12  # of a mask


@dataclass(frozen=True)
class Scenes:
    """A mask and boxes for each image of `data`, in the order of the labels."""

    data: Data

    @property
    def folder(self) -> Path:
        """Where `make` writes them."""
        return self.data.root / "scenes"

    def masks(self, suffix: str) -> list[Path]:
        """The masks: PNGs with a palette (".png"), or the same numbers as arrays uint8 (H, W) (".npy")."""
        return [self.folder / f"{label:06d}{suffix}" for label in range(self.data.records)]

    def boxes(self) -> NDArray[np.float32]:
        """Corners in pixels, float32 (records, 20, 4): left, top, right, bottom."""
        found: NDArray[np.float32] = np.load(self.folder / "boxes.npy")
        return found

    def make(self) -> None:
        """Write them if they do not exist."""
        if self.folder.exists():
            return
        temporary = self.folder.with_suffix(".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        rng, boxes = np.random.default_rng(0), []
        for label, (width, height) in enumerate(self._sizes()):
            mask = _mask(rng, width, height)
            mask.save(temporary / f"{label:06d}.png")
            np.save(temporary / f"{label:06d}.npy", np.asarray(mask))
            boxes.append([_box(rng, width, height) for _ in range(BOXES)])
        np.save(temporary / "boxes.npy", np.array(boxes, np.float32))
        temporary.rename(self.folder)

    def _sizes(self) -> Iterator[tuple[int, int]]:
        for path in self.data.files():
            with Image.open(path) as image:
                yield image.size


def _mask(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw ellipses of several classes; the background is class 0."""
    mask = Image.new("P", (width, height))
    mask.putpalette(rng.integers(0, 256, 3 * CLASSES).tolist())
    draw = ImageDraw.Draw(mask)
    for _ in range(SHAPES):
        draw.ellipse(_box(rng, width, height), fill=int(rng.integers(1, CLASSES)))
    return mask


def _box(rng: np.random.Generator, width: int, height: int) -> tuple[float, float, float, float]:
    """A box with sides of at least a twentieth of the image's."""
    (left, right), (top, bottom) = (np.sort(rng.uniform(0, 0.95, 2)) + np.array([0, 0.05]) for _ in range(2))
    return width * left, height * top, width * right, height * bottom
