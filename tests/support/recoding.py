"""Images of many kinds, and their recoded versions in a file, shared by the recoding tests."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from tests.support.packing import records
from tests.support.pictures import reference as decoded
from tests.support.pictures import save as encoded

__all__ = ["FILES", "decoded", "difference", "encoded", "picture", "sizes", "stored", "turned"]

ORIENTATION = 0x0112


def picture(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Make an image of smooth waves with a little noise."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [120 + 80 * np.sin(x / rng.uniform(8, 30) + y / rng.uniform(8, 30) + phase) for phase in range(3)]
    pixels = np.stack(waves, axis=2) + rng.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode)


def difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(np.int16) - b).mean())


def turned(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = number
    return exif


FILES = {
    "a/0.jpg": encoded(picture(0, 300, 200), quality=90, subsampling=2),
    "a/1.jpg": encoded(picture(1, 160, 240), quality=90, subsampling=0),
    "a/2.jpg": encoded(picture(2, 100, 100)),
    "a/3.jpg": encoded(picture(3, 333, 111, "L")),
    "b/0.png": encoded(picture(4, 210, 150, "RGBA"), "PNG"),
    "b/1.jpg": encoded(picture(5, 200, 300, "CMYK"), quality=95),
    "b/2.jpg": encoded(picture(6, 240, 160), exif=turned(6)),
    "b/3.webp": encoded(picture(7, 260, 130), "WEBP", quality=95),
    "b/4.png": encoded(picture(8, 40, 30, "P"), "PNG"),
}


def stored(path: Path) -> dict[str, bytes]:
    return {key: data for data, _, key in records(path)}


def sizes(path: Path) -> dict[str, tuple[int, int]]:
    """Return the width and height columns by key, checked against the images."""
    with fr.Reader(path) as reader:
        columns = [reader.column(f"image.{side}").tolist() for side in ("width", "height")]
        keys = [reader[i]["key"] for i in range(len(reader))]
    found = {key: tuple(size) for key, *size in zip(keys, *columns, strict=True)}
    for key, data in stored(path).items():
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == found[key], key
    return found
