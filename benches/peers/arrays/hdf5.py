"""HDF5 by h5py: two data sets, a record per row; each worker opens the file itself.

HDF5 files cannot be shared between processes. By default rows are contiguous, as HDF5 stores
uncompressed data. Variant `chunked`: a chunk per record, without a chunk cache, which does not help
in random order. Variant `lzf`: the same, compressed by h5py's fast codec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import torch
from torch.utils.data import Dataset

from benches.peers.arrays import Batch, Epochs, Options, data_loader
from benches.support.pairs import Pairs


def version() -> str:
    """What is measured."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}, torch {torch.__version__.partition('+')[0]}"


def _layout(words: frozenset[str]) -> str:
    return next((word for word in ("chunked", "lzf") if word in words), "contiguous")


def _file(pairs: Pairs, words: frozenset[str]) -> Path:
    return pairs.path(f".{_layout(words)}.h5")


def prepare(pairs: Pairs, words: frozenset[str]) -> None:
    """Write the pairs."""
    path = _file(pairs, words)
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    layout = _layout(words)
    with h5py.File(temporary, "w", libver="latest") as file:
        for name, array in pairs.arrays().items():
            options: dict[str, Any] = {} if layout == "contiguous" else {"chunks": (1, *array.shape[1:])}
            if layout == "lzf":
                options["compression"] = "lzf"
            file.create_dataset(name, data=array, **options)
    temporary.rename(path)


class Patches(Dataset[Batch]):
    """Rows of a file, which is opened at the first read."""

    def __init__(self, path: Path, names: list[str]) -> None:
        """Store the path."""
        self.path, self.names = path, names
        self._datasets: dict[str, Any] | None = None

    def __getitem__(self, index: int) -> Batch:
        """A pair."""
        if self._datasets is None:
            file = h5py.File(self.path, "r", rdcc_nbytes=0)
            self._datasets = {name: file[name] for name in self.names}
        return {name: torch.from_numpy(dataset[index]) for name, dataset in self._datasets.items()}


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Return a DataLoader."""
    return data_loader(Patches(_file(pairs, options.words), list(pairs.shapes)), pairs.count, options)
