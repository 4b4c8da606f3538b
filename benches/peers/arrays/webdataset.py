"""webdataset: tar files, a shuffle buffer, and batches made in the workers, as documented.

By default a record is one member, the bytes of both patches. Variant `npy`: two .npy members, which
it decodes.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import DataLoader, default_collate

from benches.peers.arrays import Batch, Epochs, Options, splitter
from benches.support.pairs import Pairs

SHARDS = 16
MIXED = 1000  # records in the buffer of each worker


def version() -> str:
    """What is measured."""
    return f"webdataset {wds.__version__}, torch {torch.__version__.partition('+')[0]}"


def _folder(pairs: Pairs, words: frozenset[str]) -> Path:
    return pairs.path("-webdataset-npy" if "npy" in words else "-webdataset")


def prepare(pairs: Pairs, words: frozenset[str]) -> None:
    """Pack the pairs into `SHARDS` tar files."""
    folder = _folder(pairs, words)
    if folder.exists():
        return
    temporary = Path(f"{folder}.tmp")
    temporary.mkdir(exist_ok=True)
    arrays = pairs.arrays()
    for shard in range(SHARDS):
        with tarfile.open(temporary / f"{shard:03d}.tar", "w") as tar:
            for number in range(shard, pairs.count, SHARDS):
                pair = {name: array[number] for name, array in arrays.items()}
                for name, content in _members(pair, npy="npy" in words).items():
                    member = tarfile.TarInfo(f"{number:08d}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    temporary.rename(folder)


def _members(pair: dict[str, np.ndarray[Any, Any]], *, npy: bool) -> dict[str, bytes]:
    if not npy:
        return {"pair": b"".join(patch.tobytes() for patch in pair.values())}
    members = {}
    for name, patch in pair.items():
        file = io.BytesIO()
        np.save(file, patch)
        members[f"{name}.npy"] = file.getvalue()
    return members


def _decode(sample: dict[str, Any]) -> Batch:
    return {name: torch.from_numpy(sample[f"{name}.npy"]) for name in ("lr", "hr")}


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Shards in random order, each for one worker. The workers make the batches: each size has its own."""
    loaders: dict[int, DataLoader[Any]] = {}

    def batches(_: int, batch: int) -> Iterable[Batch]:
        if batch not in loaders:
            loaders[batch] = DataLoader(
                _dataset(pairs, options.words, batch),
                batch_size=None,
                num_workers=options.workers,
                persistent_workers=options.workers > 0,
                pin_memory=options.pinned,
            )
        return loaders[batch]

    return batches


def _dataset(pairs: Pairs, words: frozenset[str], batch: int) -> Any:
    urls = [str(path) for path in sorted(_folder(pairs, words).glob("*.tar"))]
    dataset = wds.WebDataset(urls, shardshuffle=SHARDS, workersplitter=wds.split_by_worker).shuffle(MIXED)
    if "npy" in words:
        dataset = dataset.decode().map(_decode)
    else:
        split = splitter(pairs)
        dataset = dataset.map(lambda sample: split(sample["pair"]))
    return dataset.batched(batch, collation_fn=default_collate)
