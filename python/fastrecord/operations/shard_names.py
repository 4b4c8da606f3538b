"""How the input of a pack is divided over files, and what these are called."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fastrecord._core import FastRecordError, Reader
from fastrecord.schema.shard_sets import Shard, new_set


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
