"""FFCV: its own file, decoded by its threads; each image is decoded whole, then cropped and resized."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField, rgb_image
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor
from ffcv.writer import DatasetWriter
from numpy.typing import NDArray
from PIL import Image

from benches.peers import SIZE, Data, Epochs, Options


def version() -> str:
    """What is measured."""
    return f"ffcv {importlib.metadata.version('ffcv')}"


class _Encoded(np.ndarray[Any, Any]):
    """Pixels that know the JPEG they come from."""

    jpeg: bytes


class _Images:
    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, label: int) -> tuple[NDArray[np.uint8], int]:
        with Image.open(self.files[label]) as image:
            pixels = np.asarray(image.convert("RGB")).view(_Encoded)
        pixels.jpeg = self.files[label].read_bytes()
        return pixels, label


def prepare(data: Data, _variant: str) -> None:
    """Pack the same bytes. Its writer encodes images anew, so it is given the encoded ones in that place."""
    path = data.root / "ffcv.beton"
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    rgb_image.encode_jpeg = lambda image, _quality: np.frombuffer(image.jpeg, np.uint8)
    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    DatasetWriter(str(temporary), fields, num_workers=1).from_indexed_dataset(_Images(data.files()))
    temporary.rename(path)


def epochs(data: Data, options: Options) -> Epochs:
    """The file mapped, as it recommends where memory holds it."""
    loader = Loader(
        str(data.root / "ffcv.beton"),
        batch_size=options.batch,
        num_workers=options.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={
            "image": [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor()],
            "label": [IntDecoder(), ToTensor(), Squeeze(1)],
        },
    )
    return lambda _: loader
