"""torchvision's transforms in a DataLoader.

Variants: `io`, `torchcodec` and `pillow`: v2 on uint8 tensors, its fastest form, decoded by
torchvision.io, torchcodec or Pillow; `v1` and `v2`: the preset of its references/classification, on
ImageFolder and images of Pillow, by either version of the transforms, float32; `pil`: the same images, as
DINO's own code blurs them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image, ImageFilter
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, v2

from benches.harness import Missing
from benches.peers import Data
from benches.peers.augmented import Batch, Epochs, Options
from benches.peers.crops import DECODER, by_pillow, decode
from benches.peers.workers import data_loader
from benches.support.scenes import Scenes
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD


def version(variant: str) -> str:
    """What is measured."""
    if variant == "torchcodec" and not DECODER.startswith("torchcodec"):
        raise Missing("torchcodec is not installed")
    decoder = DECODER if variant == "torchcodec" else "torchvision.io" if variant == "io" else "Pillow"
    return f"torchvision {torchvision.__version__.partition('+')[0]}, {decoder}"


def by_torchvision(encoded: bytes) -> torch.Tensor:
    """Decode a JPEG to uint8 (3, H, W)."""
    given = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    pixels: torch.Tensor = decode_jpeg(given, mode=ImageReadMode.RGB)
    return pixels


DECODE: dict[str, Callable[[Any], torch.Tensor]] = {
    "io": by_torchvision,
    "torchcodec": decode,
    "pillow": by_pillow,
}


def to_float(dtype: torch.dtype) -> list[Any]:
    """Return the fastest way to normalised floats: half precision is slow on CPUs, so it comes last."""
    steps = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD, inplace=True)]
    return steps if dtype == torch.float32 else [*steps, v2.ToDtype(dtype)]


def crop() -> list[Any]:
    """Return crop and flip."""
    return [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]


def transform(recipe: str) -> Any:
    """Return the transform of a uint8 tensor, or of tv_tensors."""
    own = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment}
    if recipe in own:
        return v2.Compose([*crop(), own[recipe](), *to_float(torch.float16), v2.RandomErasing(0.1)])
    if recipe in ("float16", "float32"):
        return v2.Compose([*crop(), *to_float(getattr(torch, recipe))])
    return v2.Compose(crop())


def preset(recipe: str, variant: str) -> Any:
    """Return ClassificationPresetTrain of torchvision's references/classification, with their defaults."""
    module: Any = v1 if variant == "v1" else v2
    own = {"trivial": "TrivialAugmentWide", "rand": "RandAugment"}[recipe]
    convert = module.ConvertImageDtype(torch.float32) if variant == "v1" else v2.ToDtype(torch.float32, scale=True)
    steps = [
        module.RandomResizedCrop(224, interpolation=InterpolationMode.BILINEAR, antialias=True),
        module.RandomHorizontalFlip(0.5),
        getattr(module, own)(interpolation=InterpolationMode.BILINEAR),
        module.PILToTensor(),
        convert,
        module.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD),
        module.RandomErasing(p=0.1),
    ]
    return module.Compose(steps if variant == "v1" else [*steps, v2.ToPureTensor()])


def pil_blur(image: Image.Image) -> Image.Image:
    """Blur an image of Pillow, as DINO's own code does."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class Views:
    """The views of DINO, of a tensor or an image of Pillow."""

    def __init__(self, *, pil: bool) -> None:
        end = [v2.PILToTensor()] if pil else []
        end += to_float(torch.float32)
        jitter = [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), v2.RandomGrayscale(0.2)]

        def view(size: int, scale: tuple[float, float], *more: Any) -> Any:
            cut = v2.RandomResizedCrop(size, scale, interpolation=InterpolationMode.BICUBIC)
            return v2.Compose([cut, v2.RandomHorizontalFlip(), *jitter, *more, *end])

        def blur(p: float) -> Any:
            return v2.RandomApply([v2.Lambda(pil_blur) if pil else v2.GaussianBlur(9, (0.1, 2.0))], p)

        self.first = view(224, (0.4, 1.0), blur(1.0))
        self.second = view(224, (0.4, 1.0), blur(0.1), v2.RandomSolarize(128, 0.2))
        self.small = view(96, (0.05, 0.4), blur(0.5))

    def __call__(self, image: Any) -> Batch:
        """Return all views of an image."""
        small = torch.stack([self.small(image) for _ in range(6)])
        return {"first": self.first(image), "second": self.second(image), "small": small}


class Samples(Dataset[Any]):
    """Images, each with what a recipe adds; a dict each."""

    def __init__(self, data: Data, recipe: str, variant: str) -> None:
        self._files = data.files()
        self._decode, self._pil = DECODE.get(variant), variant not in DECODE
        self._masks: Sequence[Path] = ()
        self._boxes: Any = None
        if recipe == "views":
            self._transform: Any = Views(pil=self._pil)
        else:
            self._transform = preset(recipe, variant) if self._pil else transform(recipe)
        self._views = recipe == "views"
        if recipe.startswith("mask"):
            self._masks = Scenes(data).masks(".png" if recipe == "mask" else ".npy")
        elif recipe == "boxes":
            self._boxes = torch.from_numpy(Scenes(data).boxes())

    def __len__(self) -> int:
        """The number of images."""
        return len(self._files)

    def __getitem__(self, label: int) -> Batch:
        """Return an image, transformed."""
        path = self._files[label]
        image: Any = default_loader(path) if self._decode is None else self._decode(path.read_bytes())
        if self._views:
            return {**self._transform(image), "label": label}
        if self._masks:
            image, mask = self._transform(tv_tensors.Image(image), tv_tensors.Mask(_mask(self._masks[label])))
            return {"image": image.as_subclass(torch.Tensor), "mask": mask.as_subclass(torch.Tensor), "label": label}
        if self._boxes is not None:
            size = (image.shape[1], image.shape[2])
            boxes = tv_tensors.BoundingBoxes(self._boxes[label], format="XYXY", canvas_size=size)
            image, boxes = self._transform(tv_tensors.Image(image), boxes)
            return {"image": image.as_subclass(torch.Tensor), "boxes": boxes.as_subclass(torch.Tensor), "label": label}
        return {"image": self._transform(image), "label": label}


def _mask(path: Path) -> torch.Tensor:
    """Read a mask, uint8 (H, W): the indices of a PNG, or an array."""
    if path.suffix == ".npy":
        return torch.from_numpy(np.load(path))
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image))


def prepare(data: Data, recipe: str) -> None:
    """Make masks and boxes; it reads the folder itself."""
    if recipe.startswith("mask") or recipe == "boxes":
        Scenes(data).make()


def epochs(data: Data, recipe: str, options: Options) -> Epochs:
    """Return a DataLoader with as many workers as threads; with one thread, in the process."""
    workers = options.threads if options.threads > 1 else 0
    dataset = Samples(data, recipe, options.variant)
    made: Any = data_loader(dataset, replace(options, threads=workers), persistent=workers > 0)  # of dicts
    loader: Epochs = made
    return loader
