"""webdataset: tar files, a shuffle buffer, and batches made in the workers, as documented.

By default a record is one member, the bytes of both patches. Variant `npy`: two .npy members, which
it decodes.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import DataLoader, default_collate

from benches.peers import Data, Options
from benches.peers.arrays import Batch, Epochs, pairs, split, words

SHARDS = 16
MIXED = 1000  # records in the buffer of each worker


def version() -> str:
    """What is measured."""
    return f"webdataset {wds.__version__}, torch {torch.__version__.partition('+')[0]}"


def _folder(data: Data, variant: str) -> Path:
    return data.root / f"pairs-{data.records}{'-npy' if 'npy' in words(variant) else ''}-webdataset"


def prepare(data: Data, variant: str) -> None:
    """Pack the pairs into `SHARDS` tar files."""
    folder = _folder(data, variant)
    if folder.exists():
        return
    temporary = Path(f"{folder}.tmp")
    temporary.mkdir(exist_ok=True)
    arrays = pairs(data).arrays()
    for shard in range(SHARDS):
        with tarfile.open(temporary / f"{shard:03d}.tar", "w") as tar:
            for number in range(shard, data.records, SHARDS):
                pair = {name: array[number] for name, array in arrays.items()}
                for name, content in _members(pair, npy="npy" in words(variant)).items():
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


def epochs(data: Data, options: Options) -> Epochs:
    """Shards in random order, each for one worker."""
    urls = [str(path) for path in sorted(_folder(data, options.variant).glob("*.tar"))]
    dataset = wds.WebDataset(urls, shardshuffle=SHARDS, workersplitter=wds.split_by_worker).shuffle(MIXED)
    if "npy" in words(options.variant):
        dataset = dataset.decode().map(_decode)
    else:
        dataset = dataset.map(lambda sample: split(sample["pair"]))
    dataset = dataset.batched(options.batch, collation_fn=default_collate)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=None, num_workers=options.threads, persistent_workers="fresh" not in words(options.variant)
    )
    return lambda _: loader
