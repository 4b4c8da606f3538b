"""The same batch again and again: what training takes when loading takes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benches.peers.arrays import Batch, Epochs, Options
from benches.support.pairs import Pairs

LARGEST = 1024  # pairs of a batch


def version() -> str:
    """What is measured."""
    return f"torch {torch.__version__.partition('+')[0]}"


def prepare(pairs: Pairs, words: frozenset[str]) -> None:
    """Nothing to make beyond the pairs."""


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Batches of the first pairs."""

    first = {name: torch.from_numpy(array[:LARGEST].copy()) for name, array in pairs.arrays().items()}
    if options.pinned:
        first = {name: tensor.pin_memory() for name, tensor in first.items()}

    def batches(_: int, batch: int) -> Iterator[Batch]:
        same = {name: tensor[:batch] for name, tensor in first.items()}
        for start in range(0, pairs.count, batch):
            size = min(batch, pairs.count - start)
            yield same if size == batch else {name: tensor[:size] for name, tensor in same.items()}

    return batches
