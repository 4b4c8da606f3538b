"""fastrecord's FastRecordLoader.

Variants: `original` JPEGs; `crop-index`: original JPEGs with a crop index; `crop-ready` JPEGs; `raw`
records of 256 x 256 pixels with crops of 224 x 224; `raw-resized`: resized random parts of the raw
records. With `+float` batches are normalised float32.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from PIL import Image

import fastrecord as fr
from benches.peers import SIZE, Batch, Data, Epochs, Options

RAW_SIDE = 256


def version() -> str:
    """What is measured."""
    return f"fastrecord {fr.__version__}"


def prepare(data: Data, variant: str) -> None:
    """Pack the images as they are, with a crop index, crop-ready, or raw."""
    path = _file(data, variant)
    if path.exists():
        return
    if path.name == "raw.frec":
        _pack_raw(data, path)
    else:
        options = [] if path.stem == "original" else [f"--{path.stem}"]
        command = [sys.executable, "-m", "fastrecord", "pack", *options, str(data.images), str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _file(data: Data, variant: str) -> Path:
    stored = {"raw-resized": "raw"}
    name = variant.removesuffix("+float")
    return data.root / f"{stored.get(name, name)}.frec"


def _pack_raw(data: Data, path: Path) -> None:
    schema = fr.Schema({"image": fr.image(), "label": fr.int64()})
    with fr.Writer(path, schema) as writer:
        for label, source in enumerate(data.files()):
            with Image.open(source) as image:
                side = min(image.size)
                x, y = (image.width - side) // 2, (image.height - side) // 2
                box = (x, y, x + side, y + side)
                pixels = image.convert("RGB").resize((RAW_SIDE, RAW_SIDE), Image.Resampling.BILINEAR, box)
            header = f"P6\n{RAW_SIDE} {RAW_SIDE}\n255\n".encode()
            writer.append({"image": header + pixels.tobytes(), "label": label})


def epochs(data: Data, options: Options) -> Epochs:
    """A loader in this process."""
    crop = fr.transforms.RandomCrop if options.variant == "raw" else fr.transforms.RandomResizedCrop
    loader = fr.FastRecordLoader(
        fr.FastRecordDataset(_file(data, options.variant)),
        options.batch,
        shuffle=True,
        image=crop(SIZE),
        flip=True,
        threads=options.threads,
        delivery=fr.Delivery(dtype=torch.float32 if options.variant.endswith("+float") else None),
    )

    def batches(number: int) -> Iterable[Batch]:
        loader.set_epoch(number)
        return loader

    return batches
