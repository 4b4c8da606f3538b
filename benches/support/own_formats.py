"""Our side of benches/bench_formats.py: each function runs in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import fastrecord as fr
from benches.support.libraries import sync, timed


def pack(root: str, out: str) -> float:
    """Pack a folder of images; return the seconds."""
    return timed(fr.pack_folder, root, out)


def import_(source: str, out: str, name: str, records: int) -> float:
    """Import a source; return the seconds.

    Raises:
        ValueError: another number of records came in.
    """
    found: list[Any] = []
    seconds = timed(lambda: found.append(fr.import_records(source, out, name)))
    if found[0].records != records:
        raise ValueError(f"{source}: {found[0].records} records, not {records}")
    return seconds


def export(path: str, out: str, name: str) -> float:
    """Export a file; return the seconds."""

    def run() -> None:
        fr.export_records(path, out, name, drop=["key"] if name == "recordio" else [])
        sync(out)

    return timed(run)


def pack_arrays(out: str, kind: str, count: int) -> float:
    """Pack arrays like CIFAR-10's, as items of some kind; return the seconds."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = np.arange(count) % 10
    items: Any
    if kind == "torch":
        import torch
        from torch.utils.data import TensorDataset

        items = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    elif kind == "dicts":
        items = [{"image": a, "label": b} for a, b in zip(pixels, labels.tolist(), strict=True)]
    else:
        items = list(zip(pixels, labels.tolist(), strict=True))
    return timed(fr.pack_dataset, items, out)


def peak(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the most anonymous memory of this process during a call, in bytes."""
    ended, highest = threading.Event(), 0

    def watch() -> None:
        nonlocal highest
        while not ended.wait(0.005):
            highest = max(highest, *anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function(*arguments)
    finally:
        ended.set()
        watcher.join()
    return highest


def anonymous() -> Iterator[int]:
    """Yield the bytes of memory that is not a file's, which the kernel cannot take back."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("RssAnon"):
                yield int(line.split()[1]) * 1024
