"""Shared code of the modules of this folder: loaders of patch pairs for bench_arrays_peers.py.

A module has `prepare(data, variant)`, which makes the loader's own files from the pairs if they do
not exist, and `epochs(data, options)`, which returns a function. It maps the number of an epoch to
an iterable of {"lr": uint8 (B, 32, 32, 3), "hr": uint8 (B, 128, 128, 3)}: all pairs once, in random
order. A variant consists of words joined by +. Several modules know `no-workers`, which reads in
the training process, and `fresh`, which starts new workers for each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from benches.peers import Data, Options
from benches.support.pairs import Pairs, make_pairs

FIELDS = {"lr": (32, 32, 3), "hr": (128, 128, 3)}
LENGTHS = {name: int(np.prod(shape)) for name, shape in FIELDS.items()}
HR_UNIT = 255 * LENGTHS["lr"] + 1  # more than the largest sum of the small patch's bytes

Batch = dict[str, torch.Tensor]
Epochs = Callable[[int], Iterable[Batch]]


def pairs(data: Data) -> Pairs:
    """The pairs that all contenders' files are made from."""
    return make_pairs(data.root, data.records)


def words(variant: str) -> set[str]:
    """The words of a variant."""
    return set(variant.split("+")) - {""}


def data_loader(dataset: Dataset[Any], options: Options, **arguments: Any) -> Epochs:
    """torch's DataLoader over a data set: as many workers as threads, persistent unless stated.

    Args:
        dataset: What it loads from.
        options: How many workers, and whether they stay.
        arguments: Further arguments of DataLoader; they replace `batch_size` and `shuffle` if they
        define the batches.
    """
    said = words(options.variant)
    workers = 0 if "no-workers" in said else options.threads
    if not workers:
        torch.set_num_threads(1)  # as DataLoader does in workers: threads slow down so small a copy
    loader: DataLoader[Any] = DataLoader(
        dataset,
        num_workers=workers,
        persistent_workers=workers > 0 and "fresh" not in said,
        **(arguments or {"batch_size": options.batch, "shuffle": True}),
    )
    return lambda _: loader


def split(pair: Any) -> Batch:
    """Split a pair stored as one run of bytes into its two patches, as views."""
    values = torch.from_numpy(np.frombuffer(pair, np.uint8))
    border = LENGTHS["lr"]
    return {"lr": values[:border].view(FIELDS["lr"]), "hr": values[border:].view(FIELDS["hr"])}


def run(epochs: Epochs, number: int) -> int:
    """Consume all batches of an epoch; return the number of pairs."""
    records = 0
    for batch in epochs(number):
        records += len(batch["hr"])
    return records


def _sums(batch: Batch) -> NDArray[np.int64]:
    """A number that identifies each pair: computed from the sums of its two patches."""
    lr, hr = (batch[name].flatten(1).sum(1, dtype=torch.int64) for name in FIELDS)
    found: NDArray[np.int64] = (hr * HR_UNIT + lr).numpy()
    return found


def check(epochs: Epochs, number: int, data: Data, batch_size: int) -> dict[str, Any]:
    """Consume all batches of an epoch and check them.

    Raises:
        ValueError: A pair is missing or repeated, patches of two pairs are mixed, the order is the
        file's order, or a batch has a wrong form.
    """
    seen = []
    for batch in epochs(number):
        count = len(batch["hr"])
        for name, shape in FIELDS.items():
            field = batch[name]
            if field.dtype != torch.uint8 or field.shape != (count, *shape):
                raise ValueError(f"{name}: a batch of {field.dtype} {tuple(field.shape)} with {count} pairs")
        if not 0 < count <= batch_size:
            raise ValueError(f"a batch of {count} pairs, not of {batch_size}")
        seen.append(_sums(batch))
    came = np.concatenate(seen)
    arrays = pairs(data).arrays()
    parts = range(0, data.records, 1000)
    stored = np.concatenate(
        [_sums({name: torch.tensor(array[at : at + 1000]) for name, array in arrays.items()}) for at in parts]
    )
    if not np.array_equal(np.sort(came), np.sort(stored)):
        raise ValueError(f"{len(came)} pairs came of {data.records}, and they are not each of those stored once")
    if np.array_equal(came, stored):
        raise ValueError("the pairs came in the order of the file")
    # Each worker that makes its own batches may have a smaller last one.
    if len(seen) > -(-data.records // batch_size) + 1:
        raise ValueError(f"{len(seen)} batches of {data.records} pairs, {batch_size} in each")
    hr, lr = np.divmod(came, HR_UNIT)
    return {"records": len(came), "mean": float(hr.sum() + lr.sum()) / (len(came) * sum(LENGTHS.values()))}
