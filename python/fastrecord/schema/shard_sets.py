"""Which files are shards of one set, and which hold the records of others, by their metadata."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Self

from fastrecord._core import Reader
from fastrecord.errors import Code

# Metadata keys: docs/format.md, section 5.
SHARD, MADE_OF = "shard", "made_of"

_NAME = re.compile(r"-\d{5,}-of-\d{5,}\.frec$")
_NAMED = 3
# How commands that have the option call it.
COMMANDS = "`--allow-incomplete` (allow_incomplete=True)"


@dataclass(frozen=True, slots=True)
class Shard:
    """A file's place in a shard set, as its metadata has it.

    Attributes:
        set: The same random text in all shards of a set, and in no other set.
        number: Number of the shard, counted from 0.
        count: Number of shards in the set.
    """

    set: str
    number: int
    count: int

    @classmethod
    def of(cls, metadata: dict[str, Any]) -> Self | None:
        """Return the shard in some metadata; None without a valid entry (it may be a user's)."""
        match metadata.get(SHARD):
            case {"set": str(name), "number": int(number), "count": int(count)} if 0 <= number < count:
                return cls(name, number, count)
        return None

    def entry(self) -> dict[str, Any]:
        """Return the metadata entry."""
        return {SHARD: asdict(self)}


def new_set(count: int) -> list[Shard]:
    """Return the shards of a new set, in order."""
    name = secrets.token_hex(16)
    return [Shard(name, number, count) for number in range(count)]


def shard_path(out: str, number: int, count: int) -> str:
    """Return the name of shard `number` of `count`, such as `train-00000-of-00004.frec`."""
    return f"{out.removesuffix('.frec')}-{number:05d}-of-{count:05d}.frec"


def without_origin(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return metadata without the entries about shards and source files."""
    return {key: value for key, value in metadata.items() if key not in (SHARD, MADE_OF)}


def made_of(readers: Iterable[Reader]) -> dict[str, Any]:
    """Return the metadata of a file made from others: their ids, and the ids of all sources."""
    origins = (origin for reader in readers for origin in (reader.file_id, *_origins(reader.metadata)))
    return {MADE_OF: list(dict.fromkeys(origins))}


def check_together(readers: Sequence[Reader], *, option: str = "allow_incomplete=True") -> None:
    """Refuse files that together lack records of a shard set, or hold records twice.

    Args:
        readers: The files.
        option: The option that accepts them, for error messages.

    Raises:
        FastRecordError: a shard of a set is missing, or present twice; or a file was made from
            another one of them.
    """
    about = [(reader, reader.metadata) for reader in readers]
    _check_origins(about, option)
    sets: dict[str, list[tuple[Shard, str]]] = {}
    for reader, metadata in about:
        shard = Shard.of(metadata)
        if shard is not None:
            sets.setdefault(shard.set, []).append((shard, os.fspath(reader.path)))
    paths = {os.path.realpath(reader.path) for reader in readers}
    for shards in sets.values():
        _check_set(shards, paths, option)


def _origins(metadata: dict[str, Any]) -> list[str]:
    found = metadata.get(MADE_OF)
    return [origin for origin in found if isinstance(origin, str)] if isinstance(found, list) else []


def _check_origins(about: Sequence[tuple[Reader, dict[str, Any]]], option: str) -> None:
    by_id = {reader.file_id: reader for reader, _ in about}
    for reader, metadata in about:
        for origin in _origins(metadata):
            if origin in by_id and origin != reader.file_id:
                raise Code.RECORDS_TWICE.error(
                    f"{reader.path}: was made of {by_id[origin].path}, and together they hold records twice: leave out "
                    f"one, or move it to another folder; {option} takes both"
                )


def _check_set(shards: Sequence[tuple[Shard, str]], paths: set[str], option: str) -> None:
    first, where = shards[0]
    by_number: dict[int, str] = {}
    for shard, path in shards:
        if shard.count != first.count:
            raise Code.RECORDS_TWICE.error(
                f"{path}: has {shard.count:,} shards in its set, where {where} has {first.count:,}"
            )
        other = by_number.setdefault(shard.number, path)
        if os.path.realpath(other) != os.path.realpath(path):
            raise Code.RECORDS_TWICE.error(
                f"{path}: is the same shard as {other}, {shard.number} of {first.count:,}, counted from 0: remove one "
                f"of them; {option} takes both"
            )
    lacking = first.count - len(by_number)
    if lacking == 0:
        return
    absent = (number for number in range(first.count) if number not in by_number)
    missing = [_sibling(where, number, first.count) for number in islice(absent, _NAMED)]
    more = f" and {lacking - len(missing):,} more" if lacking > len(missing) else ""
    names = ", ".join(missing) + more
    if any(os.path.realpath(path) in paths for path in missing):
        raise Code.RECORDS_TWICE.error(
            f"{names}: not of the same set as {where}: shards of two packs are mixed, as after an `--overwrite` "
            f"that was stopped: pack again with `--overwrite`; {option} takes them"
        )
    verb = "is" if lacking == 1 else "are"
    raise Code.MISSING_SHARDS.error(
        f"{names}: {verb} missing: {where} is one of {first.count:,} shards that are one data set: name all of them, "
        "or their folder; `fastrecord pack --resume` finishes a pack that was stopped; "
        f"{option} accepts the others"
    )


def _sibling(path: str, number: int, count: int) -> str:
    """Return the path of another shard of the same set; its number if the path has none."""
    if not _NAME.search(path):
        return f"shard {number} of {count:,}, counted from 0"
    return shard_path(_NAME.sub("", path), number, count)
