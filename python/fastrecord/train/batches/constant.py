"""`ConstantBatches`: constant batches instead of data, through one more layer at a time."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fastrecord import FastRecordDataset
from fastrecord.train.batches.base import Batch, Batches, derive_seed
from fastrecord.train.batches.torch import worker_loader
from fastrecord.train.config import DataKind, TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.labels import class_names


class ConstantBatches(Batches):
    """The same batch of noise repeatedly, as often as the data set has batches.

    `config.data` selects the layers. "gpu": the batch is already on the device. "cpu": it is on the
    host (pinned, if the device is a GPU), and is copied for every pass. "dataset": worker processes
    of a torch DataLoader deliver each image.

    Args:
        dataset: Gives the number of records and of classes. No record is read.
        config: Batch size, accumulation, image size, seed, number of workers.
        ranks: The processes that share each global batch.
    """

    def __init__(self, dataset: FastRecordDataset, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(dataset, config, ranks, training=True)
        self._kind: DataKind = config.data
        self._cuda = ranks.device.type == "cuda"
        generator = torch.Generator().manual_seed(derive_seed(config.seed, ranks.rank))
        size = config.sizes[-1]
        shape = (config.batch_size, 3, size, size)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, len(class_names(dataset)), (config.batch_size,), generator=generator)
        self._running: Generator[Batch] | None = None
        self._loader: DataLoader[Any] | None = None
        if self._kind == "dataset":
            self._requests = _Requests(config.batch_size)
            self._loader = worker_loader(_Constant(images, labels), self._requests, config.threads, ranks)
        # The memory format of the native loader.
        images = images.contiguous(memory_format=torch.channels_last)
        if self._kind == "gpu":
            images, labels = images.to(ranks.device), labels.to(ranks.device)
        elif self._cuda:
            images, labels = images.pin_memory(), labels.pin_memory()
        self._batch = images, labels

    def epoch(self, epoch: int) -> Iterator[Batch]:  # noqa: ARG002  # all epochs are alike
        """See `Batches.epoch`."""
        self._stop()
        count = (self._steps - self._steps_done) * self._passes
        self._steps_done = 0
        self._running = self._draw(count)
        return self._running

    def _draw(self, count: int) -> Generator[Batch]:
        if self._loader is not None:
            self._requests.count = count
            yield from self._loader
            return
        yield from map(self._copy, itertools.repeat(self._batch, count))

    def _copy(self, batch: Batch) -> Batch:
        """Copy the batch if the learner does not, so that this rung always includes a copy."""
        return batch if self._kind == "gpu" or self._cuda else (batch[0].clone(), batch[1].clone())

    def _stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def close(self) -> None:
        """See `Batches.close`."""
        self._stop()
        self._loader = None


class _Requests:
    """Requests the whole constant batch, `count` times; a DataLoader's batch_sampler."""

    def __init__(self, batch_size: int) -> None:
        self.count = 0
        self._rows = list(range(batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.repeat(self._rows, self.count)


class _Constant(Dataset[Any]):
    """Samples that cost nothing to create: only the DataLoader's own work remains."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._samples = list(zip(images, labels.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, row: int) -> Any:
        return self._samples[row]

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self._samples[row] for row in rows]
