"""From packed files to batches: data sets, transforms, and the source of batches that the engine draws from."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from fastrecord import FastRecordBatchSampler, FastRecordDataset, FastRecordError, collate
from fastrecord.train.config import Augment, TrainConfig, TrainError
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import ignore_launcher

Batch = tuple[torch.Tensor, torch.Tensor]

# Of ImageNet's RGB values in [0, 1]; the numbers that torchvision's own training uses.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


class Batches(Protocol):
    """A source of batches. One optimizer step takes `accumulate` batches, one after the other."""

    def __len__(self) -> int:
        """Return the optimizer steps (in evaluation: the batches) of an epoch for this rank."""
        ...

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Iterate over this rank's batches of an epoch: images, uint8 (B, 3, S, S); labels, int64 (B,).

        After `load_state_dict`, the first call goes on where the state was taken.
        """
        ...

    def state_dict(self, *, epoch: int, steps_done: int) -> dict[str, Any]:
        """Return where a run stands after `steps_done` optimizer steps of an epoch, as a JSON-able dict."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, steps_done: int) -> None:
        """Let the next `epoch` start behind the `steps_done` optimizer steps that `state` was taken after."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Normalize(nn.Module):
    """Turn a uint8 batch into a float32 one of about zero mean and unit variance, on the batch's device."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(_MEAN).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(_STD).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return `images`, uint8 (B, 3, H, W), normalised, float32, in the same memory format."""
        return (images - self.mean) / self.std


def make_transform(augment: Augment, size: int, *, training: bool) -> Callable[[Any], torch.Tensor]:
    """Return the transform from a PIL image to a uint8 tensor (3, size, size)."""
    steps: list[nn.Module]
    if augment == "none":
        steps = [v2.Resize(size), v2.CenterCrop(size)]
    elif training:
        steps = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    else:
        steps = [v2.Resize(size * 256 // 224), v2.CenterCrop(size)]
    transform: Callable[[Any], torch.Tensor] = v2.Compose([*steps, v2.PILToTensor()])
    return transform


def open_datasets(config: TrainConfig) -> tuple[FastRecordDataset, FastRecordDataset | None]:
    """Open the files to train on and those to evaluate on, with their transforms.

    Raises:
        TrainError: a file can not be used, the classes of the two differ, or a label names no class.
    """
    train = _open(config.train, make_transform(config.augment, config.image_size, training=True))
    if config.val is None:
        return train, None
    val = _open(config.val, make_transform(config.augment, config.image_size, training=False))
    check_classes(train.classes, val.classes, train=_name(config.train), val=_name(config.val))
    if train.classes != val.classes:
        # The same names in another order: classes are one by name, not by number.
        val.target_transform = [train.class_to_idx[name] for name in val.classes].__getitem__
    return train, val


def check_classes(train_classes: Sequence[str], val_classes: Sequence[str], *, train: str, val: str) -> None:
    """Refuse two files whose class names are not the same.

    Raises:
        TrainError: names what is missing in `val` and what only `val` has.
    """
    missing = sorted(set(train_classes) - set(val_classes))
    extra = sorted(set(val_classes) - set(train_classes))
    if not missing and not extra:
        return
    said = [f"{val} does not have {_some(missing)}"] if missing else []
    said += [f"only {val} has {_some(extra)}"] if extra else []
    raise TrainError(
        f"the classes of {train} and {val} differ: {'; '.join(said)}. "
        f"Pack the second with --classes-from {train}, so that both have the same classes and numbers"
    )


def _some(names: Sequence[str], most: int = 10) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"


def _name(files: str | Sequence[str]) -> str:
    return files if isinstance(files, str) else ", ".join(files)


def _open(files: str | Sequence[str], transform: Callable[[Any], Any]) -> FastRecordDataset:
    try:
        dataset = FastRecordDataset(files, transform=transform)
        # A file without labels has no such attribute.
        targets = dataset.targets
    except (FastRecordError, ValueError, AttributeError) as error:
        raise TrainError(str(error)) from error
    if not len(dataset):
        raise TrainError(f"{_name(files)} holds no record")
    if not dataset.classes or targets.dtype.kind != "i":
        raise TrainError(f"{_name(files)} names no classes: pack it from class folders, or with --classes-from")
    outside = np.flatnonzero((targets < 0) | (targets >= len(dataset.classes)))
    if outside.size:
        record = int(outside[0])
        raise TrainError(
            f"{_name(files)}: record {record} has label {int(targets[record])}, but the {len(dataset.classes)} classes "
            f"are numbered 0 to {len(dataset.classes) - 1}; it is so with {outside.size} record(s) in all"
        )
    return dataset


@dataclass(frozen=True, slots=True)
class _Request:
    """What a worker is asked for: one batch, and the seed of its augmentation."""

    seed: int
    records: list[int]


class _Requests:
    """Splits each batch of the sampler, a step's share, into single passes; a DataLoader's batch_sampler."""

    def __init__(self, sampler: FastRecordBatchSampler, batch_size: int, key: tuple[int, ...]) -> None:
        self.sampler = sampler
        self.epoch = 0
        self.steps_done = 0
        self._batch_size = batch_size
        self._key = key

    def __iter__(self) -> Iterator[_Request]:
        first_step, self.steps_done = self.steps_done, 0
        for step, records in enumerate(self.sampler, start=first_step):
            for first in range(0, len(records), self._batch_size):
                seed = derive_seed(*self._key, self.epoch, step, first)
                yield _Request(seed, records[first : first + self._batch_size])


class _Seeded(Dataset[Any]):
    """Answers requests: the augmentation of a batch depends on its seed alone, not on the worker that makes it."""

    def __init__(self, dataset: FastRecordDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, record: int) -> Any:
        return self._dataset[record]

    def __getitems__(self, request: _Request) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(request.seed)
            return self._dataset.__getitems__(request.records)


def derive_seed(*key: int) -> int:
    """Return a seed in [0, 2**63) for a tuple of numbers: unrelated for any two tuples, equal on every machine."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def default_threads(ranks: Ranks) -> int:
    """Return the cores that this process may use, shared among the processes of this machine; 8 at most."""
    return min(8, max(1, len(os.sched_getaffinity(0)) // ranks.local_world_size))


class TorchBatches:
    """Batches that the worker processes of a torch DataLoader read and decode with Pillow.

    Args:
        dataset: Gives (uint8 image, label).
        config: Batch size, accumulation, seed, number of workers.
        ranks: The processes that share each global batch.
        training: Shuffled, in whole global batches (the last one filled up by wrapping round). Otherwise: in order,
            each record exactly once over all ranks.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, *, training: bool) -> None:
        self._passes = config.accumulate if training else 1
        self._sampler = FastRecordBatchSampler(
            dataset,
            config.batch_size * self._passes,
            shuffle=training,
            seed=config.seed,
            rank=ranks.rank,
            world_size=ranks.world_size,
            tail="pad" if training else "exact",
        )
        self._steps = len(self._sampler)
        self._requests = _Requests(self._sampler, config.batch_size, (config.seed, ranks.rank))
        workers = default_threads(ranks) if config.threads is None else config.threads
        self._loader: DataLoader[Any] | None = DataLoader(
            _Seeded(dataset),
            batch_sampler=self._requests,  # type: ignore[arg-type]  # yields requests, which _Seeded understands
            collate_fn=collate,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=ranks.device.type == "cuda",
            worker_init_fn=ignore_launcher,
            # Its own, so that iterating leaves torch's global generator alone.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return self._steps

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """See `Batches.epoch`."""
        if self._loader is None:
            raise ValueError("these batches are closed")
        self._sampler.set_epoch(epoch)
        self._requests.epoch = epoch
        yield from self._loader

    def state_dict(self, *, epoch: int, steps_done: int) -> dict[str, Any]:
        """See `Batches.state_dict`."""
        self._sampler.set_epoch(epoch)
        return self._sampler.state_dict(batches_done=steps_done)

    def load_state_dict(self, state: Mapping[str, Any], *, steps_done: int) -> None:
        """See `Batches.load_state_dict`.

        Raises:
            TrainError: the state was taken of other data, or with another global batch size.
        """
        then, passes = state.get("global_batch_size"), self._passes * self._sampler.world_size
        if isinstance(then, int) and then != self._sampler.global_batch_size:
            fitting, rest = divmod(then, passes)
            raise TrainError(
                f"the checkpoint has a global batch of {then}, this run one of {self._sampler.global_batch_size}: "
                + (
                    f"use --batch-size {fitting}"
                    if rest == 0
                    else f"no --batch-size makes {then} of {passes} equal parts"
                )
                + f" with {self._passes} pass(es) a step on {self._sampler.world_size} process(es)"
            )
        try:
            self._sampler.load_state_dict(state)
        except (FastRecordError, TypeError, ValueError) as error:
            raise TrainError(str(error)) from error
        self._requests.steps_done = steps_done

    def close(self) -> None:
        """End the workers."""
        self._loader = None
