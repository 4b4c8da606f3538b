"""torchvision: ImageFolder, transforms v2 and a DataLoader.

Variants: `persistent` workers decode by Pillow, as ImageFolder does by itself; so do `fresh` ones, started each epoch;
`decode-jpeg`: persistent workers decode by torchvision.io.
"""

from __future__ import annotations

from pathlib import Path

import PIL
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from benches.peers import SIZE, Data, Epochs, Options


def version() -> str:
    """What is measured."""
    return f"torchvision {torchvision.__version__.partition('+')[0]}, Pillow {PIL.__version__}"


def decode(encoded: bytes) -> torch.Tensor:
    """Decode a JPEG to uint8 (3, H, W), by torchvision: with its transforms that takes less time than by Pillow."""
    data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    pixels: torch.Tensor = decode_jpeg(data, ImageReadMode.RGB)
    return pixels


def crop() -> v2.Compose:
    """Crop, resize and flip a tensor, or an image of Pillow's."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])


def prepare(data: Data, _variant: str) -> None:
    """Nothing to make: the folder is what it reads."""


def epochs(data: Data, options: Options) -> Epochs:
    """As many workers as threads."""
    by_torchvision = options.variant == "decode-jpeg"
    dataset = ImageFolder(
        str(data.images),
        crop() if by_torchvision else v2.Compose([crop(), v2.PILToTensor()]),
        loader=(lambda path: decode(Path(path).read_bytes())) if by_torchvision else default_loader,
    )
    loader = DataLoader(
        dataset,
        options.batch,
        shuffle=True,
        num_workers=options.threads,
        persistent_workers=options.variant != "fresh",
    )
    return lambda _: loader
