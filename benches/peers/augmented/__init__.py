"""Loaders that augment images: ours and its peers, each in a module here.

A module has `version(variant)`; `prepare(data, recipe)`, which makes the loader's own files if they
do not exist; and `epochs(data, recipe, options)`. This returns a function of the number of an epoch;
its result is an iterable of batches in random order, each a dict of `label` and of what `RECIPES`
says. Images are (B, 3, H, W) or (B, H, W, 3), views (B, n, 3, H, W), uint8 or normalised floats.

With one thread nothing runs beside the process: a DataLoader has no workers then.

`contender` has the class that the harness starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benches.peers import Options

Batch = dict[str, Any]
Epochs = Callable[[int], Iterable[Batch]]

# Name -> what a batch has besides labels. Each begins with RandomResizedCrop(224) and a random flip.
RECIPES = {
    "crop": "image, uint8",
    "trivial": "image: TrivialAugmentWide, float16, RandomErasing(0.1)",
    "rand": "image: RandAugment(2, 9), float16, RandomErasing(0.1)",
    "float16": "image",
    "float32": "image",
    "raw-crop": "image, uint8, from raw pixels of 256 x 256",
    "raw-float32": "image, from raw pixels of 256 x 256",
    "raw-trivial": "image: TrivialAugmentWide, float16, from raw pixels of 256 x 256",
    "views": "first, second: 224 pixels; small: 6 of 96; as in DINO, float32",
    "mask": "image, uint8; mask (B, H, W), uint8, from PNGs with palettes",
    "mask-array": "the same, with masks from arrays",
    "boxes": "image, uint8; boxes (B, 20, 4), float32",
}

__all__ = ["RECIPES", "Batch", "Epochs", "Options"]
