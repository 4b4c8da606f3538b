"""What the modules `arrays_*` share: loaders of pairs of small patches, which benches/bench_arrays_peers.py compares.

A module has `prepare(data, variant)`, which makes the loader's own files from the pairs if they are not there, and
`epochs(data, options)`, which returns a function: number of the epoch -> iterable of {"lr": uint8 (B, 32, 32, 3), "hr":
uint8 (B, 128, 128, 3)}, all pairs once, in random order. A variant is words with a + between them; those that several
modules know: `no-workers` reads in the process that trains, `fresh` workers are started for each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from benches.pairs import Pairs, make_pairs
from benches.peers import Data, Options

FIELDS = {"lr": (32, 32, 3), "hr": (128, 128, 3)}
LENGTHS = {name: int(np.prod(shape)) for name, shape in FIELDS.items()}
HR_UNIT = 255 * LENGTHS["lr"] + 1  # above what the bytes of the small patch can sum up to

Batch = dict[str, torch.Tensor]
Epochs = Callable[[int], Iterable[Batch]]


def pairs(data: Data) -> Pairs:
    """The pairs that all contenders' files are made of."""
    return make_pairs(data.root, data.records)


def words(variant: str) -> set[str]:
    """What a variant is made of."""
    return set(variant.split("+")) - {""}


def data_loader(dataset: Dataset[Any], options: Options, **arguments: Any) -> Epochs:
    """torch's DataLoader over a data set, as many workers as threads, kept from epoch to epoch if nothing else is said.

    Args:
        dataset: What it loads from.
        options: How many workers, and whether they stay.
        arguments: Further ones of the DataLoader's, instead of `batch_size` and `shuffle` if they say how to batch.
    """
    said = words(options.variant)
    workers = 0 if "no-workers" in said else options.threads
    if not workers:
        torch.set_num_threads(1)  # as DataLoader does in workers: so small a copy takes longer when threads share it
    loader: DataLoader[Any] = DataLoader(
        dataset,
        num_workers=workers,
        persistent_workers=workers > 0 and "fresh" not in said,
        **(arguments or {"batch_size": options.batch, "shuffle": True}),
    )
    return lambda _: loader


def split(pair: Any) -> Batch:
    """The two patches of a pair that is stored as one run of bytes, as views of it."""
    values = torch.from_numpy(np.frombuffer(pair, np.uint8))
    border = LENGTHS["lr"]
    return {"lr": values[:border].view(FIELDS["lr"]), "hr": values[border:].view(FIELDS["hr"])}


def run(epochs: Epochs, number: int) -> int:
    """Take all batches of an epoch and drop them; give the number of pairs that came."""
    records = 0
    for batch in epochs(number):
        records += len(batch["hr"])
    return records


def _sums(batch: Batch) -> NDArray[np.int64]:
    """A number for each pair that tells it from others: the sums of its two patches."""
    lr, hr = (batch[name].flatten(1).sum(1, dtype=torch.int64) for name in FIELDS)
    found: NDArray[np.int64] = (hr * HR_UNIT + lr).numpy()
    return found


def check(epochs: Epochs, number: int, data: Data, batch_size: int) -> dict[str, Any]:
    """Take all batches of an epoch and look at them.

    Raises:
        ValueError: A pair is missing or came twice, patches of two pairs came together, the order is the file's, or a
            batch is not what it is to be.
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
    # Workers that batch what they have may each have a rest.
    if len(seen) > -(-data.records // batch_size) + 1:
        raise ValueError(f"{len(seen)} batches of {data.records} pairs, {batch_size} in each")
    hr, lr = np.divmod(came, HR_UNIT)
    return {"records": len(came), "mean": float(hr.sum() + lr.sum()) / (len(came) * sum(LENGTHS.values()))}
