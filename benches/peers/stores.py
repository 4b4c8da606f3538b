"""A format of benches/contenders by a DataLoader, whose workers read each batch at once, decode and crop.

The variant is the format's module and class, such as `lmdb:Lmdb`.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benches.contenders import Source, Store
from benches.peers import Data, Epochs, Options
from benches.peers.crops import DECODER, crop, decode
from benches.peers.workers import data_loader


def version(variant: str) -> str:
    """What is measured."""
    return f"{_kind(variant).version()}, {DECODER}"


def _kind(variant: str) -> type[Store]:
    module, _, name = variant.partition(":")
    kind: type[Store] = getattr(importlib.import_module(f"benches.contenders.{module}"), name)
    return kind


def _store(data: Data, variant: str) -> Store:
    kind = _kind(variant)
    return kind(data.root / f"store{kind.suffix}", Source(data.root, data.records))


def prepare(data: Data, variant: str) -> None:
    """Pack the same bytes."""
    store = _store(data, variant)
    if not store.path.exists():
        try:
            store.write()
        except BaseException:
            _remove(store.path)
            raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Images(Dataset[Any]):
    """Images and labels; each worker opens the file for itself."""

    def __init__(self, store: Store) -> None:
        self._store, self._is_open = store, False

    def __len__(self) -> int:
        """The number of records."""
        return self._store.source.records

    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Read the records of a batch at once."""
        if not self._is_open:
            self._store.open()
            self._is_open = True
        payloads, labels = self._store.read(np.array(rows))
        return [(crop(decode(payload)), int(label)) for payload, label in zip(payloads, labels, strict=True)]


def epochs(data: Data, options: Options) -> Epochs:
    """A DataLoader, workers kept."""
    return data_loader(Images(_store(data, options.variant)), options)
