"""Write scikit-learn's handwritten digits as JPEGs in class folders: OUT/train/7/0012.jpg.

1,797 real scans of 8x8 pixels, enlarged to 64x64. Every fifth image of each digit is held out for
validation, in OUT/val.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

SIZE = 64
HELD_OUT_EVERY = 5


def write_digits(out: Path, *, size: int = SIZE, held_out_every: int = HELD_OUT_EVERY) -> Counter[str]:
    """Write all images below `out` and return how many each split got.

    Args:
        out: A folder, which is created.
        size: Height and width of the images, in pixels.
        held_out_every: One of so many images of each digit goes to OUT/val.
    """
    digits = load_digits()
    seen: Counter[int] = Counter()
    written: Counter[str] = Counter()
    for scan, digit in zip(digits.images, digits.target.tolist(), strict=True):
        split = "val" if seen[digit] % held_out_every == held_out_every - 1 else "train"
        folder = out / split / str(digit)
        folder.mkdir(parents=True, exist_ok=True)
        gray = np.rint(scan * (255 / 16)).astype(np.uint8)  # a pixel counts the ink of 4x4 pixels: 0 to 16
        Image.fromarray(gray).resize((size, size), Image.Resampling.BICUBIC).save(
            folder / f"{seen[digit]:04d}.jpg", quality=92
        )
        seen[digit] += 1
        written[split] += 1
    return written


if __name__ == "__main__":
    counts = write_digits(Path(sys.argv[1]))
    print(f"wrote {counts['train']} training and {counts['val']} validation images to {sys.argv[1]}")
