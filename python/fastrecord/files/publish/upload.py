"""`Upload`: shards that are made here one by one, sent to an object store, and become a data set there at once.

They are made in a staging folder, whose journal says which ones have been sent. Their names are
random, so they replace nothing. The manifest comes last, by one conditional request: until then
readers see what was there before. A run that was killed continues with what the journal names.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from fastrecord._core import CorruptFileError, FastRecordError
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry, folder_of
from fastrecord.dataset.shards import open_remote
from fastrecord.errors import Code
from fastrecord.files.division import Part
from fastrecord.files.publish.local import find_shard
from fastrecord.files.publish.remote import RemoteSet, send
from fastrecord.files.publish.shards import FoundShard, next_manifest, or_raise
from fastrecord.files.publish.staging import write_journal
from fastrecord.names import as_key, as_name
from fastrecord.schema.shard_sets import Shard
from fastrecord.store.address import Url
from fastrecord.store.locks import is_linked
from fastrecord.store.requests import PARALLEL, RemoteFolder, submit
from fastrecord.store.shard_source import CachedFolder
from fastrecord.store.store import Store

_JOURNAL, _LOCK = "journal.json", "lock"
# Shards that wait to be sent while the next one is made.
_AHEAD = 1
# Attempts to add shards to a manifest that others change, too.
_ATTEMPTS = 5
# Seconds between two looks whether Ctrl-C was pressed.
_LOOK_SECONDS = 0.1
# The name of a shard set begins with so many digits of the digest of the input.
_DIGEST = 16
# Characters of the name of a folder that those of its shards begin with.
_STEM = 50


class Upload:
    """The way of a pack's files to a store; a context manager.

    Args:
        url: The folder of a data set, or one .frec file.
        mode: "create", "append", "resume" or "overwrite".
        sharded: Whether the URL of a file stands for shards beside each other, as
            `train.frec` stands for `train-00000-of-00004.frec`.
        staging: Where to make the staging folder. None: where temporary files belong.
        store: Options of the object store.

    Attributes:
        url: As given.
        is_file: Whether it becomes one file, and not a data set of shards.
        base: The path of the file to make, or the base of the names of shards.
        classes: The class names of the data set that shards are added to; None: there are none.

    Raises:
        FileExistsError: there is a data set, or an unfinished one, and the mode does not fit.
        LockedError: another process packs into the same URL with the same staging folder.
        FastRecordError: the store does not answer; a file in a store cannot be added to.
    """

    def __init__(
        self,
        url: str,
        mode: str,
        *,
        sharded: bool,
        staging: str | os.PathLike[str] | None = None,
        store: Store | None = None,
    ) -> None:
        folder = folder_of(url)
        self.url, self.is_file = Url(url), folder.is_file and not sharded
        self.base = ""
        self.classes: list[str] | None = None
        self._mode, self._stem = mode, folder.name.removesuffix(".frec")
        if not self.is_file:  # what no manifest and no file system refuses
            stem = re.sub(r"[^\w.-]+", "-", as_key(self._stem)).strip("-.")[:_STEM]
            self._stem = as_name(stem) or "shard"
        self._remote = RemoteFolder.of_file(folder, store)[0] if folder.is_file else RemoteFolder.of(folder, store)
        self._set = RemoteSet(self._remote)
        self._before: Manifest | None = None
        target = folder if self.is_file else self._remote.url
        base = tempfile.gettempdir() if staging is None else os.path.abspath(os.fspath(staging))
        owner = f"{os.getuid()}-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
        self._folder = os.path.join(base, f"fastrecord-pack-{owner}")
        self._lock = -1
        self._state: dict[str, Any] = {}
        self._pending: deque[Future[None]] = deque()
        self._changing, self._over = threading.Lock(), False
        self._is_complete = False  # by this run, or by the one that is to be resumed
        self._found: dict[str, FoundShard] = {}

    def __enter__(self) -> Self:
        self._take_folder()
        try:
            self._begin()
        except BaseException:
            if not os.path.exists(os.path.join(self._folder, _JOURNAL)):
                shutil.rmtree(self._folder, ignore_errors=True)
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(value, KeyboardInterrupt):
            for future in self._pending:
                future.exception()
        with self._changing:
            self._over = True  # what is still being sent changes nothing here
        if value is None or not self._is_begun():
            shutil.rmtree(self._folder, ignore_errors=True)
        elif not self._is_complete:
            sent = len(self._state["shards"])
            value.add_note(
                f"{self.url}: {sent:,} file(s) are sent, and readers see what was there before; {self._folder} has the "
                "rest: `--resume` continues"
            )
        self._release()

    def begin(self, parts: Sequence[Part], identity: Any) -> list[Part]:
        """Return the files to make, as one set; none if the pack was finished before.

        Args:
            parts: The files by their places in the input.
            identity: What distinguishes the input, and how it is packed, from others; JSON-able.

        Raises:
            FastRecordError: what is to be resumed is of another input.
        """
        content = json.dumps([identity, [part.stop for part in parts]]).encode()
        digest = hashlib.sha256(content).hexdigest()[:_DIGEST]
        if self._is_complete:
            self._compare_complete(digest)
            return []
        if self._state["input"] not in (None, digest):
            raise Code.OTHER_INPUT.error(
                f"{self.url}: cannot be resumed: its pack was begun with another input or other settings: give the "
                "same, or begin again with `--overwrite`"
            )
        self._find_sent()
        self._state["input"] = digest
        self._write()
        if self.is_file:
            return list(parts)
        names = f"{digest}{self._state['id']}"
        return [replace(part, shard=Shard(names, number, len(parts))) for number, part in enumerate(parts)]

    def where(self, path: str) -> str:
        """Return the URL of a file that is made at a path."""
        return self._remote.where(os.path.basename(path))

    def sent(self, path: str) -> tuple[ShardEntry, list[tuple[str, str]]] | None:
        """Return a file that has been sent, and what was skipped for it; None if it has not been."""
        name = os.path.basename(path)
        found = self._found.get(name)
        return None if found is None else (found.entry, [tuple(one) for one in self._state["shards"][name]])

    def send(self, path: str, skipped: Sequence[tuple[str, str]], is_over: Callable[[], bool]) -> None:
        """Send a file that is complete, and remove it here; waits only for the ones before it.

        Args:
            path: The file.
            skipped: What was skipped for it.
            is_over: Whether Ctrl-C was pressed.

        Raises:
            SchemaError: the data set that it is to be added to has other fields.
            FastRecordError: the store does not answer. KeyboardInterrupt: Ctrl-C.
        """
        self._pending.append(submit(self._send, path, list(skipped)))
        self._wait(_AHEAD, is_over)

    def finish(self, paths: Sequence[str], is_over: Callable[[], bool]) -> list[ShardEntry]:
        """Make the files that have been sent a data set; return them.

        Args:
            paths: Where they were made, in order.
            is_over: Whether Ctrl-C was pressed; it is not looked at once the manifest is written.

        Raises:
            FileExistsError: another process has written a data set there meanwhile.
            FastRecordError: the store does not answer. KeyboardInterrupt: Ctrl-C.
        """
        self._wait(0, is_over)
        entries = [found[0] for path in paths if (found := self.sent(path)) is not None]
        if not self.is_file:
            self._put_manifest(entries)
            self._is_complete = True
            try:
                self._remote.delete(self._state["replaced"])
            except FastRecordError as error:
                error.add_note(f"{self.url}: the new data set is complete; `--resume` deletes shards of the one before")
                raise
        os.unlink(os.path.join(self._folder, _JOURNAL))
        return entries

    def stored(self) -> list[ShardEntry]:
        """Return the files that are in the store, by the manifest, or the one file."""
        if not self.is_file:
            return [] if self._before is None else self._before.entries()
        return [self._open_stored(f"{self._stem}.frec")[0]]

    def metadata(self) -> dict[str, Any] | None:
        """Return the metadata of the newest shard of the data set that is there; None without one."""
        if self.is_file or self._before is None or not len(self._before):
            return None
        return self._open_stored(self._before.columns["name"][-1])[1]

    def _open_stored(self, name: str) -> tuple[ShardEntry, dict[str, Any]]:
        entry, reader, _ = open_remote(CachedFolder(self._remote), name)
        with reader:
            return entry, reader.metadata

    def _take_folder(self) -> None:
        """Make the staging folder, and lock it."""
        os.makedirs(os.path.dirname(self._folder), exist_ok=True)
        while True:
            with suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            about = os.lstat(self._folder)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                raise Code.NOT_A_FOLDER.error(f"{self._folder}: is not a folder of this user: choose another --staging")
            lock = os.open(
                os.path.join(self._folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise Code.LOCKED.error(
                    f"{self.url}: another pack into it is running; its staging folder is {self._folder}"
                ) from None
            except OSError as err:
                os.close(lock)
                raise Code.NO_LOCKS.error(
                    f"{self._folder}: its file system has no locks: {err.strerror}: choose another --staging"
                ) from None
            if is_linked(lock, os.path.join(self._folder, _LOCK)):
                self._lock = lock
                return
            os.close(lock)  # the pack that it belonged to has removed it

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _is_begun(self) -> bool:
        """Whether something has been packed that `--resume` could use."""
        with suppress(OSError):
            return bool(self._state.get("shards")) or any(n.endswith(".frec") for n in os.listdir(self._folder))
        return False

    def _begin(self) -> None:
        """Find out what is there, and what this run does."""
        self._before = None if self.is_file else self._set.read()
        exists = self._remote.exists(f"{self._stem}.frec") if self.is_file else self._before is not None
        begun = _read(os.path.join(self._folder, _JOURNAL))
        mode = self._mode
        if begun is not None and mode == "resume":
            self._use(begun)
            return
        if begun is not None:
            if mode != "overwrite":
                raise FileExistsError(
                    f"{self.url}: a pack into it was not finished: `--resume` (mode='resume') continues it, "
                    f"`--overwrite` (mode='overwrite') begins again; its staging folder is {self._folder}"
                )
            self._discard(begun)
        if mode == "resume":
            self._is_complete, mode = exists, "create"
        if self.is_file and mode == "append":
            raise Code.REMOTE.error(
                f"{self.url}: a file in an object store cannot be added to: name its folder, whose data set gets more "
                "shards; or `fastrecord copy` it here, add to it, and `fastrecord copy --overwrite` it back"
            )
        if mode == "create" and exists and not self._is_complete:
            adds = "" if self.is_file else "`--append` (mode='append') adds shards, "
            where = self.url if self.is_file else self._remote.where(NAME)
            raise FileExistsError(f"{where}: exists already: {adds}`--overwrite` (mode='overwrite') replaces it")
        known: list[str] | None = None
        if mode == "append" and self._before is not None:
            known = list(dict.fromkeys(name for names in self._before.classes for name in names)) or None
        self._use(
            {
                "id": secrets.token_hex(8),
                "mode": mode,
                "known": known,  # classes of the data set that shards are added to
                "input": None,
                "shards": {},  # that have been sent, and what was skipped for them
                "replaced": [],
            }
        )

    def _use(self, state: dict[str, Any]) -> None:
        self._state = state
        self.classes = state["known"]
        name = self._stem if self.is_file else f"{self._stem}-{state['id'][:8]}"
        self.base = os.path.join(self._folder, f"{name}.frec")

    def _discard(self, state: dict[str, Any]) -> None:
        """Remove what an unfinished pack has left, here and in the store."""
        if not self.is_file:
            named = set() if self._before is None else set(self._before.columns["name"])
            # Files that are here may have been on their way.
            names = {*state["shards"], *(name for name in os.listdir(self._folder) if name.endswith(".frec"))}
            self._remote.delete(sorted(names - named))
        for name in os.listdir(self._folder):
            if name != _LOCK:
                os.unlink(os.path.join(self._folder, name))

    def _compare_complete(self, digest: str) -> None:
        """Refuse a finished pack of another input."""
        if self.is_file:
            return  # its name says nothing of its input
        found = self.metadata()
        shard = None if found is None else Shard.of(found)
        if shard is None or shard.set[:_DIGEST] != digest:
            raise Code.OTHER_INPUT.error(
                f"{self.url}: is complete, and was packed from another input or with other settings: `--append` adds "
                "to it, `--overwrite` replaces it"
            )

    def _find_sent(self) -> None:
        """Open files that the journal names; forget those that the store does not have."""
        shards = self._state["shards"]
        for name, result in zip([*shards], self._set.open([*shards]), strict=True):
            if isinstance(result, (FileNotFoundError, CorruptFileError)):
                del shards[name]
            else:
                self._found[name] = or_raise(result)

    def _wait(self, most: int, is_over: Callable[[], bool]) -> None:
        """Wait until at most so many files are still being sent."""
        while len(self._pending) > most:
            try:
                self._pending[0].result(_LOOK_SECONDS)
            except TimeoutError:
                if self._pending[0].done():
                    raise
                if is_over():
                    raise KeyboardInterrupt(f"{self.url}: `--resume` continues") from None
                continue
            self._pending.popleft()

    def _send(self, path: str, skipped: list[tuple[str, str]]) -> None:
        shard = find_shard(path)
        entry = shard.entry
        if self._state["mode"] == "append" and self._before is not None:
            self._next(self._before, [shard], [entry])
        # Perhaps a run that was killed has sent it.
        if self.is_file or not self._remote.is_copy(entry.name, path):
            send(self._remote, entry.name, path, parallel=PARALLEL // (1 + _AHEAD))
        with self._changing:
            if self._over:
                return
            if any(found.entry.classes != entry.classes for found in self._found.values()):
                raise Code.OTHER_INPUT.error(
                    f"{self.url}: its first shards have other classes: give the same, or begin again with `--overwrite`"
                )
            self._found[entry.name] = shard
            self._state["shards"][entry.name] = skipped
            self._write()
            os.unlink(path)

    def _put_manifest(self, entries: list[ShardEntry]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            before = self._set.read()
            if before is not None and {entry.name for entry in entries} <= set(before.columns["name"]):
                return  # a run that was killed has done it
            if before is not None and self._state["mode"] == "create":
                raise FileExistsError(
                    f"{self._remote.where(NAME)}: another process has written a data set there meanwhile"
                )
            kept = before.entries() if before is not None and self._state["mode"] == "append" else []
            made = self._next(before, list(self._found.values()), kept + entries)
            self._state["replaced"] = [] if before is None or kept else list(before.columns["name"])
            self._write()
            try:
                self._set.put(made)
                return
            except FastRecordError as error:
                if error.code != Code.REPLACED or not kept or attempt == _ATTEMPTS:
                    raise

    def _next(self, before: Manifest | None, found: Sequence[FoundShard], entries: Sequence[ShardEntry]) -> Manifest:
        is_added = before is not None and self._state["mode"] == "append"
        schema = before.schema if before is not None and is_added else found[0].schema
        return next_manifest(self._remote.url, before, found, entries, schema, allow_incomplete=False)

    def _write(self) -> None:
        write_journal(os.path.join(self._folder, _JOURNAL), self._state)


def _read(path: str) -> dict[str, Any] | None:
    """Return the journal of an unfinished pack; None without one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as err:
        raise Code.NOT_PACKED.error(f"{path}: is not a journal of this version: remove its folder: {err}") from None
    return found if isinstance(found, dict) and "shards" in found else None
