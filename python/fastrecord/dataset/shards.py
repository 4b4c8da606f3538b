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
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

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

    def __init__(self, readers: Sequence[Reader]) -> None:
        # None until a pickled data set, or the shards of a manifest, are used.
        self._readers: Sequence[Reader] | None = tuple(readers)
        self._snapshots: list[tuple[Any, ...]] = []
        self._members: tuple[Shards, ...] = ()
        # The manifest that names the shards, and how they are read.
        self._named: tuple[Named, str, bool | Literal["once"]] | None = None
        self._schema: Schema | None = None
        self.ends: NDArray[np.int64] = np.cumsum([len(reader) for reader in readers], dtype=np.int64)

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
        members: list[Shards] = []
        files: list[Reader] = []
        for part in find_sets(paths, store):
            if not isinstance(part, Named):
                files.append(open_file(*part, access, verify))
                continue
            if files:
                members.append(cls(files))
                files = []
            members.append(cls._of_manifest(_present(part) if allow_incomplete else part, access, verify))
        if files:
            members.append(cls(files))
        return cls._of_members(members)

    @classmethod
    def _of_manifest(cls, named: Named, access: str, verify: bool | Literal["once"]) -> Shards:
        made = cls(())
        made._readers, made._named = None, (named, access, verify)
        made.ends = np.cumsum(named.manifest.columns["records"], dtype=np.int64)
        return made

    @classmethod
    def _of_members(cls, members: Sequence[Shards]) -> Shards:
        if len(members) == 1:
            return members[0]
        made = cls(())
        made._readers, made._members = None, tuple(members)
        made.ends = np.cumsum(
            [count for member in members for count in np.diff(member.ends, prepend=0)], dtype=np.int64
        )
        return made

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
        members: list[Shards] = []
        starts: list[int] = []
        for shards in several:
            own = list(shards._members or [shards])
            runs = (i for i in range(len(members)) if _are_same(members[i : i + len(own)], own))
            at = next(runs, len(members))
            if at == len(members):
                members += own
            starts.append(sum(len(member) for member in members[:at]))
        return cls._of_members(members), starts

    def __getstate__(self) -> dict[str, Any]:
        # Files shared by views are sent and opened once.
        if self._members:
            return {"members": self._members, "ends": self.ends}
        return {"named": self._named, "snapshots": self._reduced(), "ends": self.ends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._readers = None
        self._members = state.get("members", ())
        self._named, self._snapshots = state.get("named"), state.get("snapshots", [])
        self._schema = None
        self.ends = state["ends"]

    def _reduced(self) -> list[tuple[Any, ...]]:
        if self._named is not None:
            return []  # the manifest says it
        return self._snapshots if self._readers is None else [reader.__reduce__() for reader in self._readers]

    @property
    def readers(self) -> Sequence[Reader]:
        """The reader of each file.

        Raises:
            FastRecordError: a file was replaced since the pickled snapshot.
            FileNotFoundError: it no longer exists.
        """
        if self._readers is None:
            if self._members:
                self._readers = tuple(reader for member in self._members for reader in member.readers)
            elif self._named is not None:
                self._readers = _Unopened(*self._named)
            else:
                self._readers = tuple(reopen(*arguments) for reopen, arguments in self._snapshots)
        return self._readers

    @property
    def paths(self) -> list[str]:
        """The path of each file."""
        if self._members:
            return [path for member in self._members for path in member.paths]
        return [os.fspath(reader.path) for reader in self.readers] if self._named is None else self._named[0].paths

    @property
    def distinct(self) -> tuple[Reader, ...]:
        """Readers whose fields may differ: of the shards of a manifest, which have the same ones, the first."""
        if self._members:
            return tuple(reader for member in self._members for reader in member.distinct)
        return tuple(self.readers if self._named is None else self.readers[:1])

    @property
    def named(self) -> Named | None:
        """The manifest that names all files; None without one, or if there are several."""
        return None if self._named is None else self._named[0]

    @property
    def sources(self) -> list[CachedFolder]:
        """What brings shards that are in object stores."""
        return [named.source for named in self._manifests() if named.source is not None]

    @property
    def fit_caches(self) -> bool:
        """Whether the caches of shards in object stores have room for all of them."""
        room: dict[Cache, int] = {}
        for named in self._manifests():
            source = named.source
            if source is not None and source.store.cache_size is not None:
                left = room.get(source.cache, source.store.cache_size)
                room[source.cache] = left - sum(named.manifest.columns["bytes"])
        return min(room.values(), default=0) >= 0

    def _manifests(self) -> list[Named]:
        if self._members:
            return [named for member in self._members for named in member._manifests()]
        return [] if self._named is None else [self._named[0]]

    def supply(self, shard: int) -> ShardSource | None:
        """Return what brings a file; None if it is on this machine.

        Args:
            shard: Its position in `readers`.
        """
        for member in self._members:
            if shard < len(member.ends):
                return member.supply(shard)
            shard -= len(member.ends)
        if self._named is None or self._named[0].source is None:
            return None
        columns = self._named[0].manifest.columns
        return self._named[0].source.supply(*(columns[name][shard] for name in _ABOUT))

    @property
    def opened(self) -> tuple[Reader, ...]:
        """Readers of files that no manifest names."""
        if self._members:
            return tuple(reader for member in self._members for reader in member.opened)
        return tuple(self.readers) if self._named is None else ()

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
        if self._members:
            return [names for member in self._members for names in member.class_lists()]
        if self._named is not None:
            manifest = self._named[0].manifest
            return [None if at is None else manifest.classes[at] for at in manifest.columns["classes"]]
        return [class_names(reader) for reader in self.readers]

    @property
    def schema(self) -> Schema:
        """The schema of the first file; a reader builds it anew on each call."""
        if self._schema is None:
            self._schema = self.readers[0].schema
        return self._schema

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

    def rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return indices as numbers in [0, len(self)), int64 (N,).

        Raises:
            IndexError: one is out of range. TypeError: not a 1-D sequence of integers.
        """
        return normalized(indices, len(self))

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
        if self._members:
            return [snapshot for member in self._members for snapshot in member.snapshots()]
        if self._named is not None:
            named, keys = self._named[0], _ABOUT[1:]
            columns = [named.manifest.columns[key] for key in keys]
            rows = zip(named.paths, *columns, strict=True)
            return [dict(zip(("path", *keys), row, strict=True)) for row in rows]
        return [
            {
                "path": os.fspath(reader.path),
                "file_id": reader.file_id,
                "commit": reader.commit,
                "records": len(reader),
                "bytes": reader.nbytes,
                "footer_crc": reader.footer_crc,
            }
            for reader in self.readers
        ]

    def _is_same(self, other: Shards) -> bool:
        return (self._named, self._reduced()) == (other._named, other._reduced())

    def close(self) -> None:
        """Close the readers; views already returned stay valid."""
        readers = self._readers if self._named is None else self.readers
        if isinstance(readers, _Unopened):
            readers.close()
        else:
            for reader in readers or ():
                reader.close()
        for member in self._members:
            member.close()


def _are_same(some: Sequence[Shards], others: Sequence[Shards]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a is b or a._is_same(b) for a, b in pairs)


class _Unopened(Sequence[Reader]):
    """A reader of each shard of a manifest, made when it is asked for: there may be very many.

    Args:
        named: The shards.
        access, verify: How they are read.
    """

    def __init__(self, named: Named, access: str, verify: bool | Literal["once"]) -> None:
        self._named, self._how = named, (access, verify)
        self._about = [named.manifest.columns[name] for name in _ABOUT]
        manifest = named.manifest
        self._contents = {
            at: Contents(manifest.schema, at if at is None else manifest.classes[at])
            for at in set(manifest.columns["classes"])
        }
        self._made: list[Reader | None] = [None] * len(manifest)
        self._closed = False

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

    def close(self) -> None:
        """Close all readers, also those that are made later."""
        self._closed = True
        for reader in self._made:
            if reader is not None:
                reader.close()

    def _make(self, at: int) -> Reader:
        named, source = self._named, self._named.source
        name, *about = (column[at] for column in self._about)
        more: tuple[Any, ...] = (
            None if source is None else source.supply(name, *about),
            self._contents[named.manifest.columns["classes"][at]],
        )
        place = f"{named.folder}/{name}" if source is None else as_name(source.folder.where(name))
        made = open_shard(place, *self._how, tuple(about), *more)
        if self._closed:
            made.close()
        self._made[at] = made
        return made
