"""How the input of a pack is divided over files, and what these are called."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fastrecord._core import FastRecordError, Reader
from fastrecord.pack.listing import Listing
from fastrecord.schema.shard_sets import Shard, new_set, shard_path

# What a record takes beside its image and its key: alignment, two extents, width, height and label, twice because
# closing a file may write its columns anew; and what a file takes beside its records.
_RECORD_OVERHEAD = 7 + 2 * (32 + 4 + 4 + 8 + 32)
_FILE_OVERHEAD = 64 << 10


@dataclass(frozen=True, slots=True)
class Part:
    """One file to write.

    Attributes:
        path: Where.
        start: Position of its first input file.
        stop: Position behind its last one.
        shard: Its place among the others; None for a file of its own.
    """

    path: str
    start: int
    stop: int
    shard: Shard | None = None


def plan(listing: Listing, out: str, *, shards: int | None, shard_size: int | None) -> list[Part]:
    """Divide the input into runs, one for each file, in its order.

    Args:
        listing: The input.
        out: The file; or, if there are shards, what their names are made of.
        shards: Number of files, or None. Their numbers of records differ by one at most.
        shard_size: Largest size of a file in bytes, or None. Looks up the size of each input file.

    Raises:
        FastRecordError: more shards than input files.
    """
    total = len(listing)
    if shards is not None:
        if shards > total:
            raise FastRecordError(
                f"{listing.source}: {shards:,} shards of {total:,} files: ask for fewer shards [FR720]"
            )
        ends = [total * (i + 1) // shards for i in range(shards)]
    elif shard_size is not None:
        ends = _ends_by_size(listing, shard_size)
    else:
        return [Part(out, 0, total)]
    starts = [0, *ends[:-1]]
    return [
        Part(shard_path(out, i, len(ends)), start, stop)
        for i, (start, stop) in enumerate(zip(starts, ends, strict=True))
    ]


def as_set(parts: Sequence[Part]) -> list[Part]:
    """Return parts as the shards of a new set."""
    return [replace(part, shard=shard) for part, shard in zip(parts, new_set(len(parts)), strict=True)]


def as_set_begun(parts: Sequence[Part]) -> list[Part]:
    """Return parts as shards of the set that those of them belong to which are there, or of a new one if none is.

    Raises:
        FastRecordError: they belong to two sets.
    """
    begun: list[tuple[Shard | None, str]] = []
    for part in parts:
        # Without a commit, or damaged, it says nothing of a set; opening it to write says what is to be done.
        with suppress(FastRecordError, OSError), Reader(part.path) as reader:
            begun.append((Shard.of(reader.metadata), part.path))
    if not begun:
        return as_set(parts)
    first, path = begun[0]
    name = None if first is None else first.set
    for shard, other in begun:
        if (None if shard is None else shard.set) != name:
            raise FastRecordError(
                f"{other}: not of the same set of shards as {path}, so they can not be resumed together: begin anew "
                "with `--overwrite` [FR209]"
            )
    if name is None:  # of a version that did not say so
        return list(parts)
    return [replace(part, shard=Shard(name, number, len(parts))) for number, part in enumerate(parts)]


def refuse_strays(out: str, parts: Sequence[Part]) -> None:
    """Refuse to write shards beside those of another division: a glob would read both as one data set.

    Raises:
        FastRecordError: there are such files; the message names one.
    """
    if len(parts) == 1 and parts[0].path == out:
        return
    stem = out.removesuffix(".frec")
    name = re.compile(re.escape(stem) + r"-\d{5,}-of-\d{5,}\.frec")
    mine = {part.path for part in parts}
    strays = sorted(
        path for path in glob.glob(glob.escape(stem) + "-*-of-*.frec") if name.fullmatch(path) and path not in mine
    )
    if strays:
        raise FastRecordError(
            f"{strays[0]}: {len(strays):,} shard(s) of another number of shards than {len(parts):,}: remove them, or "
            "choose another OUT [FR721]"
        )


def _ends_by_size(listing: Listing, limit: int) -> list[int]:
    # Class names are written by the first commit and again by the last.
    empty = _FILE_OVERHEAD + 2 * sum(len(name.encode()) + 4 for name in listing.classes or ())
    ends = []
    size = empty
    for position, key in enumerate(listing.keys):
        try:
            image = listing.stored_bytes(position)
        except OSError:
            image = 0  # its turn comes when it is read
        record = image + len(key.encode()) + _RECORD_OVERHEAD
        if size + record > limit and size > empty:
            ends.append(position)
            size = empty
        size += record
    return [*ends, len(listing)]
