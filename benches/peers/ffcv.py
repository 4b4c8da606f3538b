"""FFCV: its threads decode each image of its own file whole, then crop and resize."""

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


def version(_variant: str) -> str:
    """What is measured."""
    return f"ffcv {importlib.metadata.version('ffcv')}"


class _Encoded(np.ndarray[Any, Any]):
    """Pixels that refer to their original JPEG."""

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
    """Pack the same bytes. Its writer encodes images again, so this passes it the encoded ones."""
    path = data.root / "ffcv.beton"
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    rgb_image.encode_jpeg = lambda image, _quality: np.frombuffer(image.jpeg, np.uint8)
    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    DatasetWriter(str(temporary), fields, num_workers=1).from_indexed_dataset(_Images(data.files()))
    temporary.rename(path)


def epochs(data: Data, options: Options) -> Epochs:
    """Map the file, as it recommends for files that fit into memory."""
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
