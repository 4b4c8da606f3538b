"""How the input of a pack is divided among shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastrecord.errors import Code
from fastrecord.files.shard_names import Part
from fastrecord.schema.shard_sets import shard_path

# Overhead of a record besides its image and key: alignment, two extents, width, height and label.
# They count twice because closing a file may rewrite its columns. Then the overhead of a file
# besides its records.
_RECORD_OVERHEAD = 7 + 2 * (32 + 4 + 4 + 8 + 32)


_FILE_OVERHEAD = 64 << 10
# Of a shard in an object store: large enough for requests of 8 MiB, small enough to wait for.
_USUAL_SHARD = 256 << 20


def usual_shards(sizes: Iterable[int], total: int) -> int:
    """Return how many shards of about 256 MiB records of some sizes make."""
    return max(1, min(total, -(-sum(sizes) // _USUAL_SHARD)))


def parts_of(out: str, ends: Sequence[int]) -> list[Part]:
    """Return the shards whose last records come before these positions."""
    starts = [0, *ends[:-1]]
    return [
        Part(shard_path(out, i, len(ends)), start, stop)
        for i, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]


def even_ends(total: int, shards: int, where: str, what: str) -> list[int]:
    """Return where shards end whose numbers of records differ by at most one.

    Args:
        total: Number of records.
        shards: Number of shards.
        where: The input, for errors.
        what: What there are `total` of, for errors.

    Raises:
        FastRecordError: more shards than records.
    """
    if shards > total:
        raise Code.TOO_MANY_SHARDS.error(f"{where}: {shards:,} shards of {total:,} {what}: ask for fewer shards")
    return [total * (i + 1) // shards for i in range(shards)]


def ends_by_size(sizes: Iterable[int], limit: int, classes: Sequence[str]) -> list[int]:
    """Return where shards end so that none exceeds a size.

    Args:
        sizes: Size of the values of each record, in bytes, in order.
        limit: Maximum size of a file in bytes, unless a single record is larger.
        classes: The class names, which each file has.
    """
    # The first and the last commit each write the class names.
    empty = _FILE_OVERHEAD + 2 * sum(len(name.encode()) + 4 for name in classes)
    ends, size, position = [], empty, -1
    for position, values in enumerate(sizes):
        record = values + _RECORD_OVERHEAD
        if size + record > limit and size > empty:
            ends.append(position)
            size = empty
        size += record
    return [*ends, position + 1]
