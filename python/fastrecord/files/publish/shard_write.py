"""`ShardWrite`: shards of several processes become part of a data set at once, or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

from fastrecord.checks import choice
from fastrecord.dataset.manifest import Manifest
from fastrecord.errors import Code
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.manifest import ManifestSummary, write_manifest
from fastrecord.files.publish.local import LocalSet, footer_checksum
from fastrecord.files.publish.shards import FoundShard, next_manifest
from fastrecord.files.publish.staging import sync_folder
from fastrecord.files.publish.write_folder import WriteFolder, settle_dead
from fastrecord.schema import Schema
from fastrecord.schema.shard_sets import shard_path

WriteMode: TypeAlias = Literal["error", "append", "overwrite"]
_SCHEMA = "schema.json"


class ShardWrite:
    """A write of shards to a folder; a context manager in the process that commits them.

    Other processes make shards in `staging`, under names of `new_name`, and report them by
    `find_shard`. `commit` moves the ones that it is given into the folder and adds them to the
    manifest in one step. All others are removed at the end.

    Args:
        folder: The folder of the data set; it is made if it does not exist.
        mode: "error": refuse a folder that holds a data set; "append": add to it; "overwrite":
            replace it.

    Attributes:
        folder: The folder, absolute.
        staging: Where shards are made: a hidden folder in it.

    Raises:
        ValueError: no such mode, or the folder is a URL.
    """

    def __init__(self, folder: str | os.PathLike[str], mode: WriteMode) -> None:
        choice("mode", mode, get_args(WriteMode))
        self.folder, self._mode = local_folder(folder), mode
        self._set = LocalSet(self.folder)
        self.staging = ""
        self._made_folder = False
        self._write: WriteFolder | None = None

    def __enter__(self) -> Self:
        """Begin the write; first end the ones of killed processes.

        Raises:
            FileExistsError: the folder holds a data set, and the mode is "error".
            FastRecordError: it holds files that are not one data set.
            OSError: nothing can be written there.
        """
        self._made_folder = not os.path.isdir(self.folder)
        os.makedirs(self.folder, exist_ok=True)
        with self._set.changing():
            settle_dead(self.folder)
            manifest, names = self._before()
        if manifest is None and names:
            # Without a manifest, readers would take shards one by one as they come.
            write_manifest(self.folder, allow_incomplete=self._mode == "overwrite")
            manifest = self._set.read()
        self._write = WriteFolder.make(self.folder)
        self.staging = self._write.path
        if self._mode == "append" and manifest is not None and len(manifest):
            agreed_schema(self.staging, manifest.schema)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._write is not None:
            with HeldInterrupt() as interrupt, self._set.changing():
                self._write.end()
            if interrupt.pending:
                raise KeyboardInterrupt(f"{self.folder}: the write has ended")
        if self._made_folder:
            with suppress(OSError):  # it holds the data set
                os.rmdir(self.folder)

    def commit(self, shards: Sequence[FoundShard]) -> ManifestSummary:
        """Make shards part of the data set, in this order; nothing of it if this fails.

        Args:
            shards: As `find_shard` returned them.

        Raises:
            FastRecordError: there are none; they, or the data set, have other fields; a shard is
                not here.
            FileExistsError: another process has written a data set there meanwhile.
        """
        write = self._write
        if write is None:
            raise RuntimeError("commit belongs into the `with` block of the write")
        if not shards:
            raise Code.SOURCE.error(f"{self.folder}: nothing was written: the input has no records")
        with HeldInterrupt() as interrupt, self._set.changing():
            before, names = self._before()
            for shard in shards:
                _check_staged(os.path.join(self.staging, shard.entry.name), shard)
            renamed = [
                replace(shard, entry=replace(shard.entry, name=shard_path(f"shard-{write.id[:8]}", i, len(shards))))
                for i, shard in enumerate(shards)
            ]
            first = before is None
            if before is None:
                before = Manifest.of([], shards[0].schema)
            kept = [] if self._mode == "overwrite" else before.entries()
            schema = before.schema if kept else shards[0].schema
            entries = kept + [shard.entry for shard in renamed]
            made = next_manifest(self.folder, before, renamed, entries, schema)
            added = [shard.entry.name for shard in renamed]
            replaced = names if self._mode == "overwrite" else []
            write.note(added, replaced, made_manifest=first)
            if first:
                self._set.put(before)
            for old, new in zip(shards, renamed, strict=True):
                target = os.path.join(self.folder, new.entry.name)
                if os.path.lexists(target):
                    raise FileExistsError(f"{target}: exists already, though this write has chosen its name at random")
                os.rename(os.path.join(self.staging, old.entry.name), target)
            sync_folder(self.folder)
            self._set.put(made)
        if interrupt.pending:
            raise KeyboardInterrupt(f"{self.folder}: the records are in the data set")
        return ManifestSummary.of(self.folder, made, added, removed=replaced)

    def _before(self) -> tuple[Manifest | None, list[str]]:
        """Return the manifest of the folder, and the names of the shards that are its data set."""
        manifest = self._set.read()
        names = self._set.names() if manifest is None else list(manifest.columns["name"])
        if names and self._mode == "error":
            raise FileExistsError(
                f'{self.folder}: holds a data set already: mode="append" adds to it, mode="overwrite" replaces it'
            )
        return manifest, names


def local_folder(folder: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder to write to.

    Raises:
        ValueError: it is a URL.
    """
    path = os.fspath(folder)
    if "://" in path:
        raise ValueError(f"{path}: data sets are written to folders: name one on a file system that all machines share")
    return os.path.abspath(os.path.expanduser(path))


def new_name() -> str:
    """Return a name that no other shard of any write has."""
    return f"{secrets.token_hex(8)}.frec"


def agreed_schema(staging: str, schema: Schema) -> Schema:
    """Return the fields that all shards of a write have: the ones of the process that asks first.

    Args:
        staging: `ShardWrite.staging`.
        schema: The fields that this process would choose.

    Raises:
        FileNotFoundError: the write has ended, or its folder is not on a file system that all
            machines share.
    """
    path = os.path.join(staging, _SCHEMA)
    try:
        with suppress(FileExistsError):
            mine = os.path.join(staging, f"{secrets.token_hex(8)}.json")
            with open(mine, "x", encoding="utf-8") as file:
                json.dump(schema._to_rows(), file)
            try:
                os.link(mine, path)
            finally:
                os.unlink(mine)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError as err:
        raise FileNotFoundError(
            f"{staging}: the folder of this write is not on this machine: the write has ended, or the data set's "
            "folder is not on a file system that all machines share"
        ) from err
    return Schema._from_rows(found)


def _check_staged(path: str, shard: FoundShard) -> None:
    """Check that a shard is here and whole, without opening it."""
    entry = shard.entry
    try:
        crc = footer_checksum(path, entry.bytes)
    except FileNotFoundError as err:
        raise Code.MISSING_SHARDS.error(
            f"{path}: a task has written this shard, but it is not on this machine: write to a file system that all "
            "machines share"
        ) from err
    if crc != entry.footer_crc:
        raise Code.REPLACED.error(f"{path}: the shard is another than the one that a task has written")
