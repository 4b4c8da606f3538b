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

from benches.peers import Data, Options
from benches.peers.arrays import FIELDS, Batch, Epochs, data_loader, pairs, words


def version() -> str:
    """What is measured."""
    return f"h5py {h5py.version.version}, HDF5 {h5py.version.hdf5_version}, torch {torch.__version__.partition('+')[0]}"


def _layout(variant: str) -> str:
    return next((word for word in ("chunked", "lzf") if word in words(variant)), "contiguous")


def _file(data: Data, variant: str) -> Path:
    return data.root / f"pairs-{data.records}.{_layout(variant)}.h5"


def prepare(data: Data, variant: str) -> None:
    """Write the pairs."""
    path = _file(data, variant)
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    layout = _layout(variant)
    with h5py.File(temporary, "w", libver="latest") as file:
        for name, array in pairs(data).arrays().items():
            options: dict[str, Any] = {} if layout == "contiguous" else {"chunks": (1, *FIELDS[name])}
            if layout == "lzf":
                options["compression"] = "lzf"
            file.create_dataset(name, data=array, **options)
    temporary.rename(path)


class Patches(Dataset[Batch]):
    """Rows of a file, which is opened at the first read."""

    def __init__(self, path: Path, records: int) -> None:
        """Store the path."""
        self.path = path
        self.records = records
        self._datasets: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Number of pairs."""
        return self.records

    def __getitem__(self, index: int) -> Batch:
        """A pair."""
        if self._datasets is None:
            file = h5py.File(self.path, "r", rdcc_nbytes=0)
            self._datasets = {name: file[name] for name in FIELDS}
        return {name: torch.from_numpy(dataset[index]) for name, dataset in self._datasets.items()}


def epochs(data: Data, options: Options) -> Epochs:
    """Return a DataLoader."""
    return data_loader(Patches(_file(data, options.variant), data.records), options)
