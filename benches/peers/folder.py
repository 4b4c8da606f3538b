"""torchvision: ImageFolder, transforms v2 and a DataLoader.

Variants: `persistent` workers decode by Pillow, as ImageFolder does by itself; so do `fresh` ones, started each epoch;
`torchcodec`: persistent workers decode by torchcodec, which has replaced torchvision.io.
"""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from pathlib import Path

import PIL
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from benches.peers import SIZE, Data, Epochs, Options


def version() -> str:
    """What is measured."""
    found = [f"torchvision {torchvision.__version__.partition('+')[0]}", f"Pillow {PIL.__version__}"]
    with suppress(importlib.metadata.PackageNotFoundError):
        found.append(f"torchcodec {importlib.metadata.version('torchcodec')}")
    return ", ".join(found)


def decode(encoded: bytes) -> torch.Tensor:
    """Decode a JPEG to uint8 (3, H, W), by torchcodec: with torchvision's transforms that is faster than by Pillow."""
    # Not above: the other variants run without it.
    from torchcodec.decoders import decode_jpeg

    pixels: torch.Tensor = decode_jpeg(bytes(encoded), mode="RGB")
    return pixels


def crop() -> v2.Compose:
    """Crop, resize and flip a tensor, or an image of Pillow's."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])


def prepare(data: Data, _variant: str) -> None:
    """Nothing to make: the folder is what it reads."""


def epochs(data: Data, options: Options) -> Epochs:
    """As many workers as threads."""
    by_torchcodec = options.variant == "torchcodec"
    dataset = ImageFolder(
        str(data.images),
        crop() if by_torchcodec else v2.Compose([crop(), v2.PILToTensor()]),
        loader=(lambda path: decode(Path(path).read_bytes())) if by_torchcodec else default_loader,
    )
    loader = DataLoader(
        dataset,
        options.batch,
        shuffle=True,
        num_workers=options.threads,
        persistent_workers=options.variant != "fresh",
    )
    return lambda _: loader
