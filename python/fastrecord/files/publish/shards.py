"""`FoundShard` and `next_manifest`: which manifest follows when shards were found or made. Opens and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from fastrecord._core import Reader
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry
from fastrecord.errors import Code
from fastrecord.schema import Schema
from fastrecord.schema.roles import plain
from fastrecord.store.threads import in_order

Show = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A shard at its newest commit.

    Attributes:
        entry: As a manifest names it.
        schema: Its fields, without their compression.
        complete: Whether its packing was finished.
    """

    entry: ShardEntry
    schema: Schema
    complete: bool

    @classmethod
    def of(cls, entry: ShardEntry, reader: Reader) -> Self:
        """Return an opened shard."""
        return cls(entry, Schema({field: plain(kind) for field, kind in reader.schema.items()}), reader.complete)


# A shard, or why it could not be opened.
Result = FoundShard | Exception


def or_raise(result: Result) -> FoundShard:
    """Return a shard, or raise why it could not be opened."""
    if isinstance(result, Exception):
        raise result
    return result


def open_in_order(
    open_one: Callable[[str], Result], names: Sequence[str], threads: int, show: Show | None
) -> Iterator[Result]:
    """Open shards on threads, none of them for longer than it takes; yield in order."""
    for done, found in enumerate(in_order(open_one, names, threads, "fastrecord-open"), 1):
        yield found
        if show is not None:
            show(done, len(names))


def no_manifest(folder: str) -> FileNotFoundError:
    """Return the error of a folder or URL without a manifest."""
    return FileNotFoundError(f"{folder}: no {NAME} in this folder: `fastrecord manifest {folder}` makes one")


def replaced_meanwhile(path: str) -> Exception:
    """Return the error of a manifest, at a path or URL, that is not the one that was read."""
    return Code.REPLACED.error(f"{path}: another process has replaced it meanwhile: run the command again")


def next_manifest(
    folder: str,
    before: Manifest | None,
    found: Sequence[FoundShard],
    entries: Sequence[ShardEntry],
    schema: Schema,
    *,
    allow_incomplete: bool = False,
) -> Manifest:
    """Return the manifest that names these shards: `before` if nothing has changed, else the one that follows it.

    Args:
        folder: The folder or URL, for messages.
        before: Its present manifest.
        found: The shards that were opened.
        entries: All shards.
        schema: Their fields.
        allow_incomplete: As for `write_manifest`.

    Raises:
        SchemaError: a shard has other fields.
        FastRecordError: two files are copies of one shard, or a shard is not complete.
    """
    for shard in found:
        path = os.path.join(folder, shard.entry.name)
        if shard.schema != schema:
            raise Code.FIELDS_DIFFER.error(
                f"{path}: its fields differ from those in {os.path.join(folder, entries[0].name)}"
            )
        if not shard.complete and not allow_incomplete:
            raise Code.INCOMPLETE.error(
                f"{path}: packing was not finished: `fastrecord pack --resume`, or `--allow-incomplete`"
            )
    ids: dict[str, str] = {}
    for entry in entries:
        other = ids.setdefault(entry.file_id, entry.name)
        if other != entry.name:
            path = os.path.join(folder, entry.name)
            raise Code.RECORDS_TWICE.error(f"{path}: is a copy of {other}: remove one of them")
    if before is None:
        return Manifest.of(entries, schema)
    made = replace(before, schema=schema).with_shards(entries)
    return made if made == before else replace(made, generation=before.generation + 1)
