"""Loaders that benches/bench_loader.py compares: ours and its peers, each driven by one module here.

A module has `prepare(data, variant)`, which makes the loader's own files from the folder of images if they are not
there, and `epochs(data, options)`, which returns a function: number of the epoch -> iterable of (images, labels), uint8
(B, 3, 224, 224) or (B, 224, 224, 3), or normalised float32 (B, 3, 224, 224); RandomResizedCrop(224) and a random
horizontal flip applied, in random order.
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
    """A folder of images, a class for each, so that the labels of an epoch tell which images it held.

    Attributes:
        root: Where the folder `images` lies, and beside it the files that each loader makes of it.
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
    """How a loader is to run.

    Attributes:
        threads: Threads, or worker processes; the process may run on as many cores.
        batch: Images a batch.
        variant: What follows the colon in the contender's name; empty if nothing does.
    """

    threads: int
    batch: int
    variant: str
