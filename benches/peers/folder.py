"""torchvision: ImageFolder, transforms v2 and a DataLoader.

Variants: `persistent` workers decode with Pillow, ImageFolder's default; `fresh` workers do the
same, but start again for each epoch; `torchcodec`: persistent workers decode with torchcodec, which
has replaced torchvision.io.
"""

from __future__ import annotations

from pathlib import Path

import PIL
import torchvision
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from benches.harness import Missing
from benches.peers import SIZE, Data, Epochs, Options
from benches.peers.crops import DECODER, decode
from benches.peers.workers import data_loader


def version(variant: str) -> str:
    """What is measured."""
    if variant == "torchcodec" and not DECODER.startswith("torchcodec"):
        raise Missing("torchcodec is not installed")
    decoder = DECODER if variant == "torchcodec" else f"Pillow {PIL.__version__}"
    return f"torchvision {torchvision.__version__.partition('+')[0]}, {decoder}"


def crop() -> v2.Compose:
    """Crop, resize and flip a tensor or a Pillow image."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])


def prepare(data: Data, _variant: str) -> None:
    """Do nothing: it reads the folder itself."""


def epochs(data: Data, options: Options) -> Epochs:
    """Return a DataLoader with as many workers as threads."""
    torchcodec = options.variant == "torchcodec"
    dataset = ImageFolder(
        str(data.images),
        crop() if torchcodec else v2.Compose([crop(), v2.PILToTensor()]),
        loader=(lambda path: decode(Path(path).read_bytes())) if torchcodec else default_loader,
    )
    return data_loader(dataset, options, persistent=options.variant != "fresh")
