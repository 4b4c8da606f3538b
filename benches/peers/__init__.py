"""Loaders of images: ours and its peers, each driven by one module here.

`loader` makes a contender of a module.

A module has `version(variant)`; `prepare(data, variant)`, which makes the loader's own files from the
folder of images if they do not exist; and `epochs(data, options)`, which returns a function. It maps the number of
an epoch to an iterable of (images, labels). Images are uint8 (B, 3, 224, 224) or (B, 224, 224, 3),
or normalised float32 (B, 3, 224, 224), in random order, after RandomResizedCrop(224) and a random
horizontal flip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

SIZE = 224

Batch = tuple[torch.Tensor, torch.Tensor]
Epochs = Callable[[int], Iterable[Batch]]


@dataclass(frozen=True)
class Data:
    """A folder of images with a class for each, so that labels identify the images of an epoch.

    Attributes:
        root: The parent of the folder `images` and of the files that each loader makes.
        records: Number of images.
    """

    root: Path
    records: int

    @property
    def images(self) -> Path:
        """The folder, as ImageFolder reads it."""
        return self.root / "images"

    def files(self) -> list[Path]:
        """The images, in the order of their labels."""
        files = sorted(self.images.glob("*/*"))
        if len(files) != self.records:
            raise ValueError(
                f"{self.images}: {len(files)} images, not {self.records}: remove {self.root} and run again"
            )
        return files


@dataclass(frozen=True)
class Options:
    """The settings of a loader.

    Attributes:
        threads: Threads, or worker processes; the process may run on as many cores.
        batch: Images a batch.
        variant: The part of the contender's name after the colon, or an empty string.
        rank, ranks: Of how many loaders that share an epoch it is which one.
    """

    threads: int
    batch: int
    variant: str
    rank: int = 0
    ranks: int = 1
