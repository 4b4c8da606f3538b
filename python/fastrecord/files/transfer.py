"""`copy`: a data set of shards to and from an object store; manifests there.

A shard counts as copied if one is there that has been compared with it; the manifest comes last, at
once. So a copy that was broken off continues when it is called again, and readers of the data set
see all of it or what it was before.
"""

from __future__ import annotations

import os
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from fastrecord._core import CorruptFileError, FastRecordError, Reader
from fastrecord.dataset.manifest import Manifest, ShardEntry
from fastrecord.errors import Code
from fastrecord.files.publish.local import LocalSet
from fastrecord.files.publish.remote import RemoteSet, send
from fastrecord.files.publish.shards import Show, no_manifest
from fastrecord.files.publish.staging import Staging
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.failures import ON_THE_WAY
from fastrecord.store.requests import ATTEMPTS, PARALLEL, RemoteFolder, asked_until_good
from fastrecord.store.store import Store
from fastrecord.store.threads import Threads

# Shards that are copied at once, each by parallel requests of its own.
_AT_ONCE = 4


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
    progress: Show | None = None,
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
    is_upload = is_url(dst)
    remote, here = RemoteSet.of(dst if is_upload else src, store), LocalSet(src if is_upload else dst)
    if not is_upload:
        os.makedirs(here.where, exist_ok=True)
    manifest, before = (here.read(), remote.read()) if is_upload else (remote.read(), here.read())
    if manifest is None:
        raise no_manifest(str(src))
    if before is not None and not overwrite:
        _refuse_other(str(dst), before, manifest)
    entries = manifest.entries()
    total, done, copied = sum(entry.bytes for entry in entries), 0, []
    threads = Threads(_AT_ONCE, "fastrecord-copy")
    bring = partial(_send if is_upload else _receive, remote.folder, here.where)
    coming = [threads.submit(bring, entry) for entry in entries]
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
        made = replace(manifest, generation=1 if before is None else before.generation + 1)
        if is_upload:
            remote.put(made)
        else:
            with here.changing():
                here.put(made)
    return CopySummary(str(dst), len(entries), total, copied)


def _copy_file(src: Url, dst: Url, overwrite: bool, store: Store | None, progress: Show | None) -> CopySummary:
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


def _send(remote: RemoteFolder, folder: str, entry: ShardEntry) -> bool:
    """Send a shard of a folder, unless it is there; return whether it was sent."""
    path = os.path.join(folder, entry.name)
    _refuse_damaged(path, path, entry)
    if remote.is_copy(entry.name, path):
        return False
    send(remote, entry.name, path, parallel=PARALLEL // _AT_ONCE)
    return True


def _receive(remote: RemoteFolder, folder: str, entry: ShardEntry) -> bool:
    """Bring a shard to a folder, unless it is there; return whether it was brought."""
    path = os.path.join(folder, entry.name)
    with suppress(FastRecordError, OSError):
        _refuse_damaged(path, path, entry)
        return False
    with Staging(path, overwrite=True) as staging:
        _fetch(remote, entry.name, staging, entry)
        staging.finish()
    return True


def _refuse_other(dst: str, before: Manifest, manifest: Manifest) -> None:
    ids = set(manifest.columns["file_id"])
    if others := [entry.name for entry in before.entries() if entry.file_id not in ids]:
        raise FileExistsError(
            f"{dst}: is another data set: it has {others[0]}: overwrite=True (`--overwrite`) replaces it"
        )


def _fetch(remote: RemoteFolder, name: str, staging: Staging, entry: ShardEntry | None = None) -> int:
    """Bring a file, and compare all that a reader uses of it with its checksums; return its bytes."""
    about, path = remote.get(name, 0, 1), staging.path

    def ask() -> None:
        with open(path, "wb") as file:
            file.truncate(about.size)
            try:
                remote.download(name, [(0, about.size)], path, about.etag)
                os.fsync(file.fileno())
            except OSError as err:
                err.filename = err.filename or staging.given
                raise
        _refuse_damaged(path, remote.where(name), entry)

    try:
        asked_until_good(ask)
    except CorruptFileError as error:
        error.add_note(f"{ATTEMPTS} times: the object itself is damaged, or {ON_THE_WAY}")
        raise
    return about.size


def _refuse_damaged(path: str, where: str, entry: ShardEntry | None = None) -> None:
    """Refuse a file at a path that differs from its checksums, or from a shard; `where` is its name for people."""
    with Reader(path) as reader:
        found = reader.file_id, reader.commit, len(reader), reader.nbytes, reader.footer_crc
        if entry is not None and found != entry.about:
            raise Code.REPLACED.error(
                f"{where}: is not the shard that the manifest names: `fastrecord manifest` renews it"
            )
        errors = reader.verify()["errors"]
    if errors:
        first, _, _ = errors[0].replace(path, where).rpartition(" [")
        more = f" and {len(errors) - 1:,} more places" if len(errors) > 1 else ""
        raise Code.CHECKSUM.error(f"{first}{more}: it is not copied")
