"""Packed images of several kinds, and checks after an iteration, shared by the loader tests."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.transforms import BatchInfo, RandomHorizontalFlip, RandomResizedCrop
from tests.support.pictures import pixels, save

SCHEMA = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string(), "weight": "float64"})
CLASSES = ["ant", "bee", "cow"]
COUNT = 22  # in the fixture `photos`


def photo(number: int, kind: str = "JPEG") -> bytes:
    """Return an encoded image of seeded noise over gradients, 40 to 79 pixels wide and high."""
    width, height = np.random.default_rng(number).integers(40, 80, 2).tolist()
    return save(Image.fromarray(pixels(width, height, seed=number)), kind)


def write_payloads(
    path: Path, payloads: Sequence[bytes], classes: Sequence[str] = CLASSES, *, images: bool = True
) -> Path:
    """Pack payloads: record i has label i modulo the classes, key "<stem>/i" and weight i / 2.

    An image field refuses a payload without an image header; `images=False` uses a bytes field.
    """
    schema = SCHEMA if images else fr.Schema({**SCHEMA, "image": fr.bytes_()})
    with fr.Writer(path, schema, metadata={"classes": list(classes)}) as writer:
        for number, data in enumerate(payloads):
            label = number % len(classes)
            writer.append({"image": data, "label": label, "key": f"{path.stem}/{number}", "weight": number / 2})
    return path


def write_photos(path: Path, count: int, seed: int = 0) -> Path:
    """Pack `count` images by `photo`."""
    return write_payloads(path, [photo(seed + number) for number in range(count)])


def write_pairs(path: Path, pairs: Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8]]]) -> Path:
    """Pack lossless pairs of images: fields lr and hr."""
    with fr.Writer(path, fr.Schema({"lr": fr.image(), "hr": fr.image()})) as writer:
        for lr, hr in pairs:
            writer.append({"lr": save(Image.fromarray(lr), "PNG"), "hr": save(Image.fromarray(hr), "PNG")})
    return path


def make(data: Path | fr.FastRecordDataset, batch_size: int | None = 4, **options: Any) -> FastRecordLoader:
    """Return a loader of random 24 x 24 crops, half of them mirrored, with two threads."""
    fields = options.pop("fields", None)
    dataset = data if isinstance(data, fr.FastRecordDataset) else fr.FastRecordDataset(data, fields=fields)
    return loader_of(dataset, batch_size, **{"sample": [RandomResizedCrop(24), RandomHorizontalFlip()], **options})


def with_info(data: Path | fr.FastRecordDataset, batch_size: int = 4, **options: Any) -> list[tuple[Any, BatchInfo]]:
    """Return the batches of an epoch and their infos, whose views were used."""

    def both(batch: Any, info: BatchInfo) -> Any:
        _ = dict(info.views)
        return batch, info

    return list(make(data, batch_size, batch_transform=both, **options))


def loader_of(dataset: fr.FastRecordDataset, batch_size: int | None, **options: Any) -> FastRecordLoader:
    """Return a loader in order with two threads; its objects' options may be given by name.

    These are the options of Delivery, Decoding, Skip and, with a batch size, the batch sampler.
    """
    options = {"threads": 2, "shuffle": None if batch_size is None else False, **options}
    if own := _taken(options, *(field.name for field in fields(fr.Delivery))):
        options["delivery"] = fr.Delivery(**own)
    if own := _taken(options, *(field.name for field in fields(fr.Decoding))):
        dataset = copy.copy(dataset)
        dataset.decode = fr.Decoding(**own)
    if "limit" in options:
        on_error = options["on_error"]
        options["on_error"] = fr.Skip(limit=options.pop("limit"), handler=on_error if callable(on_error) else None)
    if batch_size is not None and (own := _taken(options, "seed", "drop_last")):
        options["batch_sampler"] = fr.FastRecordBatchSampler(dataset, batch_size, shuffle=options.pop("shuffle"), **own)
        batch_size = None
    return FastRecordLoader(dataset, batch_size, **options)


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}


def epoch(loader: FastRecordLoader) -> torch.Tensor:
    """Return all images of an epoch, (N, 3, H, W)."""
    return torch.cat([batch["image"] if isinstance(batch, dict) else batch[0] for batch in loader])


def wait_for_load_threads(count: int) -> None:
    """Wait for this many batch threads: a new thread gets its name when it first runs."""
    end = time.monotonic() + 60
    while len(names := load_threads()) != count:
        assert time.monotonic() < end, f"{count} threads are waited for, there are {names}"


def load_threads() -> list[str]:
    """Return the names of this process's batch threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [name for name in names if name.startswith("frec-load")]


def python_calls(loader: Any, *, events: Sequence[str] = ("call", "c_call")) -> int:
    """Count calls of Python functions, and from Python to C, in all threads for an epoch, after first-use caches."""
    list(loader)
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in events

    # What else is collected meanwhile has calls of its own.
    gc.collect()
    gc.disable()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        for _ in loader:
            pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()
    return calls
