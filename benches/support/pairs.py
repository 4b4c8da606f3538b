"""Pairs of small patches in low and high resolution for the array benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benches.support.pictures import photo

SIDE = 128
SCALE = 4
PICTURES = 16


@dataclass(frozen=True)
class Pairs:
    """The files of the patches; record i is row i of both.

    Attributes:
        lr: A .npy file, uint8 (N, 32, 32, 3).
        hr: A .npy file, uint8 (N, 128, 128, 3).
        count: N.
    """

    lr: Path
    hr: Path
    count: int

    def arrays(self) -> dict[str, NDArray[np.uint8]]:
        """Map both files, read-only."""
        return {"lr": np.load(self.lr, mmap_mode="r"), "hr": np.load(self.hr, mmap_mode="r")}


def make_pairs(folder: Path, count: int = 20_000, seed: int = 0) -> Pairs:
    """Cut patches from photograph-like pictures; the low resolution is the mean of 4 x 4 pixels.

    Made once: the files' names identify their content.

    Args:
        folder: The folder of the files.
        count: Pairs.
        seed: Determines pictures and places.
    """
    stem = f"pairs-{count}-{seed}"
    pairs = Pairs(folder / f"{stem}.lr.npy", folder / f"{stem}.hr.npy", count)
    if pairs.lr.exists() and pairs.hr.exists():
        return pairs
    rng = np.random.default_rng(seed)
    pictures = [photo(rng, 1024, 768) for _ in range(PICTURES)]
    small = SIDE // SCALE
    files = {pairs.lr: (small, small), pairs.hr: (SIDE, SIDE)}
    lr, hr = (
        np.lib.format.open_memmap(path.with_suffix(".tmp"), "w+", np.uint8, (count, *size, 3))
        for path, size in files.items()
    )
    for number in range(count):
        picture = pictures[rng.integers(PICTURES)]
        y, x = (int(rng.integers(side - SIDE + 1)) for side in picture.shape[:2])
        patch = picture[y : y + SIDE, x : x + SIDE]
        hr[number] = patch
        lr[number] = patch.reshape(small, SCALE, small, SCALE, 3).mean((1, 3)).round()
    for array, path in zip((lr, hr), files, strict=True):
        array.flush()
        path.with_suffix(".tmp").rename(path)
    return pairs
