"""`Augmented`: one of this folder's modules as a contender of benches/harness."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from benches.peers import Data, Options
from benches.peers.augmented import Batch, Epochs
from fastrecord.transforms import IMAGENET_MEAN, IMAGENET_STD

MEAN, STD = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))


class Augmented:
    """A loader of all its recipes, one at a time.

    Args:
        module: A module of this folder, and after a colon its variant.
        root, records: The images, as in `Data`.
        threads: Threads, or worker processes.
        batch: Images in a batch.
    """

    def __init__(self, *, module: str, root: str, records: int, threads: int, batch: int) -> None:
        name, _, variant = module.partition(":")
        self._module = importlib.import_module(f"benches.peers.augmented.{name}")
        self.version: str = self._module.version(variant)
        self._data = Data(Path(root), records)
        self._options = Options(threads, batch, variant)
        self._loaders: dict[str, Epochs] = {}
        self._number = 0
        torch.set_num_threads(threads)

    def files(self, recipe: str) -> None:
        """Make its own files if they do not exist."""
        self._module.prepare(self._data, recipe)

    def check(self, recipe: str) -> dict[str, tuple[str, list[int], float]]:
        """Load an epoch.

        Returns:
            The type of each output, the shape of a record's value (channels first), and the mean; of
            images, in [0, 255].

        Raises:
            ValueError: a label is missing or repeated, or an output lacks records.
        """
        labels: list[int] = []
        found: dict[str, tuple[str, list[int], float]] = {}
        for batch in self._batches(recipe):
            own = [int(label) for label in batch["label"]]
            for name in batch:
                if name == "label" or name.endswith("_kept"):  # of boxes; only ours has it
                    continue
                values = torch.stack(batch[name]) if isinstance(batch[name], list) else batch[name]
                if len(values) != len(own):
                    raise ValueError(f"{name}: {len(values)} values, {len(own)} labels")
                kind, shown = str(values.dtype).removeprefix("torch."), _in_bytes(values)
                total = found[name][2] if name in found else 0.0
                share = len(own) / self._data.records
                found[name] = (kind, list(shown.shape[1:]), total + shown.double().mean().item() * share)
            labels += own
        if sorted(labels) != list(range(self._data.records)):
            raise ValueError(f"{len(labels)} images, {len(set(labels))} different ones, of {self._data.records}")
        return found

    def epoch(self, recipe: str, seconds: float = 0.0) -> int:
        """Load whole epochs, at least one, until they have taken some seconds; return the number of images.

        Raises:
            ValueError: an epoch lacks images.
        """
        end, images = time.perf_counter() + seconds, 0
        while True:
            came = sum(len(batch["label"]) for batch in self._batches(recipe))
            if came != self._data.records:
                raise ValueError(f"{came} images of {self._data.records}")
            images += came
            if time.perf_counter() >= end:
                return images

    def _batches(self, recipe: str) -> Iterable[Batch]:
        if recipe not in self._loaders:
            self._loaders.clear()  # two would prefetch at once
            self._loaders[recipe] = self._module.epochs(self._data, recipe, self._options)
        self._number += 1
        return self._loaders[recipe](self._number)


def _in_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return images channels first, and in [0, 255] if they are normalised; other values unchanged."""
    if values.ndim < 4:
        return values
    images = values if values.shape[-3] == 3 else values.movedim(-1, -3)
    return 255 * (images.float() * STD + MEAN) if images.is_floating_point() else images
