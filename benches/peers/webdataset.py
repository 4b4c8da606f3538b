"""webdataset: a tar file per worker; they decode and crop."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import torch
import webdataset as wds
from torch.utils.data import DataLoader

from benches.peers import Data, Epochs, Options
from benches.peers.crops import crop, decode

SHARDS = 16


def version(_variant: str) -> str:
    """What is measured."""
    return f"webdataset {wds.__version__}"


def prepare(data: Data, _variant: str) -> None:
    """Pack the same bytes into `SHARDS` tar files."""
    folder = data.root / "webdataset"
    if folder.exists():
        return
    temporary = Path(f"{folder}.tmp")
    temporary.mkdir(exist_ok=True)
    files = data.files()
    for shard in range(SHARDS):
        with tarfile.open(temporary / f"{shard:03d}.tar", "w") as tar:
            for label in range(shard, len(files), SHARDS):
                tar.add(files[label], f"{label:08d}.jpg")
                member = tarfile.TarInfo(f"{label:08d}.cls")
                text = str(label).encode()
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    temporary.rename(folder)


def epochs(data: Data, options: Options) -> Epochs:
    """Shards in random order, a shuffle buffer for records, and batches made in the workers."""

    def image_and_label(sample: tuple[bytes, bytes]) -> tuple[torch.Tensor, int]:
        image, label = sample
        return crop(decode(image)), int(label)

    urls = [str(path) for path in sorted((data.root / "webdataset").glob("*.tar"))]
    dataset = (
        wds.WebDataset(urls, shardshuffle=SHARDS, workersplitter=wds.split_by_worker)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map(image_and_label)
        .batched(options.batch)
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=options.threads, persistent_workers=True)
    return lambda _: loader
