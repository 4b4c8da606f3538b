"""`write_manifest`, `check_manifest` and `clean_manifest`: the manifest of a folder of shards, on disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from fastrecord._core import FastRecordError, Reader, crc32c, default_threads
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry, folder_of, read_manifest
from fastrecord.errors import Code, system_text
from fastrecord.files.staging import Staging, remove_stale
from fastrecord.files.writes.folder import CleanedFile, settle_dead
from fastrecord.schema import Schema
from fastrecord.schema.classes import class_names
from fastrecord.schema.roles import plain
from fastrecord.store import is_url
from fastrecord.store.store import Store
from fastrecord.store.threads import in_order

_PAGE = 4096
_Show = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """What `write_manifest` did.

    Attributes:
        path: The manifest.
        generation: Its generation.
        shards: Its shards.
        records: Their records.
        bytes: Their bytes.
        added: Names of shards that it did not name before.
        renewed: Names of shards that it names at another commit, or that are other files.
        removed: Names of shards that it named before and that do not exist.
    """

    path: str
    generation: int
    shards: int
    records: int
    bytes: int
    added: list[str]
    renewed: list[str]
    removed: list[str]

    @classmethod
    def of(
        cls,
        folder: str,
        manifest: Manifest,
        added: Sequence[str],
        renewed: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> Self:
        """Return the summary of a manifest that was written, and of what has changed."""
        path, size = os.path.join(folder, NAME), sum(manifest.columns["bytes"])
        counts = manifest.generation, len(manifest), manifest.records, size
        return cls(path, *counts, list(added), list(renewed), list(removed))

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ManifestFinding:
    """A difference between a manifest and its folder.

    Attributes:
        name: The shard's file name.
        kind: "missing": no such file. "extra": the manifest does not name it. "replaced": another
            file. "grown": it has later commits. "shrunk": it lacks the commit. "changed": another
            footer at the same commit. "schema" or "classes": others than the data set's.
            "unreadable": it cannot be opened.
        message: What was found.
    """

    name: str
    kind: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NewShards:
    """What became of new shards.

    Attributes:
        manifest: The manifest that names them; None without one.
        left: Why no manifest names them; None if one does.
    """

    manifest: str | None
    left: str | None


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


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    allow_incomplete: bool = False,
    store: Store | None = None,
    progress: _Show | None = None,
) -> ManifestSummary:
    """Make `dataset.json` name all .frec files of a folder at their newest commits.

    Shards that it names already keep their order; new ones follow, sorted by name. The manifest is
    replaced at once and durably. It is not rewritten if nothing has changed. Another process that
    writes it at the same time waits. What killed writes have left is removed first, as
    `clean_manifest` does.

    Args:
        folder: The folder, or its URL in an object store.
        allow_incomplete: Take shards whose packing was not finished.
        store: For a URL, options of the object store.
        progress: Called with the number of shards opened, and of all.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no .frec file.
        SchemaError: a shard has other fields than the first.
        FastRecordError: the packing of a shard was not finished; two files are copies of one shard.
        CorruptFileError: a shard, or the present manifest, is damaged.
    """
    if is_url(folder):
        from fastrecord.files.transfer import write_remote_manifest  # it uses what is below

        made, before = write_remote_manifest(
            os.fspath(folder), allow_incomplete=allow_incomplete, store=store, progress=progress
        )
        return _summary(folder_of(os.fspath(folder)), made, before)
    folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    with manifest_lock(folder):
        settle_dead(folder)
        before = read_manifest(folder)
        names = shard_names(folder)
        if not names:
            raise FileNotFoundError(f"{folder}: no .frec file in this folder: `fastrecord pack --shards` makes shards")
        return _renew(folder, before, names, allow_incomplete=allow_incomplete, progress=progress)


def name_new_shards(paths: Sequence[str], *, only_renew: bool) -> NewShards | None:
    """Make the manifest of a folder name new files, where they are its data set.

    Files that no manifest names, or another data set's shards, never become part of a data set by
    this: `write_manifest` does that.

    Args:
        paths: Files of one set, in the order of their records. Their packing is complete.
        only_renew: Only if a manifest names some of them already.

    Returns:
        What was done; None if nothing was to be done.

    Raises:
        FastRecordError, OSError: as `write_manifest`.
    """
    folder = os.path.dirname(os.path.abspath(paths[0]))
    if any(os.path.dirname(os.path.abspath(path)) != folder for path in paths):
        return None
    path = os.path.join(folder, NAME)
    new = [os.path.basename(path) for path in paths]
    if not all(name.endswith(".frec") for name in new) or (only_renew and not os.path.exists(path)):
        return None
    with manifest_lock(folder):
        try:
            before = read_manifest(folder)
        except FastRecordError:
            if only_renew:  # it may belong to another program
                return None
            raise
        named = set() if before is None else set(before.columns["name"])
        others = [name for name in shard_names(folder) if name not in new]
        if named.isdisjoint(new):
            if only_renew:
                return None
            if others:
                about = "names another data set" if not named.isdisjoint(others) else "is not written"
                also = f"the folder also has {others[0]}" + (f" and {len(others) - 1:,} more" if others[1:] else "")
                return NewShards(None, f"{path}: {about}: {also}: `fastrecord manifest` makes all of them one data set")
        # A named shard that is missing stays named: reading it is an error, losing it would be none.
        keep = [] if before is None or named.isdisjoint(new) else before.columns["name"]
        _renew(folder, before, list(dict.fromkeys([*new, *keep])), look_at=set(new))
    return NewShards(path, None)


def _renew(
    folder: str,
    before: Manifest | None,
    names: Sequence[str],
    *,
    look_at: AbstractSet[str] | None = None,
    allow_incomplete: bool = False,
    progress: _Show | None = None,
) -> ManifestSummary:
    """Write the manifest that names some files, if it differs from the one before.

    Args:
        folder: The folder, locked.
        before: Its manifest.
        names: The files.
        look_at: The ones to open; others stay as they are named. Default: all.
        allow_incomplete: As for `write_manifest`.
        progress: Likewise.
    """
    known = {} if before is None else {entry.name: entry for entry in before.entries()}
    order = shard_order(before, names)
    opened = [name for name in order if look_at is None or name in look_at]
    found = dict(zip(opened, map(or_raise, _open_all(folder, opened, progress)), strict=True))
    schema = found[opened[0]].schema if before is None or len(found) == len(order) else before.schema
    entries = [found[name].entry if name in found else known[name] for name in order]
    made = next_manifest(folder, before, list(found.values()), entries, schema, allow_incomplete=allow_incomplete)
    if made == before:
        remove_stale(os.path.join(folder, NAME))
    else:
        put_manifest(folder, made)
    return _summary(folder, made, before)


def _summary(folder: str, made: Manifest, before: Manifest | None) -> ManifestSummary:
    """Return what a new manifest has changed."""
    known = {} if before is None else {entry.name: entry for entry in before.entries()}
    entries = made.entries()
    return ManifestSummary.of(
        folder,
        made,
        [entry.name for entry in entries if entry.name not in known],
        [entry.name for entry in entries if known.get(entry.name, entry) != entry],
        sorted(set(known) - {entry.name for entry in entries}),
    )


def check_manifest(
    folder: str | os.PathLike[str],
    *,
    store: Store | None = None,
    progress: _Show | None = None,
) -> list[ManifestFinding]:
    """Compare `dataset.json` of a folder with the .frec files there; change nothing.

    Reads the head and the newest footer of each shard, not its records: `fastrecord verify` does.

    Args:
        folder: The folder, or its URL in an object store. A store that cannot list files (https) is
            not looked through for files that the manifest does not name.
        store: For a URL, options of the object store.
        progress: Called with the number of shards opened, and of all.

    Returns:
        What differs, in the order of the manifest, then files that it does not name.

    Raises:
        FileNotFoundError: the folder has no manifest.
        CorruptFileError: the manifest is damaged.
    """
    names: list[str]
    if is_url(folder):
        from fastrecord.files.transfer import open_remote_shards, read_remote_folder  # it uses what is below

        source, manifest, names = read_remote_folder(os.fspath(folder), store)
        entries = manifest.entries()
        results = open_remote_shards(source, [entry.name for entry in entries], progress)
    else:
        folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        here = read_manifest(folder)
        if here is None:
            raise no_manifest(folder)
        manifest, names = here, shard_names(folder)
        entries = manifest.entries()
        results = _open_all(folder, [entry.name for entry in entries], progress)
    findings: list[ManifestFinding] = []
    for entry, result in zip(entries, results, strict=True):
        for kind, message in _differences(manifest, entry, result):
            findings.append(ManifestFinding(entry.name, kind, message))
    named = set(manifest.columns["name"])
    extra = [name for name in names if name not in named]
    return findings + [ManifestFinding(name, "extra", "the manifest does not name it") for name in extra]


def clean_manifest(folder: str | os.PathLike[str]) -> list[CleanedFile]:
    """Remove what killed writes of shards have left in a folder: shards that its manifest does not name.

    It never removes shards of a write that runs, or may run on another machine, nor files that no
    such write has made. The data set stays as it is.

    Args:
        folder: The folder.

    Returns:
        What was removed, and what was left and why.

    Raises:
        FileNotFoundError: the folder does not exist.
        CorruptFileError: the manifest is damaged.
    """
    if is_url(folder):
        raise Code.REMOTE.error(
            f"{folder}: is in an object store: `fastrecord manifest --check` lists files that the data set does not "
            "have as extra; when no pack is sending any, delete them with the store's own tools"
        )
    folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    with manifest_lock(folder):
        return settle_dead(folder)


def add_shards(folder: str, before: Manifest, shards: Sequence[FoundShard], *, replace_all: bool = False) -> Manifest:
    """Return the manifest that follows another one and names more shards; opens none, writes nothing.

    Args:
        folder: The folder, for messages.
        before: The manifest that it follows.
        shards: The shards to add at the end, as `find_shard` returns them.
        replace_all: Leave out the shards that `before` names.

    Raises:
        SchemaError: a shard has other fields.
        FastRecordError: two files are copies of one shard, or a shard is not complete.
    """
    kept = [] if replace_all else before.entries()
    schema = before.schema if kept else shards[0].schema
    entries = kept + [shard.entry for shard in shards]
    _refuse_mixture(folder, shards, entries, schema, allow_incomplete=False)
    made = replace(before, schema=schema, generation=before.generation + 1)
    return made.with_shards(entries)


def next_manifest(
    folder: str,
    before: Manifest | None,
    found: Sequence[FoundShard],
    entries: Sequence[ShardEntry],
    schema: Schema,
    *,
    allow_incomplete: bool,
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
    _refuse_mixture(folder, found, entries, schema, allow_incomplete=allow_incomplete)
    if before is None:
        return Manifest.of(entries, schema)
    made = replace(before, schema=schema).with_shards(entries)
    return made if made == before else replace(made, generation=before.generation + 1)


def find_shard(folder: str, name: str) -> FoundShard:
    """Open a shard and return what a manifest says of it.

    Raises:
        CorruptFileError, OSError: it cannot be read.
    """
    return or_raise(_open(folder, name))


def or_raise(result: FoundShard | Exception) -> FoundShard:
    """Return a shard, or raise why it could not be opened."""
    if isinstance(result, Exception):
        raise result
    return result


def shard_order(before: Manifest | None, names: Sequence[str]) -> list[str]:
    """Return names of shards as a manifest orders them: the ones that it names already, then the new ones."""
    present = set(names)
    known = [] if before is None else [name for name in before.columns["name"] if name in present]
    return list(dict.fromkeys([*known, *names]))


def no_manifest(folder: str) -> FileNotFoundError:
    """Return the error of a folder or URL without a manifest."""
    return FileNotFoundError(f"{folder}: no {NAME} in this folder: `fastrecord manifest {folder}` makes one")


@contextmanager
def manifest_lock(folder: str) -> Iterator[None]:
    """Let one process at a time change a folder's manifest; the lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: `put_manifest` compares generations
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def put_manifest(folder: str, manifest: Manifest) -> None:
    """Replace the manifest of a folder durably; the caller holds its lock.

    Raises:
        FastRecordError: the present one is not the one before.
    """
    path = os.path.join(folder, NAME)
    with Staging(path, overwrite=True) as staging:
        with open(staging.path, "wb") as file:
            file.write(manifest.dump())
            file.flush()
            os.fsync(file.fileno())
        now = read_manifest(folder)
        if (0 if now is None else now.generation) != manifest.generation - 1:
            raise Code.REPLACED.error(f"{path}: another process has replaced it meanwhile: run the command again")
        staging.finish()


def last_page(path: str, end: int) -> bytes:
    """Return the page of a file on this machine that ends at a byte."""
    with open(path, "rb") as file:
        return os.pread(file.fileno(), _PAGE, max(0, end - _PAGE))


def footer_checksum(path: str, size: int) -> int:
    """Return the CRC-32C of the footer that ends the first `size` bytes of a file, without the footer's own."""
    return crc32c(last_page(path, size)[:-4])


def shard_names(folder: str) -> list[str]:
    """Return the names of the .frec files in a folder, sorted, without hidden ones."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".frec") and not name.startswith("."))


def open_in_order(
    open_one: Callable[[str], FoundShard | Exception], names: Sequence[str], threads: int, progress: _Show | None
) -> Iterator[FoundShard | Exception]:
    """Open shards on threads, none of them for longer than it takes; yield in order."""
    for done, found in enumerate(in_order(open_one, names, threads, "fastrecord-open"), 1):
        yield found
        if progress is not None:
            progress(done, len(names))


def _open_all(folder: str, names: Sequence[str], progress: _Show | None) -> Iterator[FoundShard | Exception]:
    return open_in_order(lambda name: _open(folder, name), names, default_threads(), progress)


def _open(folder: str, name: str) -> FoundShard | Exception:
    path = os.path.join(folder, name)
    try:
        with Reader(path) as reader:
            about = (reader.file_id, reader.commit, len(reader), reader.nbytes, reader.footer_crc)
            return FoundShard.of(ShardEntry(name, *about, class_names(reader)), reader)
    except (FastRecordError, OSError) as err:
        return err


def _refuse_mixture(
    folder: str,
    found: Sequence[FoundShard],
    entries: Sequence[ShardEntry],
    schema: Schema,
    *,
    allow_incomplete: bool,
) -> None:
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


def _differences(manifest: Manifest, entry: ShardEntry, result: FoundShard | Exception) -> Iterator[tuple[str, str]]:
    if isinstance(result, FileNotFoundError):
        yield "missing", "the file does not exist"
        return
    if isinstance(result, Exception):
        yield "unreadable", system_text(result) if isinstance(result, OSError) else str(result)
        return
    now = result.entry
    if now.file_id != entry.file_id:
        yield "replaced", "the file is another than the manifest names"
    elif now.commit > entry.commit:
        more = now.records - entry.records
        yield "grown", f"it is at commit {now.commit}, not {entry.commit}, and has {more:,} records more"
    elif now.commit < entry.commit:
        yield "shrunk", f"it is at commit {now.commit}, and the manifest names {entry.commit}"
    elif replace(now, classes=entry.classes) != entry:
        yield "changed", f"commit {now.commit} is another than the manifest names"
    if result.schema != manifest.schema:
        yield "schema", "its fields are others than the data set has"
    if now.classes != entry.classes:
        yield "classes", "its classes are others than the manifest has"
