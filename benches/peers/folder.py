"""torchvision: ImageFolder, Pillow, transforms v2 and a DataLoader.

Variants: `persistent` workers, `fresh` ones each epoch.
"""

from __future__ import annotations

import PIL
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benches.peers import SIZE, Data, Epochs, Options


def version() -> str:
    """What is measured."""
    return f"torchvision {torchvision.__version__}, Pillow {PIL.__version__}"


def transform() -> v2.Compose:
    """Crop, resize and flip as Pillow does; the fastest order of the three that torchvision offers."""
    return v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def prepare(data: Data, _variant: str) -> None:
    """Nothing to make: the folder is what it reads."""


def epochs(data: Data, options: Options) -> Epochs:
    """As many workers as threads."""
    loader = DataLoader(
        ImageFolder(str(data.images), transform()),
        options.batch,
        shuffle=True,
        num_workers=options.threads,
        persistent_workers=options.variant == "persistent",
    )
    return lambda _: loader
