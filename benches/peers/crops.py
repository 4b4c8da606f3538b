"""What workers of a DataLoader do with a JPEG: decode, RandomResizedCrop, flip.

The decoder is the fastest one that is installed. The crop is torchvision's, by the same kernel of torch, without
torchvision's import of some seconds.
"""

from __future__ import annotations

import importlib.metadata
import io
import math
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from benches.peers import SIZE

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def by_pillow(encoded: Any) -> torch.Tensor:
    """Decode a JPEG to uint8 (3, H, W)."""
    with Image.open(io.BytesIO(encoded)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


try:
    from torchcodec.decoders import decode_jpeg
except ImportError:
    decode, DECODER = by_pillow, f"Pillow {importlib.metadata.version('pillow')}"
else:

    def decode(encoded: Any) -> torch.Tensor:
        """Decode a JPEG to uint8 (3, H, W)."""
        pixels: torch.Tensor = decode_jpeg(bytes(encoded), mode="RGB")
        return pixels

    DECODER = f"torchcodec {importlib.metadata.version('torchcodec')}"


def part(width: int, height: int) -> tuple[int, int, int, int]:
    """Draw a part of an image as torchvision's RandomResizedCrop does: left, top, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def crop(pixels: torch.Tensor) -> torch.Tensor:
    """Crop, resize and flip uint8 (3, H, W)."""
    left, top, width, height = part(pixels.shape[2], pixels.shape[1])
    chosen = pixels[None, :, top : top + height, left : left + width]
    made: torch.Tensor = interpolate(chosen, (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return made.flip(2) if random.random() < 0.5 else made
