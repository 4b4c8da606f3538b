"""Loaders of pairs of patches: ours and its peers, each in a module here.

A module has `version()`, `prepare(pairs, words)`, which makes the loader's own files if they do not
exist, and `epochs(pairs, options)`. This returns a function of the number of an epoch and the size
of a batch; its result is an iterable of {"lr": uint8 (B, H, W, 3), "hr": uint8 (B, H, W, 3)}: all
pairs once, in random order. Words select a variant; `fresh` starts new workers for each epoch where
`data_loader` is used.

`contender` has the class that the harness starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benches.support.pairs import Pairs

Batch = dict[str, torch.Tensor]
Epochs = Callable[[int, int], Iterable[Batch]]


@dataclass(frozen=True)
class Options:
    """The settings of a loader.

    Attributes:
        words: The variant.
        workers: Worker processes, or threads; 0: loading and training take turns.
        pinned: Whether batches lie in pinned memory.
    """

    words: frozenset[str]
    workers: int
    pinned: bool = False


class Order(Sampler[list[int]]):
    """Batches of record numbers in random order, as BatchSampler(RandomSampler) makes them.

    Their size may change between epochs, so that the same workers serve all sizes.
    """

    def __init__(self, records: int) -> None:
        self.records, self.batch = records, 1

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.records).tolist()
        return (order[start : start + self.batch] for start in range(0, self.records, self.batch))

    def __len__(self) -> int:
        return -(-self.records // self.batch)


def data_loader(dataset: Dataset[Any], records: int, options: Options, *, whole: bool = False) -> Epochs:
    """torch's DataLoader; its workers stay from epoch to epoch unless the words say otherwise.

    Args:
        dataset: What it loads from.
        records: The number of pairs.
        options: The settings.
        whole: Give the data set all numbers of a batch at once.
    """
    order = Order(records)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        num_workers=options.workers,
        persistent_workers=options.workers > 0 and "fresh" not in options.words,
        pin_memory=options.pinned,
        **({"sampler": order, "batch_size": None} if whole else {"batch_sampler": order}),
    )

    def epochs(_: int, batch: int) -> Iterable[Batch]:
        order.batch = batch
        return loader

    return epochs


def splitter(pairs: Pairs) -> Callable[[Any], Batch]:
    """Return what splits a pair stored as one run of bytes into its two patches, as views."""
    (small, large), border = pairs.shapes.values(), pairs.lengths["lr"]

    def split(pair: Any) -> Batch:
        values = torch.from_numpy(np.frombuffer(pair, np.uint8))
        return {"lr": values[:border].view(small), "hr": values[border:].view(large)}

    return split
