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

from benches.peers.arrays import Batch, Epochs, Options, data_loader, splitter
from benches.support.pairs import Pairs

AT_ONCE = 1000  # records per transaction


def version() -> str:
    """What is measured."""
    return f"lmdb {lmdb.__version__}, lz4 {lz4.version.version}, torch {torch.__version__.partition('+')[0]}"


def _file(pairs: Pairs, words: frozenset[str]) -> Path:
    return pairs.path(".lz4.lmdb" if "lz4" in words else ".lmdb")


def prepare(pairs: Pairs, words: frozenset[str]) -> None:
    """Write the pairs; the size of the map must be estimated in advance."""
    path = _file(pairs, words)
    if path.exists():
        return
    temporary = Path(f"{path}.tmp")
    temporary.unlink(missing_ok=True)
    arrays = pairs.arrays()
    compress = lz4.block.compress if "lz4" in words else bytes
    guess = 2 * pairs.count * (sum(pairs.lengths.values()) + 4096) + (1 << 24)
    with lmdb.open(str(temporary), map_size=guess, subdir=False, lock=False) as environment:
        for start in range(0, pairs.count, AT_ONCE):
            with environment.begin(write=True) as transaction:
                for number in range(start, min(start + AT_ONCE, pairs.count)):
                    value = arrays["lr"][number].tobytes() + arrays["hr"][number].tobytes()
                    transaction.put(str(number).encode(), compress(value))
        environment.sync(True)
    temporary.rename(path)


class Patches(Dataset[Batch]):
    """Records of an environment, which is opened at the first read."""

    def __init__(self, pairs: Pairs, words: frozenset[str]) -> None:
        """Store the path."""
        self.split, self.path, self.lz4 = splitter(pairs), str(_file(pairs, words)), "lz4" in words
        self._transaction: lmdb.Transaction | None = None

    def __getitem__(self, index: int) -> Batch:
        """A pair."""
        if self._transaction is None:
            environment = lmdb.open(
                self.path, subdir=False, readonly=True, lock=False, readahead=False, meminit=False, create=False
            )
            self._transaction = environment.begin(buffers=True)
        value = self._transaction.get(str(index).encode())
        return self.split(lz4.block.decompress(value, return_bytearray=True) if self.lz4 else value)


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Return a DataLoader."""
    return data_loader(Patches(pairs, options.words), pairs.count, options)
