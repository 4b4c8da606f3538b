"""`copy`: a data set of shards to and from an object store; manifests there.

A shard counts as copied if one is there that has been compared with it; the manifest comes last, at
once. So a copy that was broken off continues when it is called again, and readers of the data set
see all of it or what it was before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry, folder_of, read_manifest
from fastrecord.dataset.shards import open_remote
from fastrecord.errors import Code
from fastrecord.files.manifest import (
    FoundShard,
    footer_checksum,
    manifest_lock,
    next_manifest,
    no_manifest,
    open_in_order,
    or_raise,
    put_manifest,
    shard_order,
)
from fastrecord.files.staging import Staging
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.requests import PARALLEL, RemoteFolder, asked_until_good, md5_etag, submit
from fastrecord.store.store import Store
from fastrecord.store.threads import Threads

if TYPE_CHECKING:
    from fastrecord.store.shard_source import CachedFolder

# Shards that are copied at once, each by parallel requests of its own.
_AT_ONCE = 4
# A copy that differs is made again, so that there are so many attempts.
_ATTEMPTS = 3
_ON_THE_WAY = "bytes are changed on the way: check the network and proxies"
_Show = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class CopySummary:
    """What `copy` did.

    Attributes:
        path: The copy.
        shards: Shards of the data set, or 1 for a file.
        bytes: Their bytes.
        copied: Names of the shards that were copied; the others were there already.
    """

    path: str
    shards: int
    bytes: int
    copied: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes for JSON."""
        return asdict(self)


def copy(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    store: Store | None = None,
    progress: _Show | None = None,
) -> CopySummary:
    """Copy a data set of shards, or one file, to an object store or from there.

    Every byte that a reader uses is compared: a file that is sent with its own checksums, and the object
    with the file; a file that comes with its own checksums. Shards that are there already are compared,
    too, and left out, so a copy that was broken off continues. The manifest is written last and at once.

    Args:
        src: A folder with a `dataset.json`, or a .frec file; a path or a URL.
        dst: The folder that becomes its copy, or the file; one of both is a URL.
        overwrite: Replace a data set that has other shards, or another file.
        store: Options of the object store.
        progress: Called with the number of bytes copied or there, and of all.

    Raises:
        FileNotFoundError: `src` does not exist, or is a folder without a manifest.
        FileExistsError: `dst` is another data set, or another file.
        FastRecordError: the store does not answer; another process has replaced the manifest meanwhile;
            bytes are changed on the way.
        CorruptFileError: the manifest, or a shard, is damaged.
        ValueError: both are URLs, or none is.
    """
    src, dst = Url(os.fspath(src)), Url(os.fspath(dst))
    if is_url(src) == is_url(dst):
        raise ValueError("copy goes to a store or from one: one of src and dst is a URL")
    (dst if is_url(dst) else src).refuse_wrong()
    is_file = src.is_file if is_url(src) else src.endswith(".frec")
    if is_url(dst) and is_file != dst.is_file:
        what = "a file, and its copy is named *.frec" if is_file else "a folder, and its copy is one"
        raise Code.STORE.error(f"{dst}: cannot be a copy of {src}, which is {what}")
    if is_file:
        return _copy_file(src, dst, overwrite, store, progress)
    remote = RemoteFolder.of(folder_of(dst if is_url(dst) else src), store)
    ends = _Ends(str(src), str(dst), remote, is_url(dst))
    manifest = ends.source_manifest()
    before, etag = ends.present()
    if before is not None and not overwrite:
        _refuse_other(ends.dst, before, manifest)
    entries = manifest.entries()
    total, done, copied = sum(entry.bytes for entry in entries), 0, []
    threads = Threads(_AT_ONCE, "fastrecord-copy")
    coming = [threads.submit(ends.bring, entry) for entry in entries]
    try:
        for entry, future in zip(entries, coming, strict=True):
            copied += [entry.name] if future.result() else []
            done += entry.bytes
            if progress is not None:
                progress(done, total)
    except Exception:
        threads.close()
        for future in coming:  # a process that ends now would leave half a copy beside its name
            with suppress(Exception, CancelledError):
                future.result()
        raise
    finally:
        threads.close()
    if before is None or before.entries() != entries:
        ends.finish(replace(manifest, generation=1 if before is None else before.generation + 1), etag)
    return CopySummary(str(dst), len(entries), total, copied)


def _copy_file(src: Url, dst: Url, overwrite: bool, store: Store | None, progress: _Show | None) -> CopySummary:
    remote, name = RemoteFolder.of_file(dst if is_url(dst) else src, store)
    if is_url(dst):
        _refuse_damaged(src, src)
        size = os.path.getsize(src)
        if remote.is_copy(name, src):
            return CopySummary(str(dst), 1, size, [])
        if not overwrite and remote.exists(name):
            raise FileExistsError(f"{dst}: is another file: overwrite=True (`--overwrite`) replaces it")
        send(remote, name, src)
    else:
        with Staging(dst, overwrite=overwrite) as staging:
            size = _fetch(remote, name, staging)
            staging.finish()
    if progress is not None:
        progress(size, size)
    return CopySummary(str(dst), 1, size, [name])


@dataclass(frozen=True)
class _Ends:
    """The two ends of a copy, one of them in a store."""

    src: str
    dst: str
    remote: RemoteFolder
    is_upload: bool

    def source_manifest(self) -> Manifest:
        found = read_manifest(self.src) if self.is_upload else remote_manifest(self.remote)[0]
        if found is None:
            raise no_manifest(self.src)
        # It has no checksum of its own.
        if not self.is_upload and remote_manifest(self.remote)[0] != found:
            raise Code.REPLACED.error(
                f"{self.remote.where(NAME)}: has been replaced just now, or {_ON_THE_WAY}: run the command again"
            )
        return found

    def present(self) -> tuple[Manifest | None, str | None]:
        """Return the manifest that the copy has by now, and its ETag."""
        if self.is_upload:
            return remote_manifest(self.remote)
        os.makedirs(self.dst, exist_ok=True)
        return read_manifest(self.dst), None

    def bring(self, entry: ShardEntry) -> bool:
        """Copy a shard unless it is there; return whether it was copied."""
        if self.is_upload:
            path = os.path.join(self.src, entry.name)
            _refuse_damaged(path, path, entry)
            if self.remote.is_copy(entry.name, path):
                return False
            send(self.remote, entry.name, path, parallel=PARALLEL // _AT_ONCE)
            return True
        path = os.path.join(self.dst, entry.name)
        with suppress(FastRecordError, OSError):
            _refuse_damaged(path, path, entry)
            return False
        with Staging(path, overwrite=True) as staging:
            _fetch(self.remote, entry.name, staging, entry)
            staging.finish()
        return True

    def finish(self, manifest: Manifest, etag: str | None) -> None:
        if self.is_upload:
            put_remote_manifest(self.remote, manifest, etag)
            return
        with manifest_lock(self.dst):
            put_manifest(self.dst, manifest)


def write_remote_manifest(
    url: str,
    *,
    allow_incomplete: bool = False,
    store: Store | None = None,
    progress: _Show | None = None,
) -> tuple[Manifest, Manifest | None]:
    """Make `dataset.json` of a folder in a store name all .frec files there; return it, and the one before.

    Each file is asked for its head; one conditional PUT writes the manifest.

    Raises:
        FileNotFoundError: the folder has no .frec file.
        SchemaError: a shard has other fields than the first.
        FastRecordError: the packing of a shard was not finished; the store does not answer; another
            process has replaced the manifest meanwhile.
        CorruptFileError: a shard, or the present manifest, is damaged.
    """
    from fastrecord.store.shard_source import CachedFolder

    source = CachedFolder(RemoteFolder.of(folder_of(url), store))
    folder = source.folder.url
    before, etag = remote_manifest(source.folder)
    names = [name for name, _ in source.folder.list() if name.endswith(".frec")]
    if not names:
        raise FileNotFoundError(f"{folder}: no .frec file in this folder")
    found = list(map(or_raise, open_remote_shards(source, shard_order(before, names), progress)))
    entries = [shard.entry for shard in found]
    made = next_manifest(folder, before, found, entries, found[0].schema, allow_incomplete=allow_incomplete)
    if made != before:
        put_remote_manifest(source.folder, made, etag)
    return made, before


def read_remote_folder(url: str, store: Store | None) -> tuple[CachedFolder, Manifest, list[str]]:
    """Return a folder in a store, its manifest, and the names of its .frec files.

    Raises:
        FileNotFoundError: it has no manifest. CorruptFileError: the manifest is damaged.
        FastRecordError: the store does not answer.
    """
    from fastrecord.store.shard_source import CachedFolder

    source = CachedFolder(RemoteFolder.of(folder_of(url), store))
    folder = source.folder.url
    manifest, _ = remote_manifest(source.folder)
    if manifest is None:
        raise no_manifest(folder)
    # A web server lists nothing.
    files = [] if folder.is_web else source.folder.list()
    return source, manifest, [name for name, _ in files if name.endswith(".frec")]


def open_remote_shards(
    source: CachedFolder, names: Sequence[str], progress: _Show | None = None
) -> Iterator[FoundShard | Exception]:
    """Open shards in a store side by side, none of them for longer than it takes; yield in order."""

    def find(name: str) -> FoundShard | Exception:
        try:
            entry, reader, _ = open_remote(source, name)
            with reader:
                return FoundShard.of(entry, reader)
        except (FastRecordError, OSError) as error:
            return error

    return open_in_order(find, names, PARALLEL // 2, progress)  # each makes two requests at once


def remote_manifest(remote: RemoteFolder) -> tuple[Manifest | None, str | None]:
    """Return the manifest of a folder in a store, and its ETag; None without one."""

    def ask() -> tuple[Manifest, str | None]:
        found = remote.get(NAME)
        return Manifest.parse(bytes(found.data), remote.where(NAME)), found.etag

    try:
        return asked_until_good(ask)
    except FileNotFoundError:
        return None, None


def put_remote_manifest(remote: RemoteFolder, manifest: Manifest, etag: str | None) -> None:
    """Replace the manifest of a folder in a store, or write its first one.

    Raises:
        FastRecordError: the present one has another ETag; the store does not answer.
    """
    mode: Any = "create" if manifest.generation == 1 else {"e_tag": etag}
    try:
        for _ in range(_ATTEMPTS):
            remote.put(NAME, manifest.dump(), mode=mode)
            found = remote.get(NAME)
            with suppress(CorruptFileError):
                now = Manifest.parse(bytes(found.data), remote.where(NAME))
                if now == manifest or now.generation > manifest.generation:
                    return  # it is this one, or another has followed it
            mode = {"e_tag": found.etag}
        raise Code.STORE.error(f"{remote.where(NAME)}: is not what was sent, {_ATTEMPTS} times: {_ON_THE_WAY}")
    except FileExistsError:
        if remote_manifest(remote)[0] == manifest:
            return  # an answer was lost, and the request made again
        raise Code.REPLACED.error(
            f"{remote.where(NAME)}: another process has replaced it meanwhile: run the command again"
        ) from None


def _refuse_other(dst: str, before: Manifest, manifest: Manifest) -> None:
    ids = set(manifest.columns["file_id"])
    if others := [entry.name for entry in before.entries() if entry.file_id not in ids]:
        raise FileExistsError(
            f"{dst}: is another data set: it has {others[0]}: overwrite=True (`--overwrite`) replaces it"
        )


def send(remote: RemoteFolder, name: str, path: str, *, parallel: int = PARALLEL) -> None:
    """Send a file, and compare what has come with it.

    Raises:
        FastRecordError: it differs each time, and has been deleted. The store does not answer.
    """
    known = submit(md5_etag, path)
    for _ in range(_ATTEMPTS):
        remote.put(name, Path(path), parallel=parallel)
        if remote.is_copy(name, path, known.result()):
            return
    remote.delete([name])
    raise Code.STORE.error(f"{remote.where(name)}: is not what was sent, {_ATTEMPTS} times: {_ON_THE_WAY}")


def _fetch(remote: RemoteFolder, name: str, staging: Staging, entry: ShardEntry | None = None) -> int:
    """Bring a file, and compare all that a reader uses of it with its checksums; return its bytes."""
    about, path = remote.get(name, 0, 1), staging.path
    for attempt in range(1, _ATTEMPTS + 1):
        with open(path, "wb") as file:
            file.truncate(about.size)
            try:
                remote.download(name, [(0, about.size)], path, about.etag)
                os.fsync(file.fileno())
            except OSError as err:
                err.filename = err.filename or staging.given
                raise
        try:
            _refuse_damaged(path, remote.where(name), entry)
            break
        except CorruptFileError as error:
            if attempt == _ATTEMPTS:
                error.add_note(f"{_ATTEMPTS} times: the object itself is damaged, or {_ON_THE_WAY}")
                raise
    return about.size


def _refuse_damaged(path: str, where: str, entry: ShardEntry | None = None) -> None:
    """Refuse a file at a path that differs from its checksums, or from a shard; `where` is its name for people."""
    with Reader(path) as reader:
        found = reader.file_id, reader.commit, reader.nbytes
        if entry is not None and (*found, footer_checksum(path, reader.nbytes)) != (
            entry.file_id,
            entry.commit,
            entry.bytes,
            entry.footer_crc,
        ):
            raise Code.REPLACED.error(
                f"{where}: is not the shard that the manifest names: `fastrecord manifest` renews it"
            )
        errors = reader.verify()["errors"]
    if errors:
        first, _, _ = errors[0].replace(path, where).rpartition(" [")
        more = f" and {len(errors) - 1:,} more places" if len(errors) > 1 else ""
        raise Code.CHECKSUM.error(f"{first}{more}: it is not copied")
