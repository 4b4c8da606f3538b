"""`Shards`: one or more files read as one sequence of records.

Does not know labels, images or views.
"""

from __future__ import annotations

import glob
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrecord._core import Reader, open_snapshot
from fastrecord.errors import Code
from fastrecord.schema import Schema
from fastrecord.schema.roles import plain

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Mapping[str, Any]]

_PAGE = 4096
# What a snapshot needs to open its file.
_SNAPSHOT = ("path", "file_id", "commit", "bytes")


def find_files(paths: Paths) -> list[tuple[str, Mapping[str, Any] | None]]:
    """Return the absolute path of each file that an argument names, and its snapshot if given.

    Args:
        paths: A file, a folder (its `*.frec` files, sorted), a glob pattern (sorted; `**` works),
            or a sequence of these, whose order is kept. In a sequence, a file may also be a
            snapshot: an item of `Shards.snapshots`.

    Raises:
        FileNotFoundError: nothing is there, or a folder or pattern holds no file.
        ValueError: an empty sequence, or a snapshot lacks a key.
    """
    if isinstance(paths, (str, os.PathLike)):
        return [(file, None) for file in _find(paths)]
    files: list[tuple[str, Mapping[str, Any] | None]] = []
    for path in paths:
        if not isinstance(path, Mapping):
            files += [(file, None) for file in _find(path)]
            continue
        if lacking := [key for key in _SNAPSHOT if key not in path]:
            raise ValueError(f"a snapshot has the keys {', '.join(_SNAPSHOT)}, but this one has no {lacking[0]!r}")
        files.append((_absolute(path["path"]), path))
    if not files:
        raise ValueError("no path given: name at least one .frec file")
    return files


def at_snapshots(paths: Paths, snapshots: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return snapshots of files that may have moved since: `paths` names them, in order.

    Raises:
        FileNotFoundError: nothing is at a path.
        ValueError: the number of snapshots differs from the number of files.
    """
    files = find_files(paths)
    if len(files) != len(snapshots):
        raise ValueError(f"there are {len(snapshots)} snapshots for {len(files)} files: give one for each, in order")
    return [{**snapshot, "path": path} for (path, _), snapshot in zip(files, snapshots, strict=True)]


def open_file(
    path: str, snapshot: Mapping[str, Any] | None, access: str, verify: bool | Literal["once"] = "once"
) -> Reader:
    """Open a file at the commit of a snapshot, or at its newest commit.

    Args:
        path: Its path.
        snapshot: An item of `Shards.snapshots`, or None.
        access: "mmap" or "pread".
        verify: When payloads are checked, unless a call overrides it.

    Raises:
        FastRecordError: the file differs from its snapshot.
    """
    if snapshot is None:
        return Reader(path, access, verify=verify)
    # A commit ends with its footer of one page.
    end = snapshot["bytes"] - _PAGE
    return open_snapshot(path, access, None, snapshot["file_id"], snapshot["commit"], end, verify)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path: a worker process that opens the file may start in another folder."""
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


def _find(path: str | os.PathLike[str]) -> list[str]:
    if "://" in os.fspath(path) and not os.path.exists(path):
        return [os.fspath(path)]  # the reader reports what is wrong with it
    name = _absolute(path)
    if os.path.isdir(name):
        found = sorted(glob.glob(os.path.join(glob.escape(name), "*.frec")))
        if not found:
            raise FileNotFoundError(
                f"{name}: no .frec file in this folder: pack a folder of images with `fastrecord pack {path} OUT.frec`"
            )
        return found
    if glob.has_magic(name) and not os.path.exists(name):
        found = sorted(glob.glob(name, recursive=True))
        if not found:
            raise FileNotFoundError(f"no file matches {name!r}")
        return found
    return [name]


def normalized(indices: ArrayLike, total: int) -> NDArray[np.int64]:
    """Return indices into `total` records as numbers in [0, total), int64 (N,).

    Raises:
        IndexError: one is not in [-total, total). TypeError: not a 1-D sequence of integers.
    """
    array = np.asarray(indices)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"indices are a 1-D sequence of integers, not {array.dtype} of shape {array.shape}")
    low, high = array.min(), array.max()
    if low < -total or high >= total:
        outside = array[(array < -total) | (array >= total)]
        raise IndexError(f"index {outside[0]} is out of range: the data set has {total} records")
    rows = array.astype(np.int64, copy=False)
    return rows if low >= 0 else np.where(rows < 0, rows + total, rows)


def normalized_one(index: int, total: int) -> int:
    """Return an index into `total` records as a number in [0, total).

    Raises:
        IndexError: it is not in [-total, total). TypeError: not an integer.
    """
    row = operator.index(index)
    if not -total <= row < total:
        raise IndexError(f"index {row} is out of range: the data set has {total} records")
    return row % total


class Shards:
    """Several files read as one: each record belongs to one file.

    Pickles as the readers' snapshots and opens them at first use. A worker process that finds a
    replaced file reports this as the error of its first batch, instead of dying at startup.

    Attributes:
        ends: int64 (files,), the number of records up to the end of each file.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers: tuple[Reader, ...] | None = tuple(readers)
        self._snapshots: list[tuple[Any, ...]] = []
        self._members: tuple[Shards, ...] = ()
        self._schema: Schema | None = None
        self.ends: NDArray[np.int64] = np.cumsum([len(reader) for reader in readers], dtype=np.int64)

    @classmethod
    def open(cls, paths: Paths) -> Shards:
        """Open files at their newest commits: a file, a folder of them, a pattern, or a sequence.

        Raises:
            FileNotFoundError: nothing is at a path. CorruptFileError: not a valid .frec file.
        """
        return cls([open_file(path, snapshot, "mmap") for path, snapshot in find_files(paths)])

    @classmethod
    def open_alike(cls, paths: Paths) -> Shards:
        """Open files that have the same fields, in any order.

        Raises:
            SchemaError: one has others; besides, what `open` raises.
        """
        shards = cls.open(paths)
        first, *others = ({name: plain(kind) for name, kind in reader.schema.items()} for reader in shards.readers)
        for reader, fields in zip(shards.readers[1:], others, strict=True):
            if fields != first:
                raise Code.FIELDS_DIFFER.error(
                    f"{reader.path}: its fields differ from those in {shards.readers[0].path}"
                )
        return shards

    @classmethod
    def joined(cls, several: Sequence[Shards]) -> tuple[Shards, list[int]]:
        """Return the files of several `Shards` as one, and the offset of each.

        Files that several of them share come once.
        """
        members: list[Shards] = []
        starts: list[int] = []
        for shards in several:
            own = list(shards._members or [shards])
            runs = (i for i in range(len(members)) if _are_same(members[i : i + len(own)], own))
            at = next(runs, len(members))
            if at == len(members):
                members += own
            starts.append(sum(len(member) for member in members[:at]))
        if len(members) == 1:
            return members[0], starts
        made = cls([reader for member in members for reader in member.readers])
        made._members = tuple(members)
        return made, starts

    def __getstate__(self) -> dict[str, Any]:
        # Files shared by views are sent and opened once.
        contents = {"members": self._members} if self._members else {"snapshots": self._reduced()}
        return {**contents, "ends": self.ends.tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._readers = None
        self._snapshots = state.get("snapshots", [])
        self._members = state.get("members", ())
        self._schema = None
        self.ends = np.array(state["ends"], np.int64)

    def _reduced(self) -> list[tuple[Any, ...]]:
        return self._snapshots if self._readers is None else [reader.__reduce__() for reader in self._readers]

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The reader of each file.

        Raises:
            FastRecordError: a file was replaced since the pickled snapshot.
            FileNotFoundError: it no longer exists.
        """
        if self._readers is None:
            if self._members:
                self._readers = tuple(reader for member in self._members for reader in member.readers)
            else:
                self._readers = tuple(reopen(*arguments) for reopen, arguments in self._snapshots)
        return self._readers

    @property
    def schema(self) -> Schema:
        """The schema of the first file; a reader builds it anew on each call."""
        if self._schema is None:
            self._schema = self.readers[0].schema
        return self._schema

    def __len__(self) -> int:
        return int(self.ends[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """Return the file's position in `readers` and the record number in that file.

        Args:
            index: In [-len(self), len(self)).

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        row = normalized_one(index, len(self))
        shard = int(np.searchsorted(self.ends, row, side="right"))
        return shard, row - (int(self.ends[shard - 1]) if shard else 0)

    def rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return indices as numbers in [0, len(self)), int64 (N,).

        Raises:
            IndexError: one is out of range. TypeError: not a 1-D sequence of integers.
        """
        return normalized(indices, len(self))

    def split(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Group rows by file.

        Args:
            rows: Record numbers in [0, len(self)), int64 (N,).

        Yields:
            The file's position in `readers`; the slots of its records in `rows`, in order;
            their record numbers in the file.
        """
        if len(self.ends) == 1:
            yield 0, np.arange(len(rows)), rows
            return
        shards = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(shards, kind="stable")
        for slots in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if len(slots):
                shard = int(shards[slots[0]])
                start = int(self.ends[shard - 1]) if shard else 0
                yield shard, slots, rows[slots] - start

    def snapshots(self) -> list[dict[str, Any]]:
        """Return each file's snapshot for JSON: `path`, `file_id`, `commit`, `records`, `bytes`."""
        return [
            {
                "path": os.fspath(reader.path),
                "file_id": reader.file_id,
                "commit": reader.commit,
                "records": len(reader),
                "bytes": reader.nbytes,
            }
            for reader in self.readers
        ]

    def close(self) -> None:
        """Close the readers; views already returned stay valid."""
        for reader in self._readers or ():
            reader.close()


def _are_same(some: Sequence[Shards], others: Sequence[Shards]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a is b or a._reduced() == b._reduced() for a, b in pairs)
