"""The two kinds of loader, images and arrays, each with its file, for tests that cover both."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastrecord.loader.loader import FastRecordLoader
from tests.support import loading, patches
from tests.support.child import ROOT, run_child

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

    def run(self, script: str, timeout: float = 60) -> str:
        """Run a script in a child process, with this as `kind`; return its output."""
        this = f"kind = KINDS[{self.name!r}](Path({self.path.name!r}))\n"
        return run_child(_SCRIPT + this + textwrap.dedent(script), self.path.parent, timeout)


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


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Images, Arrays)}
