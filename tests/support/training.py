"""Small files of class-coloured images, and training runs in child processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fastrecord as fr
from fastrecord.train import Result, TrainConfig
from fastrecord.train.meters import read_metrics
from tests.support.child import environment
from tests.support.pictures import save

SCHEMA = fr.Schema({"image": fr.image(), "label": "int64", "key": fr.string()})
CLASSES = ("blue", "green", "grey", "red")
COLOURS = np.array([(60, 60, 180), (60, 180, 60), (128, 128, 128), (180, 60, 60)])
# The smallest torchvision classifier with batch normalisation and without dropout.
MODEL = "shufflenet_v2_x0_5"


def _write(path: Path, images: Iterable[tuple[Any, str, str]], kind: str, classes: Sequence[str]) -> Path:
    """Pack images, each with its class and the name of its file."""
    with fr.Writer(path, SCHEMA, metadata={"classes": list(classes)}) as writer:
        for pixels, name, file in images:
            data = save(Image.fromarray(np.asarray(pixels, np.uint8)), kind)
            writer.append({"image": data, "label": list(classes).index(name), "key": f"{name}/{file}"})
    return path


def write_colours(path: Path, count: int, *, seed: int, classes: Sequence[str] = CLASSES) -> Path:
    """Pack `count` noisy 40 x 36 JPEGs; the mean colour shows the class."""
    rng = np.random.default_rng(seed)
    noisy = ((COLOURS[number % 4] + rng.normal(0, 40, (36, 40, 3))).clip(0, 255) for number in range(count))
    images = ((pixels, CLASSES[number % 4], f"{number}.jpg") for number, pixels in enumerate(noisy))
    return _write(path, images, "JPEG", classes)


def write_numbered(path: Path, count: int) -> Path:
    """Pack one-coloured 8 x 8 PNGs with the record number in red and green, for `numbers_of`."""
    images = ((np.full((8, 8, 3), (n % 256, n // 256, 0)), "only", f"{n}.png") for n in range(count))
    return _write(path, images, "PNG", ["only"])


def write_marked(path: Path, count: int, *, seed: int = 0) -> Path:
    """Pack 32 x 32 PNGs: red and green encode the record number in any crop, blue is noise."""
    rng = np.random.default_rng(seed)

    def marked(number: int) -> Any:
        pixels = np.empty((32, 32, 3), np.uint8)
        pixels[..., 0], pixels[..., 1] = number % 256, number // 256
        pixels[..., 2] = rng.integers(0, 256, (32, 32))
        return pixels

    images = ((marked(n), CLASSES[n % len(CLASSES)], f"{n}.png") for n in range(count))
    return _write(path, images, "PNG", CLASSES)


def numbers_of(images: Any) -> list[int]:
    """Return the record numbers of images, uint8 (B, 3, S, S), of a `write_numbered` file."""
    return [
        red + 256 * green for red, green in zip(images[:, 0, 0, 0].tolist(), images[:, 1, 0, 0].tolist(), strict=True)
    ]


def small_config(train: Path | str, out: Path, **options: Any) -> TrainConfig:
    """Return a fast configuration for one CPU core: a small model, 32 x 32 pixels, one thread."""
    small = {"model": MODEL, "epochs": 2, "batch_size": 8, "image_size": 32, "threads": 1}
    plain = {"augment": "none", "device": "cpu", "print_freq": 1}
    return TrainConfig(**{"train": str(train), "out": out, **small, **plain, **options})


def losses(out: Path) -> dict[int, float]:
    """Return the training loss of every logged step of a run."""
    return {row["step"]: row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["event"] == "train"}


def assert_learnt(result: Result) -> None:
    """Check that a run on images of four colours learnt to distinguish them.

    Guessing has an error of 75 %. A few dozen steps reach 0 to 25 %, depending on CPU rounding.
    """
    assert result.train.error1 < 40
    assert result.val is not None
    assert result.val.error1 < 50


class Sender(logging.Handler):
    """Sends a signal to a process when a log line contains a text."""

    def __init__(self, text: str, number: int, process: int) -> None:
        super().__init__()
        self.text, self.number, self.process = text, number, process

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            os.kill(self.process, self.number)


@contextmanager
def signalled(text: str, number: int, process: int | None = None) -> Iterator[None]:
    """Send a signal to a process, by default this one, when the trainer logs a line with a text."""
    logger, sender = logging.getLogger("fastrecord.train"), Sender(text, number, process or os.getpid())
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(sender)
    try:
        yield
    finally:
        logger.removeHandler(sender)
        logger.setLevel(level)


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run Python with `command` in a new process group and end it on exit; stderr joins stdout."""
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    words = [sys.executable, *map(str, command)]
    process = subprocess.Popen(words, env=environment(), start_new_session=True, **pipe)
    try:
        yield process
    finally:
        # A launcher ends its processes on SIGTERM; they are in their own groups.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=45)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return the output up to and including the first line with `text`.

    Raises:
        EOFError: the output has no such line.
    """
    seen = ""
    if process.stdout is not None:
        for line in process.stdout:
            seen += line
            if text in line:
                return seen
    raise EOFError(f"no {text!r} in the output:\n{seen}")


def read_rest(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end; return the exit status and the remaining output."""
    output = process.stdout.read() if process.stdout is not None else ""
    return process.wait(), output
