"""torch's DataLoader, as several modules use it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benches.peers import Epochs, Options


def data_loader(dataset: Dataset[Any], options: Options, *, persistent: bool = True) -> Epochs:
    """Return a DataLoader with as many workers as threads; several ranks share the records."""
    sampler: DistributedSampler[Any] | None = None
    if options.ranks > 1:
        sampler = DistributedSampler(dataset, options.ranks, options.rank)
    loader = DataLoader(
        dataset,
        options.batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=options.threads,
        persistent_workers=persistent,
    )

    def batches(number: int) -> DataLoader[Any]:
        if sampler is not None:
            sampler.set_epoch(number)
        return loader

    return batches
