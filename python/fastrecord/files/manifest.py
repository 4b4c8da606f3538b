"""`write_manifest`, `check_manifest` and `clean_manifest`: the manifest of a folder of shards, on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fastrecord._core import FastRecordError
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry
from fastrecord.errors import Code, system_text
from fastrecord.files.publish.local import LocalSet
from fastrecord.files.publish.shards import Result, Show, next_manifest, no_manifest, or_raise
from fastrecord.files.publish.write_folder import CleanedFile, settle_dead
from fastrecord.store import is_url
from fastrecord.store.store import Store

if TYPE_CHECKING:
    from fastrecord.files.publish.remote import RemoteSet


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


def write_manifest(
    folder: str | os.PathLike[str],
    *,
    allow_incomplete: bool = False,
    store: Store | None = None,
    progress: Show | None = None,
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
    place = _set_of(folder, store)
    with place.changing():
        if isinstance(place, LocalSet):
            settle_dead(place.where)
        before, names = place.read(), place.names()
        if not names:
            raise FileNotFoundError(
                f"{place.where}: no .frec file in this folder: `fastrecord pack --shards` makes shards"
            )
        return _renew(place, before, names, allow_incomplete=allow_incomplete, progress=progress)


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
    place = LocalSet(os.path.dirname(os.path.abspath(paths[0])))
    if any(os.path.dirname(os.path.abspath(path)) != place.where for path in paths):
        return None
    path = os.path.join(place.where, NAME)
    new = [os.path.basename(path) for path in paths]
    if not all(name.endswith(".frec") for name in new) or (only_renew and not os.path.exists(path)):
        return None
    with place.changing():
        try:
            before = place.read()
        except FastRecordError:
            if only_renew:  # it may belong to another program
                return None
            raise
        named = set() if before is None else set(before.columns["name"])
        others = [name for name in place.names() if name not in new]
        if named.isdisjoint(new):
            if only_renew:
                return None
            if others:
                about = "names another data set" if not named.isdisjoint(others) else "is not written"
                also = f"the folder also has {others[0]}" + (f" and {len(others) - 1:,} more" if others[1:] else "")
                return NewShards(None, f"{path}: {about}: {also}: `fastrecord manifest` makes all of them one data set")
        # A named shard that is missing stays named: reading it is an error, losing it would be none.
        keep = [] if before is None or named.isdisjoint(new) else before.columns["name"]
        _renew(place, before, list(dict.fromkeys([*new, *keep])), look_at=set(new))
    return NewShards(path, None)


def _set_of(folder: str | os.PathLike[str], store: Store | None = None) -> LocalSet | RemoteSet:
    if not is_url(folder):
        return LocalSet(folder)
    from fastrecord.files.publish.remote import RemoteSet  # with what requests need

    return RemoteSet.of(os.fspath(folder), store)


def _renew(
    place: LocalSet | RemoteSet,
    before: Manifest | None,
    names: Sequence[str],
    *,
    look_at: AbstractSet[str] | None = None,
    allow_incomplete: bool = False,
    progress: Show | None = None,
) -> ManifestSummary:
    """Write the manifest that names some files, if it differs from the one before.

    Args:
        place: What is being changed.
        before: Its manifest.
        names: The files: the ones that it names keep their order, new ones follow.
        look_at: The ones to open; others stay as they are named. Default: all.
        allow_incomplete: As for `write_manifest`.
        progress: Likewise.
    """
    known = {} if before is None else {entry.name: entry for entry in before.entries()}
    present = set(names)
    order = list(dict.fromkeys([*filter(present.__contains__, known), *names]))
    opened = [name for name in order if look_at is None or name in look_at]
    found = dict(zip(opened, map(or_raise, place.open(opened, progress)), strict=True))
    schema = found[opened[0]].schema if before is None or len(found) == len(order) else before.schema
    entries = [found[name].entry if name in found else known[name] for name in order]
    shards = list(found.values())
    made = next_manifest(place.where, before, shards, entries, schema, allow_incomplete=allow_incomplete)
    if made != before:
        place.put(made)
    return ManifestSummary.of(
        place.where,
        made,
        [entry.name for entry in entries if entry.name not in known],
        [entry.name for entry in entries if known.get(entry.name, entry) != entry],
        sorted(known.keys() - set(order)),
    )


def check_manifest(
    folder: str | os.PathLike[str],
    *,
    store: Store | None = None,
    progress: Show | None = None,
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
    place = _set_of(folder, store)
    manifest = place.read()
    if manifest is None:
        raise no_manifest(place.where)
    names, entries = place.names() if place.lists else [], manifest.entries()
    results = place.open([entry.name for entry in entries], progress)
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
    place = LocalSet(folder)
    with place.changing():
        return settle_dead(place.where)


def _differences(manifest: Manifest, entry: ShardEntry, result: Result) -> Iterator[tuple[str, str]]:
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
