"""fastrecord's FastRecordLoader of arrays; variant `lz4`: both fields are compressed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import fastrecord as fr
from benches.peers import Data, Options
from benches.peers.arrays import FIELDS, Batch, Epochs, pairs, words


def version() -> str:
    """What is measured."""
    return f"fastrecord {fr.__version__}"


def _file(data: Data, variant: str) -> Path:
    return data.root / f"pairs-{data.records}{'.lz4' if 'lz4' in words(variant) else ''}.frec"


def prepare(data: Data, variant: str) -> None:
    """Write the pairs."""
    path = _file(data, variant)
    if path.exists():
        return
    arrays = pairs(data).arrays()
    compression = "lz4" if "lz4" in words(variant) else None
    schema = fr.Schema({name: fr.array("uint8", shape, compression=compression) for name, shape in FIELDS.items()})
    with fr.Writer(path, schema) as writer:
        for number in range(data.records):
            writer.append({name: array[number] for name, array in arrays.items()})


def epochs(data: Data, options: Options) -> Epochs:
    """A loader in this process."""
    dataset = fr.FastRecordDataset(_file(data, options.variant))
    loader = fr.FastRecordLoader(dataset, options.batch, shuffle=True, threads=options.threads)

    def batches(number: int) -> Iterable[Batch]:
        loader.set_epoch(number)
        return loader

    return batches
