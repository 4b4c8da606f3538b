"""Packed images of several kinds, and checks after an iteration, shared by the loader tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.transforms import RandomResizedCrop
from tests.support.pictures import pixels, save

SCHEMA = fr.Schema({"image": fr.image(), "label": fr.int64(), "key": fr.string(), "weight": fr.float64()})
CLASSES = ["ant", "bee", "cow"]
COUNT = 22  # in the fixture `photos`


def photo(number: int, kind: str = "JPEG") -> bytes:
    """Return an encoded image of seeded noise over gradients, 40 to 79 pixels wide and high."""
    width, height = np.random.default_rng(number).integers(40, 80, 2).tolist()
    return save(Image.fromarray(pixels(width, height, seed=number)), kind)


def write_payloads(
    path: Path, payloads: Sequence[bytes], classes: Sequence[str] = CLASSES, *, images: bool = True
) -> Path:
    """Pack payloads: record i has label i modulo the classes, key "<stem>/i" and weight i / 2.

    An image field refuses a payload without an image header; `images=False` uses a bytes field.
    """
    schema = SCHEMA if images else fr.Schema({**SCHEMA, "image": fr.bytes_()})
    with fr.Writer(path, schema, metadata={"classes": list(classes)}) as writer:
        for number, data in enumerate(payloads):
            label = number % len(classes)
            writer.append({"image": data, "label": label, "key": f"{path.stem}/{number}", "weight": number / 2})
    return path


def write_photos(path: Path, count: int, seed: int = 0) -> Path:
    """Pack `count` images by `photo`."""
    return write_payloads(path, [photo(seed + number) for number in range(count)])


def write_pairs(path: Path, pairs: Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> Path:
    """Pack lossless pairs of images: fields lr and hr."""
    with fr.Writer(path, fr.Schema({"lr": fr.image(), "hr": fr.image()})) as writer:
        for lr, hr in pairs:
            writer.append({"lr": save(Image.fromarray(lr), "PNG"), "hr": save(Image.fromarray(hr), "PNG")})
    return path


def make(data: Path | fr.FastRecordDataset, batch_size: int | None = 4, **options: Any) -> FastRecordLoader:
    """Return a loader of random 24 x 24 crops, half of them mirrored, with two threads."""
    dataset = data if isinstance(data, fr.FastRecordDataset) else fr.FastRecordDataset(data)
    if "images" not in options:
        options = {"image": RandomResizedCrop(24), "flip": True, **options}
    return FastRecordLoader(
        dataset, batch_size, **{"threads": 2, "shuffle": None if batch_size is None else False, **options}
    )


def epoch(loader: FastRecordLoader) -> torch.Tensor:
    """Return all images of an epoch, (N, 3, H, W)."""
    return torch.cat([batch[0] for batch in loader])


def wait_for_load_threads(count: int) -> None:
    """Wait for this many batch threads: a new thread gets its name when it first runs."""
    end = time.monotonic() + 60
    while len(names := load_threads()) != count:
        assert time.monotonic() < end, f"{count} threads are waited for, there are {names}"


def load_threads() -> list[str]:
    """Return the names of this process's batch threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [name for name in names if name.startswith("frec-load")]
