"""fastrecord's FastRecordLoader with `sample=`.

Variant `alone`: only crop and flip, uint8, of the same images, which shows what the rest costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import fastrecord as fr
from benches.peers import Data, ours
from benches.peers.augmented import Batch, Epochs, Options
from benches.support.scenes import BOXES, Scenes
from fastrecord import transforms as T  # noqa: N812 - as in its documentation

CROP: list[Any] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
JITTER = [
    T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
    T.RandomGrayscale(0.2),
]


def _view(size: int, scale: tuple[float, float], *more: Any) -> list[Any]:
    """Return a view of DINO."""
    crop = T.RandomResizedCrop(size, scale, interpolation="bicubic")
    return [crop, T.RandomHorizontalFlip(), *JITTER, *more, T.ToFloat()]


def _blur(p: float) -> Any:
    return T.RandomApply([T.GaussianBlur(9, (0.1, 2.0))], p)


SAMPLES: dict[str, Any] = {
    "crop": CROP,
    "trivial": [*CROP, T.TrivialAugmentWide(), T.ToFloat("float16"), T.RandomErasing(0.1)],
    "rand": [*CROP, T.RandAugment(2, 9), T.ToFloat("float16"), T.RandomErasing(0.1)],
    "float16": [*CROP, T.ToFloat("float16")],
    "float32": [*CROP, T.ToFloat("float32")],
    "raw-crop": CROP,
    "raw-float32": [*CROP, T.ToFloat("float32")],
    "raw-trivial": [*CROP, T.TrivialAugmentWide(), T.ToFloat("float16")],
    "views": {
        "first": T.View("image", _view(224, (0.4, 1.0), _blur(1.0))),
        "second": T.View("image", _view(224, (0.4, 1.0), _blur(0.1), T.RandomSolarize(128, 0.2))),
        "small": T.View("image", _view(96, (0.05, 0.4), _blur(0.5)), count=6),
    },
    "mask": {"image": CROP, "mask": T.Like("image", interpolation="nearest")},
    "mask-array": {"image": CROP, "mask": T.Like("image", interpolation="nearest")},
    "boxes": {"image": CROP, "boxes": T.Like("image", boxes="xyxy")},
}
# The file of a recipe; the others have one of the JPEGs and labels.
FILES = {"mask": "mask", "mask-array": "mask-array", "boxes": "boxes"}
FILES |= dict.fromkeys(("raw-crop", "raw-float32", "raw-trivial"), "raw")
# What a file has besides images and labels.
MORE: dict[str, Any] = {
    "mask": fr.image(),
    "mask-array": fr.array("uint8", (None, None)),
    "boxes": fr.array("float32", (BOXES, 4)),
}


def version(_variant: str) -> str:
    """What is measured."""
    return f"fastrecord {fr.__version__}"


def prepare(data: Data, recipe: str) -> None:
    """Write the JPEGs as they are, and what else a sample has; with arrays as masks, a crop index too."""
    kind = FILES.get(recipe, "original")
    if kind not in MORE:
        ours.prepare(data, kind)
        return
    path = data.root / f"{kind}.frec"
    if path.exists():
        return
    scenes, name = Scenes(data), kind.partition("-")[0]
    scenes.make()
    values: Iterable[Any] = scenes.boxes()
    if name == "mask":
        values = (_read(mask) for mask in scenes.masks(".npy" if kind == "mask-array" else ".png"))
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    with fr.Writer(temporary, fr.Schema({"image": fr.image(), name: MORE[kind], "label": "int64"})) as writer:
        for label, (image, value) in enumerate(zip(data.files(), values, strict=True)):
            writer.append({"image": image.read_bytes(), name: value, "label": label})
    if kind == "mask-array":
        fr.files.index(temporary)
    temporary.rename(path)


def _read(mask: Any) -> Any:
    return np.load(mask) if mask.suffix == ".npy" else mask.read_bytes()


def epochs(data: Data, recipe: str, options: Options) -> Epochs:
    """A loader in this process."""
    path = data.root / f"{FILES.get(recipe, 'original')}.frec"
    sample = CROP if options.variant == "alone" else SAMPLES[recipe]
    more = FILES.get(recipe, "")
    dataset = fr.FastRecordDataset(path, fields=("image", more.partition("-")[0], "label") if more in MORE else None)
    loader = fr.FastRecordLoader(
        dataset,
        batch_sampler=fr.FastRecordBatchSampler(dataset, options.batch),
        sample=sample,
        threads=options.threads,
    )

    def batches(number: int) -> Iterable[Batch]:
        loader.set_epoch(number)
        for batch in loader:
            yield batch if isinstance(batch, dict) else {"image": batch[0], "label": batch[1]}

    return batches
