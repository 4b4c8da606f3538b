"""torchvision: ImageFolder, transforms v2 and a DataLoader.

Variants: `persistent` workers decode with Pillow, ImageFolder's default; `fresh` workers do the
same, but start again for each epoch; `torchcodec`: persistent workers decode with torchcodec, which
has replaced torchvision.io.
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
    """Decode a JPEG to uint8 (3, H, W) with torchcodec, which is faster here than Pillow."""
    # Imported here because the other variants run without it.
    from torchcodec.decoders import decode_jpeg

    pixels: torch.Tensor = decode_jpeg(bytes(encoded), mode="RGB")
    return pixels


def crop() -> v2.Compose:
    """Crop, resize and flip a tensor or a Pillow image."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])


def prepare(data: Data, _variant: str) -> None:
    """Do nothing: it reads the folder itself."""


def epochs(data: Data, options: Options) -> Epochs:
    """Return a DataLoader with as many workers as threads."""
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
