"""fastrecord's FastRecordLoader of arrays; variant `lz4`: payloads are compressed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import fastrecord as fr
from benches.peers.arrays import Batch, Epochs, Options
from benches.support.pairs import Pairs


def version() -> str:
    """What is measured."""
    return f"fastrecord {fr.__version__}"


def path_of(pairs: Pairs, words: frozenset[str] = frozenset()) -> Path:
    """The file of the pairs."""
    return pairs.path(".lz4.frec" if "lz4" in words else ".frec")


def prepare(pairs: Pairs, words: frozenset[str] = frozenset()) -> None:
    """Write the pairs."""
    path = path_of(pairs, words)
    if path.exists():
        return
    arrays = pairs.arrays()
    # Arrays of up to 64 bytes lie in a column and are not compressed.
    ways = {name: "lz4" if "lz4" in words and length > 64 else None for name, length in pairs.lengths.items()}
    fields = {name: fr.array("uint8", shape, compression=ways[name]) for name, shape in pairs.shapes.items()}
    with fr.Writer(path, fr.Schema(fields)) as writer:
        for number in range(pairs.count):
            writer.append({name: array[number] for name, array in arrays.items()})


def epochs(pairs: Pairs, options: Options) -> Epochs:
    """Loaders in this process; without workers, one with one thread."""
    dataset = fr.FastRecordDataset(path_of(pairs, options.words))
    threads, delivery = max(1, options.workers), fr.Delivery(pin_memory=options.pinned)
    loaders: dict[int, fr.FastRecordLoader] = {}

    def batches(number: int, batch: int) -> Iterable[Batch]:
        if batch not in loaders:
            loaders[batch] = fr.FastRecordLoader(dataset, batch, shuffle=True, threads=threads, delivery=delivery)
        loaders[batch].set_epoch(number)
        return loaders[batch]

    return batches
