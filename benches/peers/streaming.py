"""mosaicml-streaming: its own shards, read by its data set; workers decode and crop."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import streaming
import torch
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benches.peers import Data, Epochs, Options
from benches.peers.crops import crop, decode


def version(_variant: str) -> str:
    """What is measured."""
    return f"mosaicml-streaming {streaming.__version__}"


def prepare(data: Data, _variant: str) -> None:
    """Pack the same bytes, shards of 16 MB."""
    folder = data.root / "streaming"
    if folder.exists():
        return
    temporary = Path(f"{folder}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    columns = {"image": "bytes", "label": "int"}
    with streaming.MDSWriter(out=str(temporary), columns=columns, size_limit=1 << 24) as writer:
        for label, path in enumerate(data.files()):
            writer.write({"image": path.read_bytes(), "label": label})
    temporary.rename(folder)


class Images(streaming.StreamingDataset):  # type: ignore[misc]  # it comes without types
    """Decodes what the shards hold."""

    def __init__(self, folder: Path, batch: int) -> None:
        """Open it, shuffled."""
        super().__init__(local=str(folder), shuffle=True, batch_size=batch)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        """Image and label."""
        record = super().__getitem__(index)
        return crop(decode(record["image"])), record["label"]


def epochs(data: Data, options: Options) -> Epochs:
    """A DataLoader, workers kept."""
    clean_stale_shared_memory()
    dataset = Images(data.root / "streaming", options.batch)
    loader: DataLoader[Any] = DataLoader(dataset, options.batch, num_workers=options.threads, persistent_workers=True)
    return lambda _: loader
