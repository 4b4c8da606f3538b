"""LMDB: key = record number in decimal digits, value = both patches, read by numpy's frombuffer.

Variant `lz4`: the values are compressed in lz4's block format. By default they are uncompressed,
and the collated tensors are views of the mapping. Each worker opens the environment itself, as the
documentation recommends: without locks, read-ahead and clearing of memory. One transaction stays
open.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import lz4.block
import torch
from torch.utils.data import Dataset

from benches.peers import Data, Options
from benches.peers.arrays import LENGTHS, Batch, Epochs, data_loader, pairs, split, words

AT_ONCE = 1000  # records per transaction


def version() -> str:
    """What is measured."""
    return f"lmdb {lmdb.__version__}, lz4 {lz4.version.version}, torch {torch.__version__.partition('+')[0]}"


def _file(data: Data, variant: str) -> Path:
    return data.root / f"pairs-{data.records}{'.lz4' if 'lz4' in words(variant) else ''}.lmdb"


def prepare(data: Data, variant: str) -> None:
    """Write the pairs; the size of the map must be estimated in advance."""
    path = _file(data, variant)
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    temporary.unlink(missing_ok=True)
    arrays = pairs(data).arrays()
    compress = lz4.block.compress if "lz4" in words(variant) else bytes
    guess = 2 * data.records * (sum(LENGTHS.values()) + 4096) + (1 << 24)
    with lmdb.open(str(temporary), map_size=guess, subdir=False, lock=False) as environment:
        for start in range(0, data.records, AT_ONCE):
            with environment.begin(write=True) as transaction:
                for number in range(start, min(start + AT_ONCE, data.records)):
                    value = arrays["lr"][number].tobytes() + arrays["hr"][number].tobytes()
                    transaction.put(str(number).encode(), compress(value))
        environment.sync(True)
    temporary.rename(path)


class Patches(Dataset[Batch]):
    """Records of an environment, which is opened at the first read."""

    def __init__(self, path: Path, records: int, *, lz4: bool) -> None:
        """Store the path."""
        self.path = str(path)
        self.records = records
        self.lz4 = lz4
        self._transaction: lmdb.Transaction | None = None

    def __len__(self) -> int:
        """Number of pairs."""
        return self.records

    def __getitem__(self, index: int) -> Batch:
        """A pair."""
        if self._transaction is None:
            environment = lmdb.open(
                self.path, subdir=False, readonly=True, lock=False, readahead=False, meminit=False, create=False
            )
            self._transaction = environment.begin(buffers=True)
        value = self._transaction.get(str(index).encode())
        return split(lz4.block.decompress(value, return_bytearray=True) if self.lz4 else value)


def epochs(data: Data, options: Options) -> Epochs:
    """Return a DataLoader."""
    patches = Patches(_file(data, options.variant), data.records, lz4="lz4" in words(options.variant))
    return data_loader(patches, options)
