"""`NativeBatches`: batches from the native loader.

Threads of this process decode, crop and resize records.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import torch

from fastrecord import Delivery, FastRecordDataset, FastRecordLoader, Skip
from fastrecord.loader.skip import SkippedRecord
from fastrecord.loader.stats import LoaderStats
from fastrecord.train.batches.base import LISTED, Batch, Batches
from fastrecord.train.config import TrainConfig, TrainError
from fastrecord.train.distributed import Ranks
from fastrecord.train.labels import class_names
from fastrecord.transforms import (
    CenterCrop,
    CutMix,
    MixUp,
    RandAugment,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToFloat,
    Transform,
    TrivialAugmentWide,
)

_log = logging.getLogger("fastrecord.train")

# Maximum number of skipped records of a rank named at once; later ones are reported at the epoch's
# end.
_NAMED = 20
_FLOATS = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}


def make_sample(config: TrainConfig, size: int, *, training: bool) -> list[Transform]:
    """Return what becomes of an image.

    Args:
        config: Augmentation and sizes of evaluation.
        size: Of the images in training.
        training: True for training, False for evaluation.
    """
    if not training:
        size, resize = config.evaluation
        return [Resize(resize), CenterCrop(size)]
    if config.augment == "none":
        steps: list[Transform] = [Resize(size), CenterCrop(size)]
    else:
        steps = [RandomResizedCrop(size), RandomHorizontalFlip()]
    if config.augment == "trivialaugment":
        steps.append(TrivialAugmentWide(interpolation="bilinear"))
    elif config.augment == "randaugment":
        steps.append(RandAugment(interpolation="bilinear"))
    if config.random_erasing or config.mixup or config.cutmix:
        steps.append(ToFloat(_FLOATS[config.amp], layout="channels_last" if config.channels_last else "nchw"))
    if config.random_erasing:
        # As in torchvision's trainer, a rectangle gets the mean colour, which is 0 after normalisation.
        steps.append(RandomErasing(config.random_erasing))
    return steps


def make_mixing(config: TrainConfig, classes: int) -> list[MixUp | CutMix] | None:
    """Return the ways to mix the images of a training batch; None if they are not mixed.

    Args:
        config: The alphas.
        classes: Number of classes.
    """
    mixing: list[MixUp | CutMix] = []
    if config.mixup:
        mixing.append(MixUp(config.mixup, num_classes=classes))
    if config.cutmix:
        mixing.append(CutMix(config.cutmix, num_classes=classes))
    return mixing or None


class NativeBatches(Batches):
    """Batches of a FastRecordLoader; CUDA copies run during the previous step.

    Args:
        dataset: A data set without a transform.
        config: Batch size, accumulation, augmentation, seed, threads, and the handling of records
            that cannot be decoded.
        ranks: The processes that share each global batch.
        training: As for Batches; training data are augmented if `config` enables it.

    Raises:
        ValueError: the number of threads is out of range.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, *, training: bool) -> None:
        super().__init__(dataset, config, ranks, training=training)
        self._config, self._training = config, training
        self._size = config.size_in(0)
        self._told = 0
        self._skipped: list[SkippedRecord] = []
        self._count = 0
        self._loader = FastRecordLoader(
            dataset,
            batch_sampler=self._sampler,
            sample=make_sample(config, self._size, training=training),
            batch=make_mixing(config, len(class_names(dataset))) if training else None,
            threads=config.threads,
            delivery=Delivery(device=ranks.device if ranks.device.type == "cuda" else None),
            on_error=Skip(limit=config.max_skipped, handler=self._note_skipped)
            if config.on_error == "skip"
            else "raise",
        )

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """See `Batches.epoch`.

        Raises:
            TrainError: so many records of a step were skipped that there is not one for each of its
                passes.
        """
        if self._training and self._config.size_in(epoch) != self._size:
            self._size = self._config.size_in(epoch)
            self._loader.sample = make_sample(self._config, self._size, training=True)
        self._loader.set_epoch(epoch)
        for images, labels in self._loader:
            if len(labels) < self._passes:
                raise TrainError(
                    f"only {len(labels)} of the {self._sampler.batch_size} records of a step could be decoded: too few "
                    f"for its {self._passes} pass(es); the others were skipped (--on-error skip)"
                )
            # Slices, not copies. Of equal size, unless some records were skipped.
            yield from zip(*(torch.tensor_split(part, self._passes) for part in (images, labels)), strict=True)

    def _note_skipped(self, _error: Exception, record: SkippedRecord) -> None:
        self._count += 1
        if len(self._skipped) < LISTED:
            self._skipped.append(record)
        self._told += 1
        if self._told <= _NAMED:
            _log.warning(f"skipped: {record.reason}")
        elif self._told == _NAMED + 1:
            _log.warning("skipped more records: the rest are reported at the end of the epoch")

    def take_skipped(self) -> tuple[int, list[dict[str, Any]]]:
        """See `Batches.take_skipped`."""
        taken = self._count, [dataclasses.asdict(record) for record in self._skipped]
        self._count, self._skipped = 0, []
        return taken

    def stats(self) -> LoaderStats:
        """See `Batches.stats`."""
        return self._loader.stats()

    def close(self) -> None:
        """See `Batches.close`."""
        self._loader.close()
