"""fastrecord's FastRecordLoader.

Variants: `original` JPEGs; `crop-index`: original JPEGs with a crop index;
`packed`: the same JPEGs as packed coefficients; `short-side`: JPEGs whose shorter side is at most 256;
`raw` records of 256 x 256 pixels with crops of 224 x 224; `raw-resized`: resized random parts of the raw
records; `thumbnails` of 48 x 48, which need no folder of images. With `+float` batches are normalised
float32.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image

import fastrecord as fr
from benches.peers import SIZE, Batch, Data, Epochs, Options
from benches.support.pictures import DIFFERENT, jpegs
from fastrecord import Delivery, FastRecordBatchSampler, FastRecordDataset, FastRecordLoader
from fastrecord.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

RAW_SIDE = 256
# Of `fastrecord pack`.
OPTIONS: dict[str, list[str]] = {
    "original": [],
    "crop-index": ["--crop-index"],
    "packed": ["--packed"],
    "short-side": ["--short-side", "256"],
}


def version(_variant: str) -> str:
    """What is measured."""
    return f"fastrecord {fr.__version__}"


def prepare(data: Data, variant: str) -> None:
    """Pack the images as the variant says."""
    path = _file(data, variant)
    if path.exists():
        return
    if path.stem in _WRITERS:
        _WRITERS[path.stem](data, path)
    else:
        options = OPTIONS[path.stem]
        command = [sys.executable, "-m", "fastrecord", "pack", *options, str(data.images), str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _file(data: Data, variant: str) -> Path:
    stored = {"raw-resized": "raw"}
    name = variant.removesuffix("+float")
    return data.root / f"{stored.get(name, name)}.frec"


@lru_cache(DIFFERENT)  # the images repeat
def _raw(encoded: bytes) -> bytes:
    with Image.open(io.BytesIO(encoded)) as image:
        side = min(image.size)
        x, y = (image.width - side) // 2, (image.height - side) // 2
        box = (x, y, x + side, y + side)
        pixels = image.convert("RGB").resize((RAW_SIDE, RAW_SIDE), Image.Resampling.BILINEAR, box)
    return f"P6\n{RAW_SIDE} {RAW_SIDE}\n255\n".encode() + pixels.tobytes()


def _write(path: Path, images: Iterable[bytes]) -> None:
    schema = fr.Schema({"image": fr.image(), "label": "int64"})
    with fr.Writer(path, schema) as writer:
        for label, image in enumerate(images):
            writer.append({"image": image, "label": label})


def _write_raw(data: Data, path: Path) -> None:
    _write(path, (_raw(source.read_bytes()) for source in data.files()))


def _write_thumbnails(data: Data, path: Path) -> None:
    small = []
    for encoded in jpegs(64):
        file = io.BytesIO()
        Image.open(io.BytesIO(encoded)).resize((48, 48)).save(file, "JPEG", quality=75)
        small.append(file.getvalue())
    data.root.mkdir(exist_ok=True)
    _write(path, (small[number % len(small)] for number in range(data.records)))


_WRITERS = {"raw": _write_raw, "thumbnails": _write_thumbnails}


def epochs(data: Data, options: Options) -> Epochs:
    """A loader in this process."""
    crop = RandomCrop if options.variant == "raw" else RandomResizedCrop
    dataset = FastRecordDataset(_file(data, options.variant))
    loader = FastRecordLoader(
        dataset,
        batch_sampler=FastRecordBatchSampler(dataset, options.batch, rank=options.rank, world_size=options.ranks),
        sample=[crop(SIZE), RandomHorizontalFlip()],
        threads=options.threads,
        delivery=Delivery(dtype=torch.float32 if options.variant.endswith("+float") else None),
    )

    def batches(number: int) -> Iterable[Batch]:
        loader.set_epoch(number)
        return loader

    return batches
