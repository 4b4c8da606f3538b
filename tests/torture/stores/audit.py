"""Looks at a cache from outside, without the code that fills it: what its marks claim, and what it takes.

Knows the layout of docs/stores.md's cache: sparse files, and beside each a byte for each part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import fastrecord as fr
from fastrecord._core import commit_parts, field_parts, payload_fields, payload_parts
from fastrecord.store.cached_file import tail_bytes
from fastrecord.store.requests import PAGE

STATE = "fastrecord-cache"
_HERE, _NOT_HERE = 1, 0
_FREC = re.compile(r"[0-9a-f]{32}-\d+-[0-9a-f]{8}\.frec")
_MANIFEST = re.compile(r"[0-9a-f]{32}\.json")

Stretch = tuple[int, int]


class Truth:
    """The shards of a data set, by their file ids."""

    def __init__(self, folder: Path) -> None:
        self.shards = {}
        for path in sorted(folder.glob("*.frec")):
            with fr.Reader(path) as reader:
                self.shards[reader.file_id] = path


def audit(cache: Path, truth: Truth, limit: int | None, *, settled: bool) -> Iterator[str]:
    """Yield what is wrong with a cache.

    Args:
        cache: Its folder.
        truth: The data set that it has copies of.
        limit: Bytes of the cache at most.
        settled: Whether no process was killed since all processes that had it open have ended, and one
            of them was the first that opened it: then nothing may be left of earlier ones.
    """
    names = set(os.listdir(cache))
    if STATE not in names:
        return  # killed before there was a cache
    copies = {name for name in names if _FREC.fullmatch(name)}
    known = copies | {f"{name}.parts" for name in copies} | {STATE}
    if settled and (strange := {name for name in names ^ known if not _MANIFEST.fullmatch(name)}):
        yield f"left behind or missing: {sorted(strange)}"
    used = int(np.fromfile(cache / STATE, np.int64)[1])
    charges = 0
    for name in sorted(copies):
        if f"{name}.parts" not in names:
            continue
        copy = _Copy(cache / name, truth.shards[name.partition("-")[0]])
        yield from copy.wrong()
        if settled:
            yield from copy.unsettled()
        charges += copy.charge
    if settled and used != charges:
        yield f"{used:,} bytes are used, and the copies count {charges:,}"
    if limit is not None and used > limit:
        yield f"{used:,} bytes are used, more than {limit:,}"


class _Copy:
    """A copy of a shard, and its original."""

    def __init__(self, path: Path, original: Path) -> None:
        self.path, self._original = path, original
        marks = np.fromfile(f"{path}.parts", np.uint8)
        self._head, self._marks = marks[:PAGE], marks[PAGE:]
        self.charge = int(self._head[112:120].view("<i8")[0])
        with fr.Reader(original) as reader:
            size, records = original.stat().st_size, len(reader)
            fields = list(reader.schema)
            self._columns = {name: field_parts(reader, name) for name in fields}
            self._payloads: dict[str, NDArray[np.int64]] = {}
            first = len(fields)
            self._columns_here = [name for at, name in enumerate(fields) if self._marks[at] == _HERE]
            for name in payload_fields(reader):
                here = np.flatnonzero(self._marks[first : first + records] == _HERE)
                first += records
                if name in self._columns_here:
                    self._payloads[name] = payload_parts(reader, name, here).reshape(-1, 2)
                elif len(here):
                    self._payloads[name] = np.empty((0, 2), np.int64)
            tail = min(size, tail_bytes(records))
            content = original.read_bytes()
            rest = commit_parts(original, content[:PAGE], content[-PAGE:], size - PAGE)[3:]
            self._fixed: list[Stretch] = [(0, PAGE), (size - PAGE, PAGE), *rest]
            self._content = content
            self._tail = tail

    def wrong(self) -> Iterator[str]:
        """Yield the parts that are marked as here and are not what they should be."""
        with self.path.open("rb") as file:
            for what, stretches in self._here():
                for offset, length in stretches:
                    if os.pread(file.fileno(), length, offset) != self._content[offset : offset + length]:
                        yield f"{self._original.name}: {what} at {offset} is marked as here, and differs"

    def unsettled(self) -> Iterator[str]:
        """Yield what a killed process would leave: odd marks, wrong numbers, and blocks of what is not here."""
        if self._head[16]:
            yield f"{self._original.name}: the marks say that {self._head[16]} processes bring parts"
        if odd := set(np.unique(self._marks).tolist()) - {_NOT_HERE, _HERE}:
            yield f"{self._original.name}: marks {odd}"
        size = len(self._content)
        head = [(0, PAGE), (size - self._tail, self._tail)]
        count = PAGE + self._tail
        for name in self._columns_here:
            count += sum(length for offset, length in self._columns[name] if not _within(offset, length, head))
        count += sum(int(parts[:, 1].sum()) for parts in self._payloads.values())
        if count != self.charge:
            yield f"{self._original.name}: {count:,} bytes are here, and it counts {self.charge:,}"
        allowed = np.zeros(-(-size // PAGE), bool)
        for stretches in (head, *(stretches for _, stretches in self._here())):
            for offset, length in stretches:
                allowed[offset // PAGE : -(-(offset + length) // PAGE)] = True
        taken = np.zeros_like(allowed)
        for offset, length in _allocated(self.path):
            taken[offset // PAGE : -(-(offset + length) // PAGE)] = True
        if lost := int((taken & ~allowed).sum()):
            yield f"{self._original.name}: {lost} blocks of what is not here, {int(allowed.sum())} of what is"

    def _here(self) -> Iterator[tuple[str, list[Stretch]]]:
        yield "the head", self._fixed
        for name in self._columns_here:
            yield f"a column of {name}", self._columns[name]
        for name, parts in self._payloads.items():
            yield f"a value of {name}", [(int(offset), int(length)) for offset, length in parts if length]


def _within(offset: int, length: int, stretches: list[Stretch]) -> bool:
    return any(start <= offset and offset + length <= start + size for start, size in stretches)


def _allocated(path: Path) -> Iterator[Stretch]:
    """Yield the stretches of a sparse file that take space."""
    with path.open("rb") as file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                return  # only a hole follows
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            yield start, at - start
