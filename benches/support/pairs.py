"""Pairs of patches in low and high resolution, cut from the photographs that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True)
class Pairs:
    """Pairs of uint8 RGB patches, the same for the same arguments; record i is row i of both files.

    The large patch is the centre of a square of a photograph. The small one is the whole square,
    reduced and, if it has its size, enlarged again by Pillow's bicubic filter.

    Args:
        folder: The folder of the files.
        count: Pairs.
        small, large: The sides of the two patches in pixels.
        scale: How many times the square is reduced.
    """

    folder: Path
    count: int
    small: int
    large: int
    scale: int

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Shape of each patch."""
        return {"lr": (self.small, self.small, 3), "hr": (self.large, self.large, 3)}

    @property
    def lengths(self) -> dict[str, int]:
        """Bytes of each patch."""
        return {name: int(np.prod(shape)) for name, shape in self.shapes.items()}

    def path(self, ending: str) -> Path:
        """A path for these pairs in another format."""
        return self.folder / f"pairs-{self.small}-{self.large}-{self.count}{ending}"

    @property
    def files(self) -> dict[str, Path]:
        """The .npy file of each patch, uint8 (N, H, W, 3)."""
        return {name: self.path(f".{name}.npy") for name in self.shapes}

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """Map the files, read-only."""
        return {name: np.load(path, mmap_mode="r") for name, path in self.files.items()}

    def make(self) -> Self:
        """Write the .npy files if they do not exist.

        Raises:
            ImportError: scikit-learn is not installed.
        """
        if all(path.exists() for path in self.files.values()):
            return self
        from sklearn.datasets import load_sample_images

        pictures = [Image.fromarray(picture) for picture in load_sample_images().images]
        rng = np.random.default_rng(self.count)
        patches = {name: np.empty((self.count, *shape), np.uint8) for name, shape in self.shapes.items()}
        for number in range(self.count):
            picture = pictures[rng.integers(len(pictures))]
            patches["lr"][number], patches["hr"][number] = self._cut(picture, rng)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, path in self.files.items():
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                np.save(file, patches[name])
            temporary.rename(path)
        return self

    def _cut(self, picture: Image.Image, rng: np.random.Generator) -> Iterator[NDArray[np.uint8]]:
        side = max(self.small, self.large)
        left, top = (int(rng.integers(length - side + 1)) for length in picture.size)
        square = picture.crop((left, top, left + side, top + side))
        reduced = square.resize((side // self.scale, side // self.scale), Image.Resampling.BICUBIC)
        border = (side - self.large) // 2
        yield np.asarray(reduced.resize((self.small, self.small), Image.Resampling.BICUBIC))
        yield np.asarray(square.crop((border, border, side - border, side - border)))
