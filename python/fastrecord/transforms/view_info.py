"""`ViewInfo`: the part of each source image that a batch of images shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ViewInfo:
    """Where pixels of the source images are in one output of a batch.

    Pixel (0, 0) covers [0, 1) on both axes, and coordinates are (x, y), as in boxes of torchvision.
    With `Decoding(exif_orientation=True)` the source is the image that was turned upright. Outputs of
    several views have an axis for them after the first, (B, views, ...).

    Attributes:
        sizes: Height and width of each source image, int64 (B, 2).
        boxes: Left, top, right and bottom of the part that the crop shows, in pixels of the source, float64
            (B, 4). Beyond the source, the output has its border.
        matrix: Maps a point (x, y, 1) of the source to a point of the output, float64 (B, 3, 3): crop,
            flips, rotations, affine maps and perspectives; divide by the third coordinate. `AugMix` is left
            out.
        output: Height and width of the output.
    """

    sizes: NDArray[np.int64]
    boxes: NDArray[np.float64]
    matrix: NDArray[np.float64]
    output: tuple[int, int]
