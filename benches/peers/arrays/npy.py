"""Two .npy files, mapped by numpy, indexed in random order.

By default it reads one record at a time, collated by a DataLoader. Variant `batches`: a whole batch
by one index, numpy's fastest way.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from benches.peers.arrays import Batch, Epochs, Options, data_loader
from benches.support.pairs import Pairs


def version() -> str:
    """What is measured."""
    return f"numpy {np.__version__}, torch {torch.__version__.partition('+')[0]}"


def prepare(pairs: Pairs, _: frozenset[str]) -> None:
    """Nothing to make beyond the pairs."""


class Patches(Dataset[Batch]):
    """Both files, mapped once: workers inherit the mapping."""

    def __init__(self, pairs: Pairs) -> None:
        """Map both files; mode "c" (copy on write) lets torch wrap records without a copy."""
        self.arrays = {name: np.asarray(np.load(path, mmap_mode="c")) for name, path in pairs.files.items()}

    def __getitem__(self, index: int | list[int]) -> Batch:
        """A pair, or several at once."""
        return {name: torch.from_numpy(array[index]) for name, array in self.arrays.items()}


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Return a DataLoader."""
    return data_loader(Patches(pairs), pairs.count, options, whole="batches" in options.words)
