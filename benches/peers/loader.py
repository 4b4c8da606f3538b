"""`Loader`: one of this folder's modules as a contender of benches/harness."""

from __future__ import annotations

import importlib
import resource
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from benches.peers import SIZE, Batch, Data, Epochs, Options
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD

MEAN, STD = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)


class Loader:
    """A loader of images; see benches/peers/__init__.py.

    Args:
        module: A module of this folder, and after a colon its variant.
        root, records: The images, as in `Data`.
        threads: Threads, or worker processes.
        batch: Images in a batch.
        limit_bytes: If given, private memory that each of its processes may have (RLIMIT_DATA).
        rank, ranks: Of how many loaders that share an epoch it is which one.
    """

    def __init__(
        self,
        *,
        module: str,
        root: str,
        records: int,
        threads: int,
        batch: int,
        limit_bytes: int | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        name, _, variant = module.partition(":")
        self._module = importlib.import_module(f"benches.peers.{name}")
        self.version: str = self._module.version(variant)
        self._data = Data(Path(root), records)
        self._options = Options(threads, batch, variant, rank, ranks)
        self._epochs: Epochs | None = None
        self._begun: Iterator[Batch] | None = None
        torch.set_num_threads(threads)
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))

    def files(self) -> None:
        """Make its own files if they do not exist; the first rank does."""
        if self._options.rank == 0:
            self._module.prepare(self._data, self._options.variant)

    def first_batch(self) -> int:
        """Open the files, start an epoch, and wait for its first batch; return its images.

        `check` continues this epoch.
        """
        batches = iter(self._batches(0))
        first = next(batches)
        self._begun = chain([first], batches)
        return len(first[0])

    def check(self) -> dict[str, Any]:
        """Consume all batches of an epoch, and check them.

        Returns:
            The labels in the order that they came, and the mean of the pixels.

        Raises:
            ValueError: A batch has a wrong form.
        """
        batches, self._begun = self._begun or self._batches(0), None
        labels: list[int] = []
        total = 0.0
        for images, its_labels in batches:
            shape, count = tuple(images.shape), len(its_labels)
            if shape not in {(count, 3, SIZE, SIZE), (count, SIZE, SIZE, 3)}:
                raise ValueError(f"a batch of {images.dtype} {shape} with {count} labels")
            if images.dtype == torch.float32 and shape[1] == 3:
                mean = (255 * (images.mean((0, 2, 3)) * STD + MEAN)).mean().item()
            elif images.dtype == torch.uint8:
                mean = float(images.numpy().mean())  # torch would convert all of it first
            else:
                raise ValueError(f"a batch of {images.dtype} {shape}")
            left = self._data.records // self._options.ranks - len(labels)
            if count != min(self._options.batch, left):
                raise ValueError(f"a batch of {count}, {left} images before the end")
            labels += [int(label) for label in its_labels]
            total += mean * count
        return {"labels": labels, "mean": total / max(1, len(labels))}

    def epoch(self, number: int) -> int:
        """Consume all batches of an epoch; return the number of images.

        Raises:
            ValueError: It is not the number of the data.
        """
        images = 0
        for batch, labels in self._batches(number):
            images += len(batch)
            if len(labels) != len(batch):
                raise ValueError(f"{len(batch)} images, {len(labels)} labels")
        if images != self._data.records // self._options.ranks:
            raise ValueError(f"{images} images of {self._data.records} by {self._options.ranks} loaders")
        return images

    def _batches(self, number: int) -> Any:
        if self._epochs is None:
            self._epochs = self._module.epochs(self._data, self._options)
        return self._epochs(number)
