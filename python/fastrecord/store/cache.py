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
import math
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, crc32c
from fastrecord.checks import local_ranks
from fastrecord.errors import Code
from fastrecord.store import ranks
from fastrecord.store.address import Url
from fastrecord.store.answer import Answer
from fastrecord.store.cached_file import CachedFile, Facts, Head, Traffic
from fastrecord.store.locks import lock, locked, pauses, try_lock, unlock
from fastrecord.store.marks import (
    NEW,
    boot_id,
    charge_of,
    info_of,
    is_busy,
    open_file,
    open_shared,
    remove,
    write_whole,
)
from fastrecord.store.requests import PAGE, RemoteFolder
from fastrecord.store.shard_info import ShardInfo
from fastrecord.store.threads import start

_STATE = "fastrecord-cache"
_MARKS = ".frec.parts"
# Bytes of the state file that are locked: to change what it says; while a process has the cache
# open; while a manifest is read; while only one process may make room; while a process uses a number in
# `_WAITING`; generations.
_CHANGE, _OPEN, _MANIFEST, _TURN, _SLOTS, _GENERATIONS = 0, 1, 2, 3, 1 << 20, 1 << 40
# Seconds to wait for readers of what is to be given up.
_PATIENCE = 60.0
# Seconds between two looks whether other processes wait for what this one holds.
_LOOK_SECONDS = 0.02
# Seconds within which the ranks of a node count as started together.
_TOGETHER = 10.0
# Bytes of a manifest that is kept at most: that of some million shards.
_MOST_MANIFEST_BYTES = 1 << 28
# Numbers in the state file: how often parts were given up; bytes; how often a process has found it without
# others; whether a process gives up parts, or was killed when it did; and for each process the bytes that
# it has reserved and no copy counts yet.
_GENERATION, _USED, _SESSION, _GIVING, _WAITING = 0, 1, 2, 255, slice(256, 512)
# Copies that a process has open at most: a share of the files that it may open, with two of them for each.
_MOST_OPEN = max(4, min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16))

# What a copy is of: a store, and content.
_Key = tuple[RemoteFolder, str]
# Payloads of a copy: of fields, None for all, and of records.
_Payloads = tuple[CachedFile, Sequence[str] | None, NDArray[np.int64]]


class Hold:
    """Keeps what is in a cache from being freed, until it is released or collected.

    Attributes:
        generation: The generation of the cache.
    """

    def __init__(self, cache: Cache | None, generation: int) -> None:
        self._caches, self.generation = [] if cache is None else [cache], generation

    def release(self) -> None:
        """Let go; a second call does nothing."""
        try:
            cache = self._caches.pop()
        except IndexError:  # several threads may call it at once
            return
        cache.release(self.generation)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter ends, modules may be gone; the locks end with the process.
        if self._caches and not _is_finalizing():
            self.release()


class Cache:
    """A folder of copies.

    Args:
        folder: Made if it does not exist; None: copies have no names, and are gone with the process.
        limit: Bytes of payloads and columns that are kept at most; None: as many as there are.

    Attributes:
        folder, limit: As given.
        session: How often a process has found the cache without others.

    Raises:
        FastRecordError: the folder is something else. OSError: the system refuses it.
    """

    def __init__(self, folder: str | None, limit: int | None = None) -> None:
        self.folder, self.limit, self._place = folder, limit, folder or ""
        self._releases: list[Callable[[], object]] = []
        self._process = os.getpid()
        self._lock, self._changing = threading.RLock(), threading.Lock()
        self._held: dict[int, int] = {}
        self._turns, self._turn, self._asking = threading.Lock(), 0, threading.Lock()
        self._wanted: dict[str, NDArray[np.int64] | None] = {}
        # All that are in use, and the ones used last, which stay open. Readers keep those without a name.
        self._files: weakref.WeakValueDictionary[_Key, CachedFile] = weakref.WeakValueDictionary()
        self._places: weakref.WeakValueDictionary[str, CachedFile] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[_Key, CachedFile] = OrderedDict()
        self._traffic: dict[str, Traffic] = {}
        self._facts: dict[_Key, Facts] = {}
        self.session = 0
        self._change = self._holding = self._slot = -1
        if folder is None:
            return
        with contextlib.suppress(FileExistsError):
            os.makedirs(folder)
        state = os.path.join(folder, _STATE)
        try:
            # The state file is a cache's first: another process may be making it.
            if (names := os.listdir(folder)) and _STATE not in names:
                raise Code.CACHE.error(f"{folder}: holds other files: give the cache a folder of its own")
            self._change = open_shared(state)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and os.path.isfile(state):
                return  # it can be read: copies of this process take from it
            raise
        # Locks of one open file do not exclude each other: a process holds with one, and tries with another.
        self._holding = os.open(f"/proc/self/fd/{self._change}", os.O_RDWR | os.O_CLOEXEC)
        with self._alone():
            if os.fstat(self._change).st_size < PAGE:
                os.ftruncate(self._change, PAGE)
            self._state = np.frombuffer(mmap.mmap(self._change, PAGE), np.int64)
            if try_lock(self._holding, _OPEN):
                # No other process has it open: what is left was left by killed ones.
                self._sweep()
                if not self._is_sound:
                    self._state[:] = 0
                self._state[_SESSION] += 1
            if not self._is_sound:
                raise Code.CACHE.error(
                    f"{state}: is damaged: end the processes that use the cache, and remove its folder"
                )
            lock(self._holding, _OPEN, shared=True)
            self.session = int(self._state[_SESSION])
            self._slot = self._take_slot()

    @property
    def _is_sound(self) -> bool:
        """Whether the numbers of the state can be what they count; a generation is also a place that is locked."""
        return all(0 <= int(self._state[number]) < 1 << 61 for number in (_GENERATION, _SESSION))

    @property
    def is_named(self) -> bool:
        """Whether copies stay when this process ends."""
        return self._change >= 0

    def unnamed(self) -> Cache:
        """Return a cache for a copy that cannot have a name in this one, and counts nowhere."""
        return Cache(None)

    def file(self, store: RemoteFolder, shard: ShardInfo, head: Head | None = None) -> CachedFile:
        """Return the copy of a shard: the same object for the same store and content.

        Args:
            store: Where it is brought from.
            shard: What the manifest says of it.
            head: What has been read of it already.
        """
        key = _, name = _key(store, shard)
        with self._lock:
            found = self._files.get(key)
            if found is None:
                place = None if self.folder is None else os.path.join(self.folder, f"{name}.frec")
                named, base = (place, None) if self.is_named else (None, place)
                facts = self._facts.setdefault(key, Facts()) if self.is_named else None
                found = CachedFile(store, shard, named, self, self.traffic(store), facts=facts, head=head, base=base)
                self._files[key] = found
                if named is not None:
                    self._places[named] = found
            closed = None
            if self.is_named:
                self._recent[key] = found
                self._recent.move_to_end(key)
                if len(self._recent) > _MOST_OPEN:
                    _, closed = self._recent.popitem(last=False)
        del closed  # without the lock: it takes time
        return found

    def facts(self, store: RemoteFolder, shard: ShardInfo) -> Facts:
        """Return what is known of a copy; nothing is opened."""
        key = _key(store, shard)
        if self.is_named:
            return self._facts.setdefault(key, Facts())
        file = self._files.get(key)  # what is known of one without a name ends with it
        return Facts() if file is None else file.facts

    def traffic(self, store: RemoteFolder) -> Traffic:
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
                # A process that gives up holds it for an instant.
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

    @contextlib.contextmanager
    def releasing(self, release: Callable[[], object]) -> Iterator[None]:
        """Meanwhile, have a function release what this process holds and needs no more.

        It is called when this process or another one waits for that, by any thread: a rank that waits
        in its training step for another rank must not keep that one from making room.
        """
        self._releases.append(release)
        over, process, current = threading.Event(), os.getpid(), os.getpid
        watch = threading.Thread(target=self._watch, args=(release, over), name="fastrecord-release", daemon=True)
        try:
            if self.is_named and self.limit is not None:
                start(watch)
            yield
        finally:
            if process == current():  # else it is the parent's
                over.set()
                self._releases.remove(release)
                if watch.is_alive() and watch is not threading.current_thread():
                    watch.join()

    def _watch(self, release: Callable[[], object], over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            generation = int(self._state[_GENERATION])
            if any(held < generation for held in list(self._held)):
                release()

    @property
    def used(self) -> int:
        """Bytes that the copies take."""
        return int(self._state[_USED]) if self.is_named else 0

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Have what the system refuses meanwhile name the cache, and the way out."""
        try:
            yield
        except OSError as error:
            place = self.folder or tempfile.gettempdir()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                limit = "without cache_size" if self.limit is None else f"with cache_size={self.limit:,} bytes"
                what = f"the disk is full, {limit}: make room there, or give less to the cache"
                raise Code.CACHE.error(f"{place}: {what}") from error
            if self.is_named and not os.fstat(self._change).st_nlink:
                raise Code.CACHE.error(
                    f"{place}: the cache was removed while this process uses it: start the process again"
                ) from error
            raise

    def reserve(self, size: int) -> None:
        """Make room for bytes that are to be written; `settle` says what became of them.

        Raises:
            FastRecordError: the limit is too small for what is needed at once.
        """
        pause = pauses()
        while self.is_named and size and not self._try_reserve(size):
            self.let_go()
            pause()

    def _try_reserve(self, size: int) -> bool:
        """Reserve bytes, unless it takes room that only another thread or process may make now, or has reserved."""
        with self._alone():
            if self.limit is not None and self.used + size > self.limit:
                if self._turn != threading.get_ident():
                    if not try_lock(self._holding, _TURN):
                        return False
                    unlock(self._holding, _TURN)
                if not self._make_room(size):
                    return False
            self._state[_USED] += size
            self._wait_for(size)
        return True

    @contextlib.contextmanager
    def turn(self, wanted: Iterable[tuple[CachedFile, NDArray[np.int64] | None]]) -> Iterator[None]:
        """Let no other thread or process make room meanwhile, so that what this one brings stays.

        Args:
            wanted: Copies and records, None for all, that are not given up either.
        """
        if not self.is_named:
            yield
            return
        with self._turns, locked(self._change, _TURN):
            self._turn, self._wanted = threading.get_ident(), {file.place or "": records for file, records in wanted}
            try:
                yield
            finally:
                self._turn, self._wanted = 0, {}

    def settle(self, reserved: int, kept: int) -> None:
        """End a reservation, or a part of it: copies count the bytes that are kept, the others are not needed."""
        if not self.is_named:
            return
        if kept == reserved:
            self._wait_for(-reserved)
            return
        with self._alone():
            self._state[_USED] = max(0, self.used + kept - reserved)
            self._wait_for(-reserved)

    def give_up(self, files: Sequence[_Payloads]) -> int:
        """Give up payloads of copies. Waits until none reads them; return their bytes.

        Raises:
            FastRecordError: processes still read them after a minute.
        """
        for file, _, _ in files:
            file.open()  # it may need room, which cannot be made below
        with self._alone():
            self._recover()
            return self._give_up(files)

    def manifest(self, url: str, ask: Callable[[str | None], Answer | None]) -> bytes:
        """Return the bytes of a manifest: the one that is here, if it is still the store's.

        Ranks of a node that start together (`LOCAL_WORLD_SIZE` above 1) ask once.

        Args:
            url: Its URL.
            ask: Returns the object, or None if it still has an ETag.
        """
        path = os.path.join(self._place, hashlib.sha256(url.encode()).hexdigest()[:32] + ".json")
        together = (local_ranks() or 1) > 1
        with self._manifest_lock():
            known = self._known_manifest(path)
            if known is not None and together and 0 <= known[2] < _TOGETHER:
                return known[1]
            etag = None if known is None else known[0]
            answer = ask(etag)
            if answer is not None:
                content, etag = bytes(answer.data), answer.etag
            elif known is not None:
                content = known[1]
            else:
                raise AssertionError
            if self.is_named and (answer is not None or together):
                asked = b"%d %s" % (time.monotonic(), boot_id())
                body = b"%s %s\n" % (asked, (etag or "").encode()) + content
                with self.explained(), contextlib.suppress(PermissionError):  # another user's, with the sticky bit
                    write_whole(path, b"%08x " % crc32c(body) + body)
        return content

    def _known_manifest(self, path: str) -> tuple[str | None, bytes, float] | None:
        """Return the ETag and bytes of a manifest that is here, and the seconds since it was asked for."""
        if self.folder is None:
            return None
        try:
            with os.fdopen(open_file(path), "rb") as file:
                if os.fstat(file.fileno()).st_size > _MOST_MANIFEST_BYTES:
                    return None  # another user has put it there
                crc, _, body = file.read().partition(b" ")
        except OSError:
            return None
        if crc != b"%08x" % crc32c(body):
            return None  # the machine was started anew before all of it was on the disk, or a bit has changed
        line, _, content = body.partition(b"\n")
        asked, boot, etag = line.split(b" ", 2)
        # Not by the time of day, which may be set back.
        age = time.monotonic() - int(asked) if boot == boot_id() else math.inf
        return etag.decode() or None, content, age

    @contextlib.contextmanager
    def _manifest_lock(self) -> Iterator[None]:
        if self.is_named:
            with self._asking, locked(self._change, _MANIFEST):
                yield
        else:
            yield

    def after_fork(self) -> None:
        """Replace locks that another thread of the parent may have held."""
        self._lock, self._changing, self._turns = threading.RLock(), threading.Lock(), threading.Lock()
        self._asking = threading.Lock()
        for file in list(self._files.values()):
            file.after_fork()
        for traffic in self._traffic.values():
            traffic.after_fork()

    def _give_up(self, files: Sequence[_Payloads]) -> int:
        self._state[_GIVING] = 1  # it stays if this is killed between two numbers
        freed = sum(file.forget(fields, records) for file, fields, records in files)
        self._wait_for_readers()
        for file, fields, records in files:
            file.free(fields, records)
        self._state[_USED] = max(0, self.used - freed)
        self._state[_GIVING] = 0
        return freed

    def _make_room(self, size: int) -> bool:
        """Give up the copies that were not used for longest; return False if others have reserved the room."""
        limit = self.limit or 0
        self._recover()
        # What comes at the moment can be given up later; more is not reserved meanwhile.
        others = bool(self._state[_WAITING].any())
        with os.scandir(self._place) as entries:
            copies = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.name.endswith(_MARKS)]
        places = [os.path.join(self._place, name.removesuffix(".parts")) for _, name in sorted(copies)]
        for place in sorted(places, key=self._wanted.__contains__):
            if self.used + size <= limit:
                return True
            freed = 0 if place in self._wanted else remove(place, self.session)
            self._state[_USED] = max(0, self.used - freed)
            if not freed and (file := self._found(place)) is not None:
                records = np.arange(file.shard.records)
                if place in self._wanted:
                    kept = self._wanted[place]
                    records = np.setdiff1d(records, records if kept is None else kept)
                self._give_up([(file, None, records)])
        if self.used + size > limit and not others:
            raise Code.CACHE.error(
                f"{self.folder}: cache_size={limit:,} bytes are too few: {size:,} bytes more are needed at once"
            )
        return self.used + size <= limit

    def _take_slot(self) -> int:
        """Return the number in `_WAITING` that is this process's; -1 if all are taken."""
        for slot in range(_WAITING.stop - _WAITING.start):
            if try_lock(self._holding, _SLOTS + slot):
                if self._state[_WAITING][slot]:  # of a process that was killed
                    self._state[_WAITING][slot], self._state[_GIVING] = 0, 1
                return slot
        return -1

    def _wait_for(self, size: int) -> None:
        """Count bytes that this process has reserved, and no copy counts yet."""
        with self._lock:
            if self._slot >= 0:
                self._state[_WAITING][self._slot] += size

    def _dead(self) -> list[int]:
        """Return the slots of killed processes that had reserved something."""
        # In a copy of the numbers: numpy refuses to search what others change meanwhile.
        return [slot for slot in np.flatnonzero(self._state[_WAITING].copy()).tolist() if self._is_dead(slot)]

    def _is_dead(self, slot: int) -> bool:
        if slot == self._slot or not try_lock(self._change, _SLOTS + slot):
            return False
        unlock(self._change, _SLOTS + slot)
        return True

    def _recover(self) -> None:
        """Give back what killed processes have left, if any, and count again, beside processes that go on."""
        if not (self._state[_GIVING] or self._dead()):
            return
        self._state[_GIVING] = 1
        self._wait_for_readers()  # of what was given up
        self._state[_WAITING][self._dead()] = 0
        self._count(alone=False)

    def _count(self, *, alone: bool) -> None:
        """Count what is used, after copies have given back what killed processes have left in them."""
        for place in filter(is_busy, self._copies()):
            if (file := self._found(place)) is not None:
                file.clear(alone=alone)
        # What becomes a copy's meanwhile counts twice, not never, until the next time.
        waiting = int(self._state[_WAITING].sum())
        self._state[_USED] = waiting + sum(map(charge_of, self._copies()))
        self._state[_GIVING] = 0

    def _copies(self) -> list[str]:
        names = os.listdir(self._place)
        return [os.path.join(self._place, name.removesuffix(".parts")) for name in names if name.endswith(_MARKS)]

    def let_go(self) -> None:
        """Release what this process holds and needs no more."""
        for release in list(self._releases):
            release()

    def _wait_for_readers(self) -> None:
        before = int(self._state[_GENERATION])
        self._state[_GENERATION] = before + 1
        end, pause = time.monotonic() + _PATIENCE, pauses()
        while not try_lock(self._change, _GENERATIONS, before + 1):
            self.let_go()
            if time.monotonic() > end:
                raise Code.CACHE.error(
                    f"{self.folder}: its limit of {self.limit or 0:,} bytes is reached, and processes still read what "
                    f"is to be given up, for {_PATIENCE:.0f} seconds: give it more space (cache_size)"
                )
            pause()
        unlock(self._change, _GENERATIONS, before + 1)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._changing:
            pause = pauses()
            while not try_lock(self._change, _CHANGE):
                self.let_go()  # the lock's holder may wait for what this process holds
                pause()
            try:
                yield
            finally:
                unlock(self._change, _CHANGE)

    def _sweep(self) -> None:
        """Remove what killed processes have left, and measure the rest."""
        names = set(os.listdir(self._place))
        for name in names:
            headless = name.endswith(".frec") and f"{name}.parts" not in names
            bare = name.endswith(_MARKS) and name.removesuffix(".parts") not in names
            if headless or bare or name.endswith((ranks.SUFFIX, NEW)):
                with contextlib.suppress(OSError):  # another user's, in a folder with the sticky bit, or a folder
                    os.unlink(os.path.join(self._place, name))
        self._state[_WAITING] = 0
        self._count(alone=True)

    def _found(self, place: str) -> CachedFile | None:
        """Return a copy that is here, open; None if it cannot be opened."""
        file = self._places.get(place)
        part = info_of(place) if file is None else None
        if part is not None:
            # Only for what is here: nothing is brought.
            file = CachedFile(RemoteFolder(Url(self._place)), part, place, self, Traffic())
        try:
            return file if file is not None and file.open_here() and file.place == place else None
        except (OSError, FastRecordError):  # the next reader of it raises the error
            return None


def _key(store: RemoteFolder, shard: ShardInfo) -> _Key:
    # The content, not the place: two URLs of one shard share a copy.
    return store, f"{shard.file_id}-{shard.commit}-{shard.footer_crc:08x}"
