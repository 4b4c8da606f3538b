"""`Shards`: one or more files read as one sequence of records.

Does not know labels, images or views.
"""

from __future__ import annotations

import glob
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrecord._core import Contents, Reader, open_shard, open_snapshot
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry, folder_of, read_manifest
from fastrecord.errors import Code
from fastrecord.names import as_name, name_some
from fastrecord.schema import Schema
from fastrecord.schema.classes import class_names
from fastrecord.schema.roles import plain
from fastrecord.schema.shard_sets import check_together
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.store import refuse_other

if TYPE_CHECKING:  # what needs no store does without it
    from fastrecord.store.cache import Cache
    from fastrecord.store.shard_source import CachedFolder, ShardSource
    from fastrecord.store.store import Store

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Mapping[str, Any]]

_PAGE = 4096
# What a snapshot needs to open its file.
_SNAPSHOT = ("path", "file_id", "commit", "bytes")
# What a manifest says of a shard before it is opened.
_ABOUT = ("name", "file_id", "commit", "records", "bytes", "footer_crc")

# A file, and its snapshot if given.
Found: TypeAlias = tuple[str, Mapping[str, Any] | None]


@dataclass(frozen=True)
class Named:
    """The shards that a folder's manifest names.

    Attributes:
        folder: The folder, absolute, or its URL.
        manifest: Its manifest.
        source: Brings the shards, if they are in an object store.
    """

    folder: str
    manifest: Manifest
    source: CachedFolder | None = None

    @property
    def paths(self) -> list[str]:
        """The path of each shard, as it may be shown and stored."""
        return [str(path) for path in self.openable]

    @property
    def openable(self) -> list[str]:
        """The path of each shard; a URL with what is hidden in it."""
        names = self.manifest.columns["name"]
        return [f"{self.folder}/{name}" if self.source is None else self.source.folder.file_url(name) for name in names]

    def about(self, shard: int) -> tuple[Any, ...]:
        """Return what the manifest says of a shard: `_ABOUT`."""
        return tuple(self.manifest.columns[name][shard] for name in _ABOUT)

    def supply(self, shard: int) -> ShardSource | None:
        """Return what brings a shard; None if it is on this machine."""
        return None if self.source is None else self.source.supply(*self.about(shard))


def find_sets(paths: Paths, store: Store | None = None) -> list[Found | Named]:
    """Return the files that an argument names, those with a manifest together.

    Args:
        paths: A file, a folder (the shards that its `dataset.json` names, in that order; without
            one its `*.frec` files, sorted), a `dataset.json`, a glob pattern (sorted; `**` works),
            or a sequence of these, whose order is kept. In a sequence, a file may also be a
            snapshot: an item of `Shards.snapshots`. A URL names a folder with a `dataset.json`, or
            one file.
        store: How URLs are read.

    Raises:
        FileNotFoundError: nothing is there, or a folder or pattern holds no file.
        ValueError: an empty sequence, or a snapshot lacks a key.
        CorruptFileError: a `dataset.json` is damaged. TypeError: `store` is something else.
    """
    refuse_other(store)
    if isinstance(paths, (str, os.PathLike)):
        return _find(paths, store)
    files: list[Found | Named] = []
    for path in paths:
        if not isinstance(path, Mapping):
            files += _find(path, store)
            continue
        if lacking := [key for key in _SNAPSHOT if key not in path]:
            raise ValueError(f"a snapshot has the keys {', '.join(_SNAPSHOT)}, but this one has no {lacking[0]!r}")
        if is_url(path["path"]):
            files.append(_find_url(path["path"], store, path))
            continue
        files.append((_absolute(path["path"]), path))
    if not files:
        raise ValueError("no path given: name at least one .frec file")
    return files


def find_files(paths: Paths) -> list[str]:
    """Return the absolute path of each file that an argument names, or a URL that opens it; see `find_sets`."""
    found: list[str] = []
    for part in find_sets(paths):
        found += part.openable if isinstance(part, Named) else [part[0]]
    return found


def at_snapshots(paths: Paths, snapshots: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return snapshots of files that may have moved since: `paths` names them, in order.

    Raises:
        FileNotFoundError: nothing is at a path.
        ValueError: the number of snapshots differs from the number of files.
    """
    files = find_files(paths)
    if len(files) != len(snapshots):
        raise ValueError(f"there are {len(snapshots)} snapshots for {len(files)} files: give one for each, in order")
    return [{**snapshot, "path": path} for path, snapshot in zip(files, snapshots, strict=True)]


def open_file(
    path: str, snapshot: Mapping[str, Any] | None, access: str, verify: bool | Literal["once"] = "once"
) -> Reader:
    """Open a file at the commit of a snapshot, or at its newest commit.

    Args:
        path: Its path.
        snapshot: An item of `Shards.snapshots`, or None.
        access: "mmap" or "pread".
        verify: When payloads are checked, unless a call overrides it.

    Raises:
        FastRecordError: the file differs from its snapshot.
    """
    if snapshot is None:
        return Reader(path, access, verify=verify)
    # A commit ends with its footer of one page.
    end = snapshot["bytes"] - _PAGE
    about = (snapshot["file_id"], snapshot["commit"], end, snapshot.get("footer_crc"))
    return open_snapshot(path, access, None, *about, verify)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return an absolute path: a worker process that opens the file may start in another folder."""
    return os.path.abspath(os.path.expanduser(os.fspath(path)))


def _find_url(url: str, store: Store | None, snapshot: Mapping[str, Any] | None = None) -> Named:
    """Return the shards that a URL names, without opening them.

    Raises:
        FileNotFoundError: it does not exist. FastRecordError: the store does not answer.
    """
    from fastrecord.store.requests import RemoteFolder
    from fastrecord.store.shard_source import CachedFolder

    url = Url(url)
    if not url.is_file:
        folder = folder_of(url)
        source = CachedFolder(RemoteFolder.of(folder, store), store)
        try:
            return Named(folder, source.read(NAME, partial(Manifest.parse, where=folder.at(NAME))), source)
        except FileNotFoundError as error:
            if not is_url(error.filename):
                raise  # of the cache
            raise FileNotFoundError(
                error.errno,
                f"does not exist: a data set in a store needs it; `fastrecord manifest {folder}` makes one",
                folder.at(NAME),
            ) from None
    remote, name = RemoteFolder.of_file(url, store)
    source = CachedFolder(remote, store)
    entry, reader, supply = open_remote(source, name)
    source.keep(supply)
    if snapshot is not None and any(snapshot[key] != getattr(entry, key) for key in _ABOUT[1:] if key in snapshot):
        raise Code.REPLACED.error(f"{url}: is not the file, or not the commit, of the snapshot")
    if not (reader.complete or snapshot):
        raise Code.INCOMPLETE.error(f"{url}: incomplete: its packing stopped after {len(reader)} records")
    return Named(url.folder, Manifest.of([entry], reader.schema), source)


def open_remote(source: CachedFolder, name: str) -> tuple[ShardEntry, Reader, ShardSource]:
    """Open a file of which nothing is known, in an object store; return how a manifest names it, and what reads it.

    Raises:
        FileNotFoundError: it does not exist. CorruptFileError: it is not a .frec file, or does not end with a
        commit. FastRecordError: the store does not answer.
    """
    supply = source.examine(name)
    about = supply.shard.about
    reader = open_shard(as_name(source.folder.where(name)), "mmap", False, about, supply)
    return ShardEntry(name, *about, class_names(reader)), reader, supply


def _find(path: str | os.PathLike[str], store: Store | None = None) -> list[Found | Named]:
    if is_url(path):
        return [_find_url(os.fspath(path), store)]
    if "://" in os.fspath(path) and not os.path.exists(path):
        return [(str(Url(os.fspath(path))), None)]  # the reader reports what is wrong with it
    name = _absolute(path)
    folder = os.path.dirname(name) if os.path.basename(name) == NAME else name
    if os.path.isdir(folder):
        manifest = read_manifest(folder)
        if manifest is not None:
            if not len(manifest):
                raise FileNotFoundError(f"{os.path.join(folder, NAME)}: it names no shard: pack some with --shards")
            return [Named(folder, manifest)]
        found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.frec")))
        if not found:
            raise FileNotFoundError(
                f"{name}: no .frec file in this folder: pack a folder of images with `fastrecord pack {path} OUT.frec`"
            )
    elif glob.has_magic(name) and not os.path.exists(name):
        found = sorted(glob.glob(name, recursive=True))
        if not found:
            raise FileNotFoundError(f"no file matches {name!r}")
    else:
        found = [name]
    return [(file, None) for file in found]


def _present(named: Named) -> Named:
    """Return the shards of a manifest that exist, and warn of the others."""
    manifest, source = named.manifest, named.source
    if source is None:
        here = set(os.listdir(named.folder))
    elif len(manifest) == 1 or source.folder.url.is_web:  # a web server lists nothing
        return named
    else:
        here = {name for name, _ in source.folder.list()}
    entries = manifest.entries()
    missing = [entry for entry in entries if entry.name not in here]
    if not missing or len(missing) == len(manifest):  # without any shard, reading the first one is an error
        return named
    warnings.warn(
        f"{named.folder}: left out {sum(entry.records for entry in missing):,} records of {len(missing):,} of "
        f"{len(manifest):,} shards that {NAME} names and that are missing: {name_some([one.name for one in missing])}",
        stacklevel=4,
    )
    return replace(named, manifest=manifest.with_shards([entry for entry in entries if entry.name in here]))


def normalized(indices: ArrayLike, total: int) -> NDArray[np.int64]:
    """Return indices into `total` records as numbers in [0, total), int64 (N,).

    Raises:
        IndexError: one is not in [-total, total). TypeError: not a 1-D sequence of integers.
    """
    array = np.asarray(indices)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"indices are a 1-D sequence of integers, not {array.dtype} of shape {array.shape}")
    low, high = array.min(), array.max()
    if low < -total or high >= total:
        outside = array[(array < -total) | (array >= total)]
        raise IndexError(f"index {outside[0]} is out of range: the data set has {total} records")
    rows = array.astype(np.int64, copy=False)
    return rows if low >= 0 else np.where(rows < 0, rows + total, rows)


def normalized_one(index: int, total: int) -> int:
    """Return an index into `total` records as a number in [0, total).

    Raises:
        IndexError: it is not in [-total, total). TypeError: not an integer.
    """
    row = operator.index(index)
    if not -total <= row < total:
        raise IndexError(f"index {row} is out of range: the data set has {total} records")
    return row % total


class Shards:
    """Several files read as one: each record belongs to one file.

    Pickles as the readers' snapshots and opens them at first use. A worker process that finds a
    replaced file reports this as the error of its first batch, instead of dying at startup.

    The shards of a manifest are opened when something is read from them, and only some of them are
    open at a time. What concerns all files uses `distinct` and `class_lists`, which open few.

    Attributes:
        ends: int64 (files,), the number of records up to the end of each file.
    """

    def __init__(self, parts: Sequence[_Files | _Listed]) -> None:
        self._parts = tuple(parts)
        self.ends: NDArray[np.int64] = np.cumsum([n for part in parts for n in part.counts], dtype=np.int64)

    @classmethod
    def open(
        cls,
        paths: Paths,
        access: str = "mmap",
        verify: bool | Literal["once"] = "once",
        store: Store | None = None,
        *,
        allow_incomplete: bool = False,
    ) -> Shards:
        """Open files at their newest commits, or at snapshots.

        Args:
            paths: As for `find_sets`.
            access: "mmap" or "pread".
            verify: When payloads are checked, unless a call overrides it.
            store: How URLs are read.
            allow_incomplete: Leave out shards that a manifest names and that do not exist, with a
                warning.

        Raises:
            FileNotFoundError: nothing is at a path. CorruptFileError: not a valid .frec file.
            FastRecordError: a file differs from its snapshot.
        """
        parts: list[_Files | _Listed] = []
        for listed, found in groupby(find_sets(paths, store), lambda part: isinstance(part, Named)):
            if listed:
                named = (_present(part) if allow_incomplete else part for part in found if isinstance(part, Named))
                parts += [_Listed(part, access, verify) for part in named]
            else:
                files = (part for part in found if not isinstance(part, Named))
                parts.append(_Files([open_file(*part, access, verify) for part in files]))
        return cls(parts)

    @classmethod
    def open_alike(cls, paths: Paths) -> Shards:
        """Open files that have the same fields, in any order.

        Raises:
            SchemaError: one has others; besides, what `open` raises.
        """
        shards = cls.open(paths)
        first, *others = ({name: plain(kind) for name, kind in reader.schema.items()} for reader in shards.distinct)
        for reader, fields in zip(shards.distinct[1:], others, strict=True):
            if fields != first:
                raise Code.FIELDS_DIFFER.error(
                    f"{reader.path}: its fields differ from those in {shards.distinct[0].path}"
                )
        return shards

    @classmethod
    def joined(cls, several: Sequence[Shards]) -> tuple[Shards, list[int]]:
        """Return the files of several `Shards` as one, and the offset of each.

        Files that several of them share come once.
        """
        parts: list[_Files | _Listed] = []
        starts: list[int] = []
        for shards in several:
            own = list(shards._parts)
            at = next((i for i in range(len(parts)) if parts[i : i + len(own)] == own), len(parts))
            if at == len(parts):
                parts += own
            starts.append(sum(sum(part.counts) for part in parts[:at]))
        return cls(parts), starts

    def __getstate__(self) -> dict[str, Any]:
        # Files shared by views are sent and opened once.
        return {"_parts": self._parts, "ends": self.ends}

    @cached_property
    def readers(self) -> Sequence[Reader]:
        """The reader of each file.

        Raises:
            FastRecordError: a file was replaced since the pickled snapshot.
            FileNotFoundError: it no longer exists.
        """
        first, *others = (part.readers for part in self._parts)
        return (*first, *chain.from_iterable(others)) if others else first

    @property
    def paths(self) -> list[str]:
        """The path of each file."""
        return [path for part in self._parts for path in part.paths]

    @property
    def distinct(self) -> tuple[Reader, ...]:
        """Readers whose fields may differ: of the shards of a manifest, which have the same ones, the first."""
        return tuple(reader for part in self._parts for reader in part.readers[: 1 if part.named else None])

    @property
    def named(self) -> Named | None:
        """The manifest that names all files; None without one, or if there are several."""
        return self._parts[0].named if len(self._parts) == 1 else None

    @property
    def sources(self) -> list[CachedFolder]:
        """What brings shards that are in object stores."""
        return [part.named.source for part in self._parts if part.named and part.named.source is not None]

    @property
    def fit_caches(self) -> bool:
        """Whether the caches of shards in object stores have room for all of them."""
        room: dict[Cache, int] = {}
        for part in self._parts:
            source = part.named and part.named.source
            if part.named and source and source.store.cache_size is not None:
                left = room.get(source.cache, source.store.cache_size)
                room[source.cache] = left - sum(part.named.manifest.columns["bytes"])
        return min(room.values(), default=0) >= 0

    def supply(self, shard: int) -> ShardSource | None:
        """Return what brings a file; None if it is on this machine.

        Args:
            shard: Its position in `readers`.
        """
        for part in self._parts:
            if shard < len(part.counts):
                return part.named.supply(shard) if part.named else None
            shard -= len(part.counts)
        raise IndexError(shard)

    @property
    def opened(self) -> tuple[Reader, ...]:
        """Readers of files that no manifest names."""
        return tuple(reader for part in self._parts if not part.named for reader in part.readers)

    def refuse_incomplete(self, option: str = "allow_incomplete=True") -> None:
        """Refuse files that lack records, or hold some twice.

        Args:
            option: The option that accepts them, for error messages.

        Raises:
            FastRecordError: the packing of a file is not finished; or as `check_together`.
        """
        # Who wrote a manifest has checked the shards that it names.
        for reader in self.opened:
            if not reader.complete:
                raise Code.INCOMPLETE.error(
                    f"{reader.path}: incomplete: its packing stopped after {len(reader)} records: "
                    f"`fastrecord pack --resume` finishes it; {option} accepts it"
                )
        check_together(self.opened, option=option)

    def class_lists(self) -> list[list[str] | None]:
        """Return each file's class names, position = label, or None if it has none.

        Raises:
            SchemaError: `metadata["classes"]` of a file is not a list of distinct names.
        """
        return [names for part in self._parts for names in part.class_lists()]

    @cached_property
    def schema(self) -> Schema:
        """The schema of the first file; a reader builds it anew on each call."""
        return self.readers[0].schema

    def __len__(self) -> int:
        return int(self.ends[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """Return the file's position in `readers` and the record number in that file.

        Args:
            index: In [-len(self), len(self)).

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        row = normalized_one(index, len(self))
        shard = int(np.searchsorted(self.ends, row, side="right"))
        return shard, row - (int(self.ends[shard - 1]) if shard else 0)

    def split(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Group rows by file.

        Args:
            rows: Record numbers in [0, len(self)), int64 (N,).

        Yields:
            The file's position in `readers`; the slots of its records in `rows`, in order;
            their record numbers in the file.
        """
        if len(self.ends) == 1:
            yield 0, np.arange(len(rows)), rows
            return
        shards = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(shards, kind="stable")
        for slots in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if len(slots):
                shard = int(shards[slots[0]])
                start = int(self.ends[shard - 1]) if shard else 0
                yield shard, slots, rows[slots] - start

    def snapshots(self) -> list[dict[str, Any]]:
        """Return each file's snapshot for JSON: `path`, `file_id`, `commit`, `records`, `bytes`, `footer_crc`."""
        keys = ("path", *_ABOUT[1:])
        return [dict(zip(keys, values, strict=True)) for part in self._parts for values in part.about()]

    def close(self) -> None:
        """Close the readers; views already returned stay valid."""
        for part in self._parts:
            part.close()


class _Files:
    """Files that no manifest names. They pickle as their snapshots, and are opened again at first use."""

    named: Named | None = None

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = tuple(readers)
        self.counts = [len(reader) for reader in readers]

    def __getstate__(self) -> dict[str, Any]:
        return {"_reduced": self._reduced, "counts": self.counts}

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Files) and self._reduced == other._reduced)

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        return tuple(reopen(*arguments) for reopen, arguments in self._reduced)

    @cached_property
    def _reduced(self) -> list[tuple[Any, ...]]:
        return [reader.__reduce__() for reader in self.readers]

    @property
    def paths(self) -> list[str]:
        return [os.fspath(reader.path) for reader in self.readers]

    def class_lists(self) -> list[list[str] | None]:
        return [class_names(reader) for reader in self.readers]

    def about(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each snapshot."""
        for reader in self.readers:
            path = os.fspath(reader.path)
            yield path, reader.file_id, reader.commit, len(reader), reader.nbytes, reader.footer_crc

    def close(self) -> None:
        for reader in vars(self).get("readers", ()):
            reader.close()


class _Listed(Sequence[Reader]):
    """The shards of a manifest. A reader is made when it is asked for: there may be very many.

    Args:
        named: The shards.
        access, verify: How they are read.
    """

    def __init__(self, named: Named, access: str, verify: bool | Literal["once"]) -> None:
        self.named, self._how = named, (access, verify)
        manifest = named.manifest
        self.counts: list[int] = manifest.columns["records"]
        self._contents = {
            at: Contents(manifest.schema, at if at is None else manifest.classes[at])
            for at in set(manifest.columns["classes"])
        }
        self._made: list[Reader | None] = [None] * len(manifest)
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _Listed, (self.named, *self._how)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Listed) and (self.named, self._how) == (other.named, other._how)

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Reader: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Reader]: ...
    def __getitem__(self, at: int | slice) -> Reader | Sequence[Reader]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(len(self))))
        made = self._made[at]
        return self._make(at) if made is None else made

    @property
    def readers(self) -> Self:
        return self

    @property
    def paths(self) -> list[str]:
        return self.named.paths

    def class_lists(self) -> list[list[str] | None]:
        manifest = self.named.manifest
        return [None if at is None else manifest.classes[at] for at in manifest.columns["classes"]]

    def about(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each snapshot."""
        return zip(self.paths, *(self.named.manifest.columns[name] for name in _ABOUT[1:]), strict=True)

    def close(self) -> None:
        """Close all readers, also those that are made later."""
        self._closed = True
        for reader in self._made:
            if reader is not None:
                reader.close()

    def _make(self, at: int) -> Reader:
        named = self.named
        name, *about = named.about(at)
        place = f"{named.folder}/{name}" if named.source is None else as_name(named.source.folder.where(name))
        contents = self._contents[named.manifest.columns["classes"][at]]
        made = open_shard(place, *self._how, tuple(about), named.supply(at), contents)
        if self._closed:
            made.close()
        self._made[at] = made
        return made
