"""PNG files, two a pair, in a folder each, read by Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image
from torch.utils.data import Dataset

from benches.peers.arrays import Batch, Epochs, Options, data_loader
from benches.support.pairs import Pairs


def version() -> str:
    """What is measured."""
    return f"Pillow {PIL.__version__}, torch {torch.__version__.partition('+')[0]}"


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / name / f"{number:08d}.png"


def prepare(pairs: Pairs, _: frozenset[str]) -> None:
    """Write the files."""
    folder = pairs.path("-png")
    if folder.exists():
        return
    temporary = folder.with_suffix(".tmp")
    for name, array in pairs.arrays().items():
        (temporary / name).mkdir(parents=True, exist_ok=True)
        for number, patch in enumerate(array):
            Image.fromarray(np.asarray(patch)).save(_file(temporary, name, number))
    temporary.rename(folder)


class Patches(Dataset[Batch]):
    """The files."""

    def __init__(self, pairs: Pairs) -> None:
        self.folder, self.names = pairs.path("-png"), list(pairs.shapes)

    def __getitem__(self, index: int) -> Batch:
        """A pair."""
        return {name: self._read(name, index) for name in self.names}

    def _read(self, name: str, index: int) -> torch.Tensor:
        with Image.open(_file(self.folder, name, index)) as image:
            return torch.from_numpy(np.array(image))


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Return a DataLoader."""
    return data_loader(Patches(pairs), pairs.count, options)
