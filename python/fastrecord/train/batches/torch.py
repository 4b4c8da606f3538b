"""`TorchBatches`: batches through a torch DataLoader.

Pillow decodes records in worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from fastrecord import FastRecordBatchSampler, FastRecordDataset, collate
from fastrecord.train.batches.base import Batch, Batches, derive_seed
from fastrecord.train.config import TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import ignore_launcher


def make_transform(config: TrainConfig, *, training: bool) -> Callable[[Any], torch.Tensor]:
    """Return the transform from a PIL image to a uint8 tensor (3, size, size)."""
    size = config.size_in(0)
    steps: list[nn.Module]
    if not training:
        size, resize = config.evaluation
        steps = [v2.Resize(resize), v2.CenterCrop(size)]
    elif config.augment == "none":
        steps = [v2.Resize(size), v2.CenterCrop(size)]
    else:
        steps = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
        between = v2.InterpolationMode.BILINEAR
        if config.augment == "trivialaugment":
            steps.append(v2.TrivialAugmentWide(interpolation=between))
        elif config.augment == "randaugment":
            steps.append(v2.RandAugment(interpolation=between))
    transform: Callable[[Any], torch.Tensor] = v2.Compose([*steps, v2.PILToTensor()])
    return transform


def default_workers(ranks: Ranks) -> int:
    """Return this process's cores divided by the number of local processes, at most 8."""
    return min(8, max(1, len(os.sched_getaffinity(0)) // ranks.local_world_size))


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to a worker: one batch, and the seed of its augmentation."""

    seed: int
    records: list[int]


class _Requests:
    """Splits each batch of the sampler (a step's share) into single passes; a batch_sampler."""

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
    """Answers requests: the augmentation of a batch depends on its seed only, not on the worker."""

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


def worker_loader(dataset: Dataset[Any], requests: Any, threads: int | None, ranks: Ranks) -> DataLoader[Any]:
    """Return a DataLoader whose workers outlive an epoch; only their trainer ends them.

    Args:
        dataset: Its `__getitems__` answers each request with a list of samples.
        requests: A batch sampler.
        threads: Worker processes; 0: none; None: `default_workers`.
        ranks: Determines whether a GPU receives the batches.
    """
    workers = default_workers(ranks) if threads is None else threads
    return DataLoader(
        dataset,
        batch_sampler=requests,
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=ranks.device.type == "cuda",
        worker_init_fn=ignore_launcher,
        # Its own generator: iterating does not use torch's global generator.
        generator=torch.Generator(),
    )


class TorchBatches(Batches):
    """Batches that the worker processes of a torch DataLoader read and decode with Pillow.

    Args:
        dataset: Gives (uint8 image, label).
        config: Batch size, accumulation, seed, number of workers.
        ranks: The processes that share each global batch.
        training: True: shuffled, in whole global batches (the last one filled up by wrapping
            around). False: in order, each record exactly once over all ranks.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks, *, training: bool) -> None:
        super().__init__(dataset, config, ranks, training=training)
        self._requests = _Requests(self._sampler, config.batch_size, (config.seed, ranks.rank))
        self._loader: DataLoader[Any] | None = worker_loader(_Seeded(dataset), self._requests, config.threads, ranks)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """See `Batches.epoch`."""
        if self._loader is None:
            raise ValueError("these batches are closed")
        self._sampler.set_epoch(epoch)
        self._requests.epoch = epoch
        self._requests.steps_done, self._steps_done = self._steps_done, 0
        yield from self._loader

    def close(self) -> None:
        """See `Batches.close`."""
        self._loader = None
