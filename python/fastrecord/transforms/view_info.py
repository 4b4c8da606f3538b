"""`ViewInfo`: the part of each source image that a batch of images shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ViewInfo:
    """Where pixels of the source images are in one field of a batch of images.

    Pixel (0, 0) covers [0, 1) on both axes, and coordinates are (x, y), as in boxes of torchvision.
    With `Decoding(exif_orientation=True)` the source is the image that was turned upright.

    Attributes:
        sizes: Height and width of each source image, int64 (B, 2).
        boxes: Left, top, right and bottom of the part that the whole output shows, in pixels of the
            source, float64 (B, 4). Beyond the source, the output is black.
        flipped: Whether the output is mirrored left to right, bool (B,).
        output: Height and width of the output.
    """

    sizes: NDArray[np.int64]
    boxes: NDArray[np.float64]
    flipped: NDArray[np.bool_]
    output: tuple[int, int]

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Maps a point (x, y, 1) of the source to a point of the output, float64 (B, 3, 3)."""
        matrix = np.zeros((len(self.boxes), 3, 3))
        matrix[:, [0, 1], [0, 1]] = self.output[::-1] / (self.boxes[:, 2:] - self.boxes[:, :2])
        matrix[:, :2, 2] = -matrix[:, [0, 1], [0, 1]] * self.boxes[:, :2]
        matrix[:, 2, 2] = 1
        matrix[self.flipped, 0, 0] *= -1
        matrix[self.flipped, 0, 2] = self.output[1] - matrix[self.flipped, 0, 2]
        return matrix
