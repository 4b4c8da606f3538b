"""`Cache`: a folder of local copies of shards, shared by all processes of a machine.

Its size is kept below a limit. Parts are given up in two steps: first they are marked as not here,
then their space is freed, once no process reads them any more. A process that reads holds a lock on
the number of the current generation; giving up parts begins another generation, and waits until none
holds an earlier one (as in read-copy-update). All locks end with their process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import resource
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import crc32c
from fastrecord.errors import Code
from fastrecord.store.cached_file import CachedFile, Head, Traffic
from fastrecord.store.locks import lock, locked, pauses, try_lock, unlock
from fastrecord.store.marks import Part, is_busy, part_of, remove, write_whole
from fastrecord.store.requests import PAGE, Answer, Store

_STATE = "fastrecord-cache"
_MARKS = ".frec.parts"
# Bytes of the state file that are locked: to change what it says; while a process has the cache
# open; while a manifest is read; generations.
_CHANGE, _OPEN, _MANIFEST, _GENERATIONS = 0, 1, 2, 1 << 40
# Seconds to wait for readers of what is to be given up.
_PATIENCE = 60.0
# Seconds within which the ranks of a node count as started together.
_TOGETHER = 10.0
# Numbers in the state file: how often parts were given up; bytes; how often a process has found it without others.
_GENERATION, _USED, _SESSION = 0, 1, 2
# Copies that a process has open at most: a share of the files that it may open, with two of them for each.
_MOST_OPEN = max(4, min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16))


class Hold:
    """Keeps what is in a cache from being freed, until it is released or collected.

    Attributes:
        generation: The generation of the cache.
    """

    def __init__(self, cache: Cache | None, generation: int) -> None:
        self._cache, self.generation = cache, generation

    def release(self) -> None:
        """Let go; a second call does nothing."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.release(self.generation)

    def __del__(self) -> None:
        self.release()


class Cache:
    """A folder of copies.

    Args:
        folder: Made if it does not exist; None: copies have no names, and are gone with the process.
        limit: Bytes of payloads and columns that are kept at most; None: as many as there are.

    Attributes:
        folder, limit: As given.
        on_wait: Called while it waits for readers: each may release what this process holds.

    Raises:
        FastRecordError: the folder is something else. OSError: the system refuses it.
    """

    def __init__(self, folder: str | None, limit: int | None = None) -> None:
        self.folder, self.limit, self._place = folder, limit, folder or ""
        self.on_wait: list[Callable[[], object]] = []
        self._process = os.getpid()
        self._lock, self._changing = threading.RLock(), threading.Lock()
        self._held: dict[int, int] = {}
        # All that are in use, and the ones used last, which stay open. Those without a name are kept by who uses them.
        self._files: weakref.WeakValueDictionary[str, CachedFile] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[str, CachedFile] = OrderedDict()
        self._traffic: dict[str, Traffic] = {}
        self._session = 0
        self._change = self._holding = -1
        if folder is None:
            return
        with contextlib.suppress(FileExistsError):
            os.makedirs(folder)
        state = os.path.join(folder, _STATE)
        try:
            if not os.path.exists(state) and os.listdir(folder):
                raise Code.CACHE.error(f"{folder}: holds other files: give the cache a folder of its own")
            self._change = os.open(state, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and os.path.isfile(state):
                return  # it can be read: copies of this process take from it
            raise
        with contextlib.suppress(PermissionError):
            os.fchmod(self._change, os.stat(folder).st_mode & 0o666)
        # Locks of one open file do not exclude each other: who holds and who waits need different ones.
        self._holding = os.open(state, os.O_RDWR | os.O_CLOEXEC)
        with self._alone():
            if os.fstat(self._change).st_size < PAGE:
                os.ftruncate(self._change, PAGE)
            self._state = np.frombuffer(mmap.mmap(self._change, PAGE), np.int64)
            if try_lock(self._holding, _OPEN):
                # No other process has it open: what is left was left by killed ones.
                self._sweep()
                self._state[_SESSION] += 1
            lock(self._holding, _OPEN, shared=True)
            self._session = int(self._state[_SESSION])

    @property
    def is_named(self) -> bool:
        """Whether copies stay when this process ends."""
        return self._change >= 0

    def file(self, store: Store, shard: Part, head: Head | None = None) -> CachedFile:
        """Return the copy of a shard: the same object for the same content.

        Args:
            store: Where it is brought from.
            shard: What the manifest says of it.
            head: What has been read of it already.
        """
        # The content, not the place: two URLs of one shard share a copy.
        name = f"{shard.file_id}-{shard.commit}-{shard.footer_crc:08x}"
        with self._lock:
            found = self._files.get(name)
            if found is None:
                place = None if self.folder is None else os.path.join(self.folder, f"{name}.frec")
                named, base = (place, None) if self.is_named else (None, place)
                traffic = self.traffic(store)
                about = named, self.reserve, traffic
                found = CachedFile(store, shard, *about, session=self._session, head=head, base=base)
                self._files[name] = found
            closed = None
            if self.is_named:
                self._recent[name] = found
                self._recent.move_to_end(name)
                if len(self._recent) > _MOST_OPEN:
                    _, closed = self._recent.popitem(last=False)
        del closed  # without the lock: it takes time
        return found

    def traffic(self, store: Store) -> Traffic:
        """Return what counts the bytes of a store."""
        return self._traffic.setdefault(store.url, Traffic())

    def hold(self) -> Hold:
        """Keep what is here from being freed, until the result is released or collected."""
        if not self.is_named:
            return Hold(None, 0)
        with self._lock:
            while True:
                generation = int(self._state[_GENERATION])
                if self._held.get(generation):
                    break
                # Only who gives up holds it against us, for an instant.
                if try_lock(self._holding, _GENERATIONS + generation, shared=True):
                    if generation == int(self._state[_GENERATION]):
                        break
                    unlock(self._holding, _GENERATIONS + generation)
            self._held[generation] = self._held.get(generation, 0) + 1
        return Hold(self, generation)

    def release(self, generation: int) -> None:
        """Undo `hold`."""
        if self._process != os.getpid():
            return  # a fork shares its parent's lock
        with self._lock:
            self._held[generation] -= 1
            if not self._held[generation]:
                del self._held[generation]
                unlock(self._holding, _GENERATIONS + generation)

    @property
    def used(self) -> int:
        """Bytes that the copies take."""
        return int(self._state[_USED]) if self.is_named else 0

    def reserve(self, size: int) -> None:
        """Make room for bytes that are to be written; below 0, take back bytes that were not needed.

        Raises:
            FastRecordError: the limit is too small for what is needed at once.
        """
        if not self.is_named or not size:
            return
        with self._alone():
            if size > 0 and self.limit is not None and self.used + size > self.limit:
                self._make_room(size)
            self._state[_USED] = max(0, self.used + size)

    def give_up(self, files: Sequence[tuple[CachedFile, Sequence[str], NDArray[np.int64]]]) -> int:
        """Give up payloads: fields and records of copies. Waits until none reads them; return their bytes.

        Raises:
            FastRecordError: processes still read them after a minute.
        """
        with self._alone():
            return self._give_up(files)

    def manifest(self, url: str, ask: Callable[[str | None], Answer | None]) -> bytes:
        """Return the bytes of a manifest: the one that is here, if it is still the store's.

        Ranks of a node that start together (`LOCAL_WORLD_SIZE` above 1) ask once.

        Args:
            url: Its URL.
            ask: Returns the object, or None if it still has an ETag.
        """
        path = os.path.join(self._place, hashlib.sha256(url.encode()).hexdigest()[:32] + ".json")
        together = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1) > 1
        known = self._known_manifest(path) if together else None
        if known is not None and known[2] < _TOGETHER:
            return known[1]
        with self._manifest_lock():
            known = self._known_manifest(path)
            if known is not None and together and known[2] < _TOGETHER:
                return known[1]
            answer = ask(None if known is None else known[0])
            if answer is None and known is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)
                return known[1]
            if answer is None:
                raise AssertionError
            content = bytes(answer.data)
            if self.is_named:
                write_whole(path, b"%08x %s\n" % (crc32c(content), (answer.etag or "").encode()) + content)
        return content

    def _known_manifest(self, path: str) -> tuple[str | None, bytes, float] | None:
        """Return the ETag and bytes of a manifest that is here, and the seconds since it was asked for."""
        if self.folder is None:
            return None
        try:
            with open(path, "rb") as file:
                age, content = time.time() - os.fstat(file.fileno()).st_mtime, file.read()
        except OSError:
            return None
        line, _, content = content.partition(b"\n")
        if line[:8] != b"%08x" % crc32c(content):
            return None  # the machine was started anew before all of it was on the disk
        return line[9:].decode() or None, content, age

    @contextlib.contextmanager
    def _manifest_lock(self) -> Iterator[None]:
        if self.is_named:
            with self._changing, locked(self._change, _MANIFEST):
                yield
        else:
            yield

    def after_fork(self) -> None:
        """Replace locks that another thread of the parent may have held."""
        self._lock, self._changing = threading.RLock(), threading.Lock()
        for file in list(self._files.values()):
            file.after_fork()
        for traffic in self._traffic.values():
            traffic.after_fork()

    def _give_up(self, files: Sequence[tuple[CachedFile, Sequence[str], NDArray[np.int64]]]) -> int:
        for file, fields, records in files:
            file.forget(fields, records)
        self._wait_for_readers()
        freed = sum(file.free(fields, records) for file, fields, records in files)
        self._state[_USED] = max(0, self.used - freed)
        return freed

    def _make_room(self, size: int) -> None:
        """Give up the copies that were not used for longest."""
        limit = self.limit or 0
        with os.scandir(self._place) as entries:
            copies = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.name.endswith(_MARKS)]
        for _, marks in sorted(copies):
            if self.used + size <= limit:
                return
            place = os.path.join(self._place, marks.removesuffix(".parts"))
            freed = remove(place, self._session)
            self._state[_USED] = max(0, self.used - freed)
            if not freed and (file := self._found(place)) is not None:
                for field in file.payload_fields:
                    self._give_up([(file, [field], file.here(field))])
        if self.used + size > limit:
            raise Code.CACHE.error(
                f"{self.folder}: cache_size={limit:,} bytes are too few: {size:,} bytes more are needed at once"
            )

    def _wait_for_readers(self) -> None:
        before = int(self._state[_GENERATION])
        self._state[_GENERATION] = before + 1
        end, pause = time.monotonic() + _PATIENCE, pauses()
        while not try_lock(self._change, _GENERATIONS, before + 1):
            for release in list(self.on_wait):
                release()
            if time.monotonic() > end:
                raise Code.CACHE.error(
                    f"{self.folder}: its limit of {self.limit or 0:,} bytes is reached, and processes still read what "
                    f"is to be given up, for {_PATIENCE:.0f} seconds: give it more space (cache_size)"
                )
            pause()
        unlock(self._change, _GENERATIONS, before + 1)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._changing, locked(self._change, _CHANGE):
            yield

    def _sweep(self) -> None:
        """Remove what killed processes have left, and measure the rest."""
        names = set(os.listdir(self._place))
        for name in names:
            path = os.path.join(self._place, name)
            whole = name.removesuffix(".parts")
            if name.endswith(".frec") and f"{name}.parts" not in names:
                os.unlink(path)  # its head never came
            elif (name.endswith(_MARKS) and whole not in names) or name.rpartition(".")[2].isdecimal():
                os.unlink(path)
            elif name.endswith(_MARKS) and is_busy(path.removesuffix(".parts")):
                file = self._found(path.removesuffix(".parts"))
                if file is not None:
                    file.clear()
        with os.scandir(self._place) as entries:
            self._state[_USED] = sum(entry.stat().st_blocks * 512 for entry in entries if entry.name.endswith(".frec"))

    def _found(self, place: str) -> CachedFile | None:
        """Return a copy that is here; None if it is none."""
        file = self._files.get(os.path.basename(place).removesuffix(".frec"))
        part = part_of(place) if file is None else None
        if part is not None:
            # Only for what is here: nothing is brought.
            file = CachedFile(Store.of(self._place), part, place, self.reserve, Traffic())
        return file
