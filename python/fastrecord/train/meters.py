"""`TrainMeter` and `MetricsFile`: counts over all ranks, the log line, and the file of metrics."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from fastrecord.loader.stats import LoaderStats
from fastrecord.train.config import TrainError
from fastrecord.train.distributed import Ranks
from fastrecord.train.files import replace_file

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metrics:
    """Sums over images. `loss_sum` may be nan or infinite; the counts are exact."""

    loss_sum: float = 0.0
    correct1: int = 0
    correct5: int = 0
    count: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))

    @property
    def loss(self) -> float:
        """Mean loss per image."""
        return self.loss_sum / self.count if self.count else 0.0

    @property
    def error1(self) -> float:
        """Share of images whose first guess is wrong, in percent."""
        return 100 * (1 - self.correct1 / self.count) if self.count else 0.0

    @property
    def error5(self) -> float:
        """Share of images whose class is not among the first five guesses, in percent."""
        return 100 * (1 - self.correct5 / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The interval between two log lines, over all ranks.

    Attributes:
        metrics: Metrics of the images trained on.
        steps: Optimizer steps.
        seconds: Time of the steps, without writing checkpoints.
        waited: The part of `seconds` spent waiting for batches, on the rank that waited longest.
        loader: Statistics of all ranks' loaders in the interval: counts and threads are sums over
            the ranks, `seconds` and `wait_seconds` means. None if the source of the batches does
            not measure them.
    """

    metrics: Metrics = Metrics()
    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    loader: LoaderStats | None = None

    @property
    def images_per_second(self) -> float:
        """Images per second over all ranks."""
        return self.metrics.count / self.seconds if self.seconds else 0.0

    @property
    def data_wait(self) -> float:
        """Share of the time spent waiting for batches, in [0, 1]."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0


def correct_guesses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the images whose label is the first guess, and is among the first five guesses.

    With fewer than five classes, all guesses count.

    Args:
        logits: Float, (B, classes).
        labels: int64, (B,); or of mixed images float, (B, classes): the class of the largest share.

    Returns:
        Two int64 scalars on the device of `logits`.
    """
    if labels.ndim == 2:
        labels = labels.argmax(1)
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    return hits[:, 0].sum(), hits.sum()


class TrainMeter:
    """Collects metrics of training steps on the device, and sums them over the ranks on request.

    Only `collect` makes the host wait for the device.

    Args:
        ranks: All ranks.
        stats: Returns the statistics of this rank's loader, or None; on all ranks alike.
    """

    def __init__(self, ranks: Ranks, stats: Callable[[], LoaderStats | None] = lambda: None) -> None:
        self._ranks = ranks
        self._stats = stats
        # The loader's statistics when the window began.
        self._loader_before = stats()
        # float64 counts exactly up to 2**53; a single dtype allows a single message.
        self._local = torch.zeros(4, dtype=torch.float64, device=ranks.device)
        self._steps = 0
        self._waited = 0.0
        self._mark = time.perf_counter()
        self.window = Window()
        self.epoch = Metrics()

    def add_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count one batch; `loss` is its mean over the images."""
        correct1, correct5 = correct_guesses(logits, labels)
        count = torch.full_like(correct1, len(labels))
        self._local += torch.stack([loss.double() * len(labels), correct1, correct5, count])

    def add_step(self) -> None:
        """Count one optimizer step."""
        self._steps += 1

    def timed(self, batches: Iterator[T]) -> Iterator[T]:
        """Iterate over `batches`, and measure the time spent waiting for each."""
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def collect(self) -> None:
        """Move all counts so far into `window` and `epoch`.

        Every rank must call it at the same step.
        """
        waits = torch.zeros(self._ranks.world_size, dtype=torch.float64, device=self._ranks.device)
        waits[self._ranks.rank] = self._waited
        loader = self._stats()
        if loader is not None and self._loader_before is not None:
            loader -= self._loader_before
        # float64 from the start: torch's default dtype would round the bytes.
        work = torch.tensor([] if loader is None else dataclasses.astuple(loader), dtype=torch.float64).to(waits)
        summed = self._ranks.sum(torch.cat([self._local, waits, work])).tolist()
        loss_sum, correct1, correct5, count = summed[:4]
        waited, did = summed[4 : 4 + len(waits)], summed[4 + len(waits) :]
        now = time.perf_counter()
        metrics = Metrics(loss_sum, int(correct1), int(correct5), int(count))
        self.epoch += metrics
        self.window = Window(
            self.window.metrics + metrics,
            self.window.steps + self._steps,
            self.window.seconds + now - self._mark,
            self.window.waited + max(waited),
            None if loader is None else over_ranks(loader, did, self._ranks.world_size),
        )
        self._local.zero_()
        self._steps, self._waited, self._mark = 0, 0.0, now

    def restart_clock(self) -> None:
        """Exclude the time since the last `collect` from the measured seconds."""
        self._mark = time.perf_counter()

    def start_window(self) -> None:
        """Begin the next window; all counts must have been collected."""
        self.window = Window()
        self._loader_before = self._stats()

    def start_epoch(self) -> None:
        """Begin the next epoch and its first window."""
        self.epoch = Metrics()
        self.start_window()
        self.restart_clock()

    def state_dict(self) -> dict[str, Any]:
        """Return the values collected in the current epoch and window."""
        return {
            "epoch": list(dataclasses.astuple(self.epoch)),
            "window": list(dataclasses.astuple(self.window.metrics)),
            "steps": self.window.steps,
            "seconds": self.window.seconds,
            "waited": self.window.waited,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a return value of `state_dict`."""
        self.epoch = Metrics(*state["epoch"])
        # The loader's statistics before the resume are not kept: the first window covers the part
        # after it.
        self.window = Window(Metrics(*state["window"]), state["steps"], state["seconds"], state["waited"])
        self.restart_clock()


def over_ranks(one: LoaderStats, sums: list[float], world_size: int) -> LoaderStats:
    """Return the sums over the ranks as statistics of one loader with the threads of all."""
    values: dict[str, Any] = {}
    for field, value in zip(dataclasses.fields(one), sums, strict=True):
        # The ranks work at the same time.
        total = value / world_size if field.name in ("seconds", "wait_seconds") else value
        values[field.name] = type(getattr(one, field.name))(total)
    return dataclasses.replace(one, **values)


def loader_row(loader: LoaderStats | None) -> dict[str, float]:
    """Return the loader entries of a line of metrics.jsonl; empty without measurements."""
    if loader is None:
        return {}
    rates = {
        "loader_images_per_second": loader.images_per_second,
        "loader_mb_per_second": loader.megabytes_per_second,
    }
    names = ("read_share", "decode_share", "resize_share", "idle_share", "skipped")
    return rates | {name: getattr(loader, name) for name in names}


def _loader_text(loader: LoaderStats | None) -> str:
    if loader is None:
        return ""
    skipped = f", {loader.skipped} skipped" if loader.skipped else ""
    return (
        f"  Load {loader.megabytes_per_second:.1f} MB/s, read {loader.read_share:.0%} decode {loader.decode_share:.0%} "
        f"resize {loader.resize_share:.0%} idle {loader.idle_share:.0%}{skipped}"
    )


def train_line(epoch: int, done: int, steps: int, window: Window, total: Metrics, learning_rate: float) -> str:
    """Format a log line of training; values in brackets are for the epoch so far."""
    now = window.metrics
    return (
        f"Epoch: [{epoch}][{done}/{steps}]  Time {window.seconds / max(1, window.steps):.3f}  "
        f"Data {window.images_per_second:.1f} images/s ({100 * window.data_wait:.1f}% wait)  "
        f"Loss {now.loss:.4f} ({total.loss:.4f})  Error@1 {now.error1:.2f} ({total.error1:.2f})  "
        f"Error@5 {now.error5:.2f} ({total.error5:.2f})  LR {learning_rate:.5g}{_loader_text(window.loader)}"
    )


def val_line(epoch: int, metrics: Metrics, seconds: float, *, skipped: int) -> str:
    """Format the log line of an evaluation."""
    counted = f"{metrics.correct1} of {metrics.count}" + (f", {skipped} skipped" if skipped else "")
    return (
        f"Val:   [{epoch}]  Time {seconds:.1f}  Loss {metrics.loss:.4f}  Error@1 {metrics.error1:.2f}  "
        f"Error@5 {metrics.error5:.2f}  Accuracy {100 - metrics.error1:.2f} % ({counted})"
    )


def ema_line(epoch: int, metrics: Metrics) -> str:
    """Format the log line of an evaluation of the average of the weights."""
    return (
        f"Ema:   [{epoch}]  Loss {metrics.loss:.4f}  Error@1 {metrics.error1:.2f}  Error@5 {metrics.error5:.2f}  "
        f"Accuracy {100 - metrics.error1:.2f} % ({metrics.correct1} of {metrics.count})"
    )


class MetricsFile(AbstractContextManager["MetricsFile"]):
    """A file of JSON objects, one a line; every line except possibly the last is whole.

    Args:
        path: The file.
        keep_steps: When resuming from a checkpoint: keep the lines up to this step, and drop later
            lines, which will be written again. None: start an empty file.
    """

    def __init__(self, path: Path, *, keep_steps: int | None) -> None:
        kept = [] if keep_steps is None else [row for row in read_metrics(path) if row["step"] <= keep_steps]
        replace_file(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one object; numbers that JSON lacks (nan, infinity) become null.

        Raises:
            OSError: it cannot be written (a full disk).
        """
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        line = json.dumps(finite, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file, without a torn last line of a killed run. A missing file is empty.

    Raises:
        TrainError: a line is not valid in a metrics file.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines, start=1):
        row: Any = None
        if line.endswith(b"\n"):
            with suppress(ValueError):
                row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                remedy = "remove it, or the file, which the checkpoints do not need"
                raise TrainError(f"{path}: line {number} is damaged: {remedy}")
            rows.append(row)
    return rows
