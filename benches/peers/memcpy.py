"""Yardstick of raw records: a memcpy of a crop's bytes per record into a reused buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import fastrecord as fr
from benches.peers import SIZE, Batch, Data, Epochs, Options, ours
from benches.support.native import Gather


def version(_variant: str) -> str:
    """What is measured."""
    return "memcpy"


def prepare(data: Data, _variant: str) -> None:
    """Use the same file as our loader."""
    ours.prepare(data, "raw")


def epochs(data: Data, options: Options) -> Epochs:
    """Records in random order, each batch gathered by all threads."""
    gather = Gather(data.root)
    memory = np.memmap(data.root / "raw.frec", np.uint8, mode="r")
    with fr.Reader(data.root / "raw.frec") as reader:
        views = reader.read_batch(np.arange(data.records), ["image"])["image"]
        addresses = np.array([np.frombuffer(view, np.uint8).ctypes.data for view in views])
        first = bytes(views[0])
    # Addresses give the distances between payloads; the content of the first one gives its place in
    # the file.
    offsets = (addresses - addresses[0] + memory.tobytes().index(first)).astype(np.int64)
    out = np.empty((options.batch, SIZE, SIZE, 3), np.uint8)
    lengths = np.full(options.batch, SIZE * SIZE * 3, np.int64)

    def batches(number: int) -> Iterator[Batch]:
        order = np.random.default_rng(number).permutation(data.records)
        for start in range(0, data.records, options.batch):
            rows = order[start : start + options.batch]
            gather(offsets[rows], lengths[: len(rows)], out.reshape(-1), threads=options.threads, memory=memory)
            yield torch.from_numpy(out[: len(rows)]), torch.from_numpy(rows)

    return batches
