"""TurboLoader: crop, flip and normalising in one pass in C++; it makes float32 of JPEGs."""

from __future__ import annotations

from collections.abc import Iterator

from benches.peers import Data, turboloader
from benches.peers.augmented import Batch, Epochs, Options

VARIANTS = {"float32": "", "raw-float32": "raw"}
version = turboloader.version


def prepare(data: Data, recipe: str) -> None:
    """Pack the same bytes, or raw pixels."""
    turboloader.prepare(data, VARIANTS[recipe])


def epochs(data: Data, recipe: str, options: Options) -> Epochs:
    """Its loader, as the benches without augmentation have it."""
    load = turboloader.epochs(data, Options(options.threads, options.batch, VARIANTS[recipe]))

    def batches(number: int) -> Iterator[Batch]:
        for images, labels in load(number):
            yield {"image": images, "label": labels}

    return batches
