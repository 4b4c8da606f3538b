"""albumentations on images of OpenCV, in a DataLoader.

It has no TrivialAugment and no RandAugment: one of their operations is chosen by `OneOf`, or two by
`SomeOf`, with the same ranges.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import albumentations as A  # noqa: N812 - as in its documentation
import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from benches.peers import SIZE, Data
from benches.peers.augmented import Batch, Epochs, Options
from benches.peers.workers import data_loader
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD

NEAREST = cv2.INTER_NEAREST
GREY = tuple(255 * value for value in IMAGENET_MEAN)


def version(_variant: str) -> str:
    """What is measured."""
    return f"albumentations {A.__version__}, OpenCV {cv2.__version__}"


def prepare(data: Data, _recipe: str) -> None:
    """Do nothing: it reads the folder itself."""


def _operations(shear: float, pixels: int, degrees: float, factor: float, bits: int, threshold: float) -> list[Any]:
    """Return the fourteen operations of both; arguments are the largest strengths."""
    angle = math.degrees(math.atan(shear))

    def affine(**more: Any) -> Any:
        return A.Affine(**more, interpolation=NEAREST, p=1)

    def jitter(**more: Any) -> Any:
        still = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
        return A.ColorJitter(**(still | more), p=1)

    around = (1 - factor, 1 + factor)
    return [
        A.NoOp(p=1),
        affine(shear={"x": (-angle, angle), "y": (0, 0)}),
        affine(shear={"x": (0, 0), "y": (-angle, angle)}),
        affine(translate_px={"x": (-pixels, pixels), "y": (0, 0)}),
        affine(translate_px={"x": (0, 0), "y": (-pixels, pixels)}),
        A.Rotate(degrees, interpolation=NEAREST, border_mode=cv2.BORDER_CONSTANT, p=1),
        jitter(brightness=around),
        jitter(saturation=around),
        jitter(contrast=around),
        A.Sharpen(alpha=(0, factor), p=1),
        A.Posterize((bits, 8), p=1),
        A.Solarize((threshold, 1), p=1),
        A.AutoContrast(p=1),
        A.Equalize(p=1),
    ]


def _chosen(recipe: str) -> Any:
    if recipe == "trivial":
        return A.OneOf(_operations(0.99, 32, 135, 0.99, 2, 0.0), p=1)
    return A.SomeOf(_operations(0.09, 30, 9, 0.27, 7, 0.7), n=2, replace=True, p=1)


class Images(Dataset[Any]):
    """Augmented images, float16 (H, W, 3)."""

    def __init__(self, data: Data, recipe: str) -> None:
        self._files = [str(path) for path in data.files()]
        self._transform = A.Compose(
            [
                A.RandomResizedCrop((SIZE, SIZE)),
                A.HorizontalFlip(),
                _chosen(recipe),
                A.Erasing(fill=GREY, p=0.1),  # the values that become 0; before floats, it is faster
                A.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __len__(self) -> int:
        """The number of images."""
        return len(self._files)

    def __getitem__(self, label: int) -> Batch:
        """Return an image, augmented."""
        cv2.setNumThreads(0)
        pixels = cv2.imread(self._files[label], cv2.IMREAD_COLOR_RGB)
        image = self._transform(image=pixels)["image"].astype(np.float16)
        return {"image": torch.from_numpy(image), "label": label}


def epochs(data: Data, recipe: str, options: Options) -> Epochs:
    """Return a DataLoader with as many workers as threads; with one thread, in the process."""
    workers = options.threads if options.threads > 1 else 0
    made: Any = data_loader(Images(data, recipe), replace(options, threads=workers), persistent=workers > 0)  # of dicts
    loader: Epochs = made
    return loader
