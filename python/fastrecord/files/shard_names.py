"""`Part`: how the input of a pack is divided over files, and their names."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fastrecord._core import FastRecordError, Reader
from fastrecord.errors import Code
from fastrecord.schema.shard_sets import Shard, new_set


@dataclass(frozen=True, slots=True)
class Part:
    """One file to write.

    Attributes:
        path: Its path.
        start: Position of its first input file.
        stop: Position after its last input file.
        shard: Its place in the set; None for a single file.
    """

    path: str
    start: int
    stop: int
    shard: Shard | None = None


def as_set(parts: Sequence[Part]) -> list[Part]:
    """Return parts as the shards of a new set."""
    return [replace(part, shard=shard) for part, shard in zip(parts, new_set(len(parts)), strict=True)]


def as_set_begun(parts: Sequence[Part]) -> list[Part]:
    """Return parts as shards of the set of the files that exist, or of a new set if none exists.

    Raises:
        FastRecordError: the files belong to two sets.
    """
    begun: list[tuple[Shard | None, str]] = []
    for part in parts:
        # A file without a commit, or a damaged one, has no shard entry; opening it for writing
        # reports the way out.
        with suppress(FastRecordError, OSError), Reader(part.path) as reader:
            begun.append((Shard.of(reader.metadata), part.path))
    if not begun:
        return as_set(parts)
    first, path = begun[0]
    name = None if first is None else first.set
    for shard, other in begun:
        if (None if shard is None else shard.set) != name:
            raise Code.RECORDS_TWICE.error(
                f"{other}: not of the same set of shards as {path}, so they cannot be resumed together: begin again "
                "with `--overwrite`"
            )
    if name is None:  # written by a version without this entry
        return list(parts)
    return [replace(part, shard=Shard(name, number, len(parts))) for number, part in enumerate(parts)]


def refuse_strays(out: str, parts: Sequence[Part]) -> None:
    """Refuse to write shards beside shards of another division: a glob would read both as one set.

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
        raise Code.OTHER_SHARDS.error(
            f"{strays[0]}: {len(strays):,} shard(s) of another set than the {len(parts):,}: remove them, or "
            "choose another OUT"
        )
