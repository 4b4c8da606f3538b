"""Two .npy files, mapped by numpy, indexed in random order.

By default it reads one record at a time, collated by a DataLoader's workers. Variant `batches`: a
whole batch by one index, numpy's fastest way; with `no-workers` it does not use a DataLoader.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, Dataset, RandomSampler

from benches.peers import Data, Options
from benches.peers.arrays import Batch, Epochs, data_loader, pairs, words


def version() -> str:
    """What is measured."""
    return f"numpy {np.__version__}, torch {torch.__version__.partition('+')[0]}"


def prepare(data: Data, _variant: str) -> None:
    """Nothing to make beyond the pairs."""
    pairs(data)


class Patches(Dataset[Batch]):
    """Both files, mapped once: workers inherit the mapping."""

    def __init__(self, data: Data) -> None:
        """Map both files; mode "c" (copy on write) lets torch wrap records without a copy."""
        found = pairs(data)
        self.arrays: dict[str, NDArray[np.uint8]] = {
            name: np.asarray(np.load(path, mmap_mode="c")) for name, path in (("lr", found.lr), ("hr", found.hr))
        }

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.arrays["lr"])

    def __getitem__(self, index: int | list[int] | NDArray[np.int64]) -> Batch:
        """A pair, or several at once."""
        return {name: torch.from_numpy(array[index]) for name, array in self.arrays.items()}


def epochs(data: Data, options: Options) -> Epochs:
    """Return a DataLoader or a loop."""
    patches = Patches(data)
    said = words(options.variant)
    if "batches" not in said:
        return data_loader(patches, options)
    if "no-workers" not in said:
        order = BatchSampler(RandomSampler(patches), options.batch, drop_last=False)
        return data_loader(patches, options, sampler=order, batch_size=None)

    def batches(number: int) -> Iterator[Batch]:
        order = np.random.default_rng(number).permutation(data.records)
        for start in range(0, data.records, options.batch):
            yield patches[order[start : start + options.batch]]

    return batches
