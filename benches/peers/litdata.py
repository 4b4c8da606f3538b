"""litdata: its own chunks, read by its StreamingDataset; workers decode and crop."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import torch

from benches.peers import Data, Epochs, Options
from benches.peers.crops import crop, decode


def version(_variant: str) -> str:
    """What is measured."""
    return f"litdata {litdata.__version__}"


def _sample(label: int, files: list[Path]) -> dict[str, Any]:
    return {"image": files[label].read_bytes(), "label": label}


def prepare(data: Data, _variant: str) -> None:
    """Pack the same bytes, chunks of 16 MB."""
    folder = data.root / "litdata"
    if folder.exists():
        return
    temporary = Path(f"{folder}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    files = data.files()
    litdata.optimize(
        partial(_sample, files=files),
        list(range(len(files))),
        output_dir=str(temporary),
        num_workers=1,
        chunk_bytes="16MB",
        verbose=False,
    )
    temporary.rename(folder)


class Images(litdata.StreamingDataset):  # type: ignore[misc]  # it comes without types
    """Decodes what the chunks hold."""

    def __init__(self, folder: Path) -> None:
        """Open it, shuffled."""
        super().__init__(str(folder), shuffle=True, drop_last=False)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        """Image and label."""
        record = super().__getitem__(index)
        return crop(decode(record["image"])), record["label"]


def epochs(data: Data, options: Options) -> Epochs:
    """Its own loader, workers kept."""
    loader = litdata.StreamingDataLoader(
        Images(data.root / "litdata"), batch_size=options.batch, num_workers=options.threads, persistent_workers=True
    )
    return lambda _: loader
