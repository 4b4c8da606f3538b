"""`Training`: steps of one model on one device, with data on several ways. A contender of the harness."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import torch

import fastrecord as fr
from benches.harness import Missing
from fastrecord.train.batches.base import Batch, Batches
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.config import TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.learner import Learner
from fastrecord.train.meters import TrainMeter
from fastrecord.train.model import build_classifier

# Steps that do not count: more than a loader makes ahead.
WARM_UP = 6


class Training:
    """A model and its data.

    Args:
        files: Names of files, and their paths.
        device: "cuda", or "cpu" to try this out.
        model: A classifier of torchvision.
        pixels: Height and width of its images.
        batch: Images a step; halved until the model fits into the device's memory.
        amp: "off", "bf16" or "fp16".
        compiled: Whether to compile the model.
    """

    def __init__(
        self, *, files: Mapping[str, str], device: str, model: str, pixels: int, batch: int, amp: str, compiled: bool
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise Missing("no CUDA device")
        self.version = f"fastrecord {fr.__version__}, torch {torch.__version__}"
        self._files = {name: Path(path) for name, path in files.items()}
        self._device = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
        self._threads = len(os.sched_getaffinity(0))
        self._ranks = Ranks(0, 1, 0, 1, self._device, None)
        options: dict[str, Any] = {"model": model, "image_size": pixels, "amp": amp, "compile": compiled}
        options |= {"train": str(next(iter(files.values()))), "device": device, "threads": self._threads}
        self._config = TrainConfig(**options, batch_size=batch, channels_last=True)
        self._dataset = open_datasets(self._config)[0]
        if device == "cuda":
            torch.backends.cudnn.benchmark = True
        self._fit()

    def _fit(self) -> None:
        """Make the learner, of a batch that fits into memory."""
        while True:
            self._learner = self._meter = None
            gc.collect()
            if self._on_cuda:
                torch.cuda.empty_cache()
            torch.manual_seed(0)
            config = self._config
            module = build_classifier(config.model, classes=len(self._dataset.classes), image_size=config.sizes[0])
            self._learner, self._meter = Learner(module, config, self._ranks), TrainMeter(self._ranks)
            del module
            if self._has_room():
                return
            if config.batch_size < 4:
                raise Missing(f"{config.model} does not fit into the memory of the device")
            self._config = dataclasses.replace(config, batch_size=config.batch_size // 2)

    def _has_room(self) -> bool:
        try:
            self.train(source="constant", steps=1)
        except torch.cuda.OutOfMemoryError:
            return False
        return True

    @property
    def _on_cuda(self) -> bool:
        return self._device.type == "cuda"

    def about(self) -> dict[str, Any]:
        """Return the settings for the rows."""
        config = self._config
        return {
            "batch": config.batch_size,
            "threads": self._threads,
            "amp": config.amp,
            "compiled": config.compile,
            "device": torch.cuda.get_device_name(self._device) if self._on_cuda else "cpu",
        }

    def train(self, *, source: str, steps: int, way: str = "copy stream, pinned memory") -> dict[str, float]:
        """Take steps after some that do not count, with a learning rate of 0.

        Args:
            source: "constant": a batch on the device. "constant on the host". "DataLoader": the first
                file by torch's DataLoader. Else the name of a file, by the native loader.
            steps: Steps that count.
            way: How the native loader's batches get to the device: "copy stream" or "training
                stream", and "pinned memory" or "pageable memory".

        Returns:
            step_seconds, and the share of them spent waiting for batches.
        """
        with ExitStack() as stack:
            batches = self._open(source, way, stack)
            for _ in range(WARM_UP):
                self._step(next(batches))
            self._synchronize()
            waited, start = 0.0, time.perf_counter()
            for _ in range(steps):
                began = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - began
                self._step(batch)
            self._synchronize()
            seconds = time.perf_counter() - start
        return {"step_seconds": seconds / steps, "data_wait": waited / seconds}

    def first_batch(self, *, source: str) -> float:
        """Return the seconds from making a loader to its first batch on the device."""
        if self._on_cuda:
            torch.zeros(1, device=self._device)
        self._synchronize()
        start = time.perf_counter()
        with ExitStack() as stack:
            next(self._open(source, "copy stream, pinned memory", stack))
            self._synchronize()
            return time.perf_counter() - start

    def epoch(self, *, source: str) -> dict[str, float]:
        """Train one epoch of a file; return what memory it takes at most, in bytes."""
        process = psutil.Process()
        self._synchronize()
        if self._on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        resident = 0
        with ExitStack() as stack:
            batches = self._open(source, "copy stream, pinned memory", stack)
            for _ in range(max(1, len(self._dataset) // self._config.batch_size)):
                self._step(next(batches))
                resident = max(resident, process.memory_info().rss)
            self._synchronize()
        found = {"host_bytes": float(resident)}
        if self._on_cuda:
            found["device_bytes"] = float(torch.cuda.max_memory_reserved(self._device))
        return found

    def _step(self, batch: Batch) -> None:
        if self._learner is not None and self._meter is not None:
            self._learner.step([batch], learning_rate=0.0, meter=self._meter)

    def _synchronize(self) -> None:
        if self._on_cuda:
            torch.cuda.synchronize(self._device)

    def _open(self, source: str, way: str, stack: ExitStack) -> Iterator[Batch]:
        if source in self._files:
            return stack.enter_context(closing(self._native(self._files[source], way)))
        kinds: dict[str, dict[str, Any]] = {
            "constant": {"data": "gpu"},
            "constant on the host": {"data": "cpu"},
            "DataLoader": {"loader": "torch", "threads": min(16, self._threads)},
        }
        config = dataclasses.replace(self._config, **kinds[source])
        dataset = open_datasets(config)[0]
        batches = open_batches(dataset, config, self._ranks, training=True)
        stack.callback(batches.close)
        return stack.enter_context(closing(_endless(batches)))

    def _native(self, path: Path, way: str) -> Any:
        """Yield batches of a file without end: an epoch of a small file would end all the time."""
        config = self._config
        stream, memory = way.split(", ")
        pinned = self._on_cuda and memory == "pinned memory"
        device = self._device if self._on_cuda and stream == "copy stream" else None
        dataset = fr.FastRecordDataset(path)
        with fr.FastRecordLoader(
            dataset,
            batch_sampler=_Shuffled(len(dataset), config.batch_size),
            sample=[fr.transforms.RandomResizedCrop(config.sizes[0]), fr.transforms.RandomHorizontalFlip()],
            threads=self._threads,
            delivery=fr.Delivery(device=device, pin_memory=pinned),
        ) as loader:
            # The learner copies what is not on the device, on the stream on which it trains.
            yield from loader


class _Shuffled:
    """Batches of record numbers in random order, without end."""

    def __init__(self, records: int, batch: int) -> None:
        self._records, self._batch = records, min(batch, records)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(self._records, generator=generator).tolist()
            for start in range(0, self._records - self._batch + 1, self._batch):
                yield order[start : start + self._batch]


def _endless(batches: Batches) -> Any:
    for epoch in itertools.count():
        yield from batches.epoch(epoch)
