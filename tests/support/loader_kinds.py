"""The two kinds of loader, images and arrays, each with its file, for tests that cover both."""

from __future__ import annotations

import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import fastrecord as fr
from fastrecord.loader.loader import FastRecordLoader
from fastrecord.transforms import CenterCrop
from tests.support import loading, patches
from tests.support.child import run_child

ROOT = Path(__file__).parents[2]

# The start of scripts that run in child processes; the file is in their folder.
_SCRIPT = f"""
import sys, warnings
sys.path.insert(0, {str(ROOT)!r})
# CPython 3.12 warns of every fork of a process with threads.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
import torch
from pathlib import Path
from tests.support.loader_kinds import KINDS
from tests.support.loading import load_threads, wait_for_load_threads
"""


class Kind(ABC):
    """A file and its loaders.

    Attributes:
        count: Records in the file.
        batches: Batches of 4 in it.
        options: Settings that only this kind has.
        pickled_bytes: Upper bound on the size of a pickled loader.
    """

    name: str
    count: int
    options: dict[str, Any]
    pickled_bytes: int

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def batches(self) -> int:
        return -(-self.count // 4)

    @abstractmethod
    def make(self, batch_size: int = 4, **options: Any) -> FastRecordLoader:
        """Return a loader with two threads."""

    @abstractmethod
    def contents(self, batches: Iterable[Any]) -> list[Any]:
        """Return a value that identifies a batch by `==`."""

    @abstractmethod
    def write_large(self, folder: Path) -> Path:
        """Return a file for `make_large`."""

    @abstractmethod
    def make_large(self, path: Path) -> FastRecordLoader:
        """Return a loader with 4 MB in each unit of work and 16 MB in an iteration."""

    def run(self, script: str, timeout: float = 60) -> str:
        """Run a script in a child process, with this as `kind`; return its output."""
        this = f"kind = KINDS[{self.name!r}](Path({self.path.name!r}))\n"
        return run_child(_SCRIPT + this + textwrap.dedent(script), self.path.parent, timeout)

    def endless(self) -> str:
        """Return a script that iterates forever and prints each step."""
        return (
            f"import sys\nsys.path[:0] = {sys.path!r}\nfrom pathlib import Path\n"
            f"from tests.support.loader_kinds import KINDS\n"
            f"loader = KINDS[{self.name!r}](Path({str(self.path)!r})).make(1)\n"
            "while True:\n    for number, batch in enumerate(loader):\n        print('step', number)\n"
        )


class Images(Kind):
    """Loaders of random crops of JPEGs."""

    name = "images"
    count = loading.COUNT
    options: dict[str, Any] = {}  # noqa: RUF012  read only
    pickled_bytes = 4000

    def make(self, batch_size: int = 4, **options: Any) -> FastRecordLoader:
        return loading.make(self.path, batch_size, **options)

    def contents(self, batches: Iterable[Any]) -> list[Any]:
        return [images.numpy().tobytes() for images, _ in batches]

    def write_large(self, folder: Path) -> Path:  # noqa: ARG002  crops of any size can be had of all
        return self.path

    def make_large(self, path: Path) -> FastRecordLoader:
        return loading.make(path, 7, image=CenterCrop(450))


class Arrays(Kind):
    """Loaders of stacked arrays, which make groups of batches."""

    name = "arrays"
    count = patches.COUNT
    options: dict[str, Any] = {"ragged": {"tokens": "pad"}}  # noqa: RUF012  read only
    pickled_bytes = 6000

    def make(self, batch_size: int = 4, **options: Any) -> FastRecordLoader:
        return patches.make(self.path, batch_size, **options)

    def contents(self, batches: Iterable[Any]) -> list[Any]:
        return patches.numbers(batches)

    def write_large(self, folder: Path) -> Path:
        path = folder / "large.frec"
        with fr.Writer(path, fr.Schema({"rows": fr.array("float32", (256, 256))})) as writer:
            for number in range(64):
                writer.append({"rows": np.full((256, 256), number, np.float32)})
        return path

    def make_large(self, path: Path) -> FastRecordLoader:
        return patches.make(fr.FastRecordDataset(path), 4)


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Images, Arrays)}
