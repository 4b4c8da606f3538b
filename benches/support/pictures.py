"""The images of the loader benchmarks: the user's folder, or generated images like ImageNet's."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benches.peers import Data

# Width and height, and their share in percent; on average 468 x 401, as in ImageNet.
SIZES = {(500, 375): 45, (500, 333): 12, (375, 500): 16, (333, 500): 7, (500, 500): 7, (250, 200): 5, (640, 480): 8}
FULL_COLOUR = 0.76  # the share of 4:4:4 images; the others are 4:2:0
DIFFERENT = 200


def photo(rng: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Gradients and noise with the spectrum of photographs: uint8 (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    light = rng.uniform(70, 180) + x * rng.normal(0, 60) + y * rng.normal(0, 60)
    pixels = np.stack([light + rng.normal(0, 15) + x * rng.normal(0, 20) for _ in range(3)], axis=2)
    contrast = rng.uniform(0.3, 2.6)
    for octave in range(9):
        side = 2**octave
        small = (max(2, width // side), max(2, height // side))
        noise = rng.normal(0, 1, (small[1], small[0])).astype(np.float32)
        colour = rng.normal(1, 0.25, 3)
        grown = np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
        pixels += grown[..., None] * colour * contrast * 4.2 * side**0.45
    found: NDArray[np.uint8] = np.clip(pixels, 0, 255).astype(np.uint8)
    return found


def jpegs(count: int = DIFFERENT) -> Iterator[bytes]:
    """JPEGs with ImageNet's averages: 110 KB, 468 x 401, and 76 % of them 4:4:4."""
    rng = np.random.default_rng(0)
    sizes, weights = list(SIZES), np.array(list(SIZES.values())) / sum(SIZES.values())
    for _ in range(count):
        width, height = sizes[rng.choice(len(sizes), p=weights)]
        file = io.BytesIO()
        sampling = 0 if rng.random() < FULL_COLOUR else 2
        Image.fromarray(photo(rng, width, height)).save(file, "JPEG", quality=95, subsampling=sampling)
        yield file.getvalue()


@cache
def sources() -> list[bytes]:
    """The images in the folder FASTRECORD_BENCH_IMAGES, or generated ones: RGB or grey JPEGs.

    Raises:
        ValueError: the folder holds no such images.
    """
    folder = os.environ.get("FASTRECORD_BENCH_IMAGES")
    if not folder:
        return list(jpegs())
    found: list[bytes] = []
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        try:
            with Image.open(path) as image:
                if image.format == "JPEG" and image.mode in {"RGB", "L"}:
                    found.append(path.read_bytes())
        except OSError:
            continue
        if len(found) == 10 * DIFFERENT:
            break
    if not found:
        raise ValueError(f"{folder}: no JPEG in RGB or grey: let FASTRECORD_BENCH_IMAGES name a folder of images")
    return found


def make_images(folder: Path, records: int, *, classes: int | None = None, links: bool = False) -> Data:
    """Fill a folder with `records` files in folders of classes.

    Args:
        folder: The parent of the folder.
        records: The number of images; the sources repeat.
        classes: At most so many classes; default: a class for each image, so that the label identifies it.
        links: Whether equal images are one file with several names.
    """
    given = os.environ.get("FASTRECORD_BENCH_IMAGES")
    name = Path(given).resolve().name if given else "synthetic"
    classes = records if classes is None else min(classes, records)
    data = Data(folder / (f"loader-{name}-{records}" + (f"-{classes}" if classes < records else "")), records)
    if not data.images.exists():
        temporary = data.root / "images.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        encoded = sources()
        labels = [number * classes // records for number in range(records)]
        paths = [temporary / f"{label:06d}" / f"{number:06d}.JPEG" for number, label in enumerate(labels)]
        for number, path in enumerate(paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            if links and number >= len(encoded):
                path.hardlink_to(paths[number % len(encoded)])
            else:
                path.write_bytes(encoded[number % len(encoded)])
        temporary.rename(data.images)
    return data
