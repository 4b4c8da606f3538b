"""`read_runs`: the records of files in runs, with verified checksums."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader
from fastrecord.interchange.destination import Views
from fastrecord.interchange.source import ROWS, ROWS_BYTES

# Records whose sizes are looked up at once.
_SIZES = 1 << 16


class Run(NamedTuple):
    """Records that are read at once.

    Attributes:
        reader: Their file.
        start: Number of the first one in the file.
        stop: Number after the last one.
        new_shard: Whether a shard begins with them.
    """

    reader: Reader
    start: int
    stop: int
    new_shard: bool


def read_runs(
    readers: Sequence[Reader], fields: Sequence[str], shard_size: int | None = None
) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield all records of files in order, with verified checksums.

    Args:
        readers: The files, opened with `access="pread"`: a mapping would count as memory of this
            process, and a library that gets a view of it would meet a failing disk as a signal.
        fields: The fields to read.
        shard_size: Bytes of values after which a new shard begins; None: never.

    Yields:
        A run of at most 8 MiB (or one record), and its columns as in a `Batch`. Their memory is
        used again when the last view of it is gone.

    Raises:
        FastRecordError, OSError: as `Reader.read_batch`.
    """
    memory = _Memory()
    for run in _runs(readers, fields, shard_size):
        yield run, _read(run, fields, memory)


class _Memory:
    """Buffers of one size. Fresh memory for each run would cost more than reading it."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> memoryview:
        """Return memory that is given back when the last view of it is gone."""
        if size > ROWS_BYTES:
            return np.empty(size, np.uint8).data
        buffer = self._free.pop() if self._free else np.empty(ROWS_BYTES, np.uint8)
        lease = buffer[:size]
        weakref.finalize(lease, self._free.append, buffer).atexit = False
        return lease.data


def _read(run: Run, fields: Sequence[str], memory: _Memory) -> dict[str, Any]:
    rows, schema = range(run.start, run.stop), run.reader.schema
    payloads = [name for name in fields if schema[name].name in ("image", "bytes")]
    others = [name for name in fields if name not in payloads]
    batch = run.reader.read_batch(rows, others, verify=True, copy=True)
    columns = {name: batch[name] for name in others}
    sizes = [int(run.reader.lengths(name, rows).sum()) for name in payloads]
    whole = memory.take(sum(sizes))
    for name, size in zip(payloads, sizes, strict=True):
        part, whole = whole[:size], whole[size:]
        ends = run.reader.read_batch_into(rows, name, part, verify=True)
        columns[name] = Views(part.toreadonly(), ends)
    return {name: columns[name] for name in fields}


def _runs(readers: Sequence[Reader], fields: Sequence[str], shard_size: int | None) -> Iterator[Run]:
    """Divide records into runs of a few MiB, and into shards."""
    used = 0  # bytes in this shard
    for reader in readers:
        for first in range(0, len(reader), _SIZES):
            sizes = _sizes(reader, fields, first, min(_SIZES, len(reader) - first))
            ends = np.cumsum(sizes)
            start = 0
            while start < len(sizes):
                before = int(ends[start]) - int(sizes[start])
                new = shard_size is not None and used > 0 and used + int(sizes[start]) > shard_size
                used = 0 if new else used
                room = ROWS_BYTES if shard_size is None else min(ROWS_BYTES, shard_size - used)
                stop = max(int(np.searchsorted(ends, before + room, side="right")), start + 1)
                stop = min(stop, start + ROWS)
                used += int(ends[stop - 1]) - before
                yield Run(reader, first + start, first + stop, new)
                start = stop


def _sizes(reader: Reader, fields: Sequence[str], first: int, count: int) -> NDArray[np.int64]:
    """Return the bytes of the values of each record."""
    sizes = np.zeros(count, np.int64)
    for name in fields:
        fixed = reader.schema[name].nbytes
        sizes += reader.lengths(name, range(first, first + count)) if fixed is None else fixed
    return sizes
