"""`CachedFile`: a local copy of a file in an object store, which may have only some of its parts.

The copy is a sparse file: each part lies at its own offset, and the rest are holes. Beside it, the
marks: a byte for each part. A part is the columns of one field, or one payload of one record. Its
byte is set only after the part's checksums were compared, so a process may be killed at any time:
what it was writing does not count. The file of the marks is made once the head is here, which is
what opening reads.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fastrecord._core import (
    CorruptFileError,
    FastRecordError,
    Reader,
    check_field,
    commit_parts,
    crc32c,
    damaged_payloads,
    field_parts,
    open_shard,
    payload_fields,
    payload_parts,
    punch_hole,
)
from fastrecord.errors import Code
from fastrecord.names import as_name
from fastrecord.store.locks import is_linked, lock, locked, pauses, try_lock, unlock
from fastrecord.store.marks import (
    BAD,
    COUNT,
    HERE,
    ONCE,
    OPENING,
    Marks,
    first_page,
    marks_of,
    open_file,
    open_shared,
    write_whole,
)
from fastrecord.store.ranges import Numbers, Ranges, grouped, lacking, merged, total
from fastrecord.store.requests import (
    ATTEMPTS,
    PAGE,
    PART,
    RemoteFolder,
    asked_until_good,
    at_once,
    is_forked,
    submit,
    write_at,
)
from fastrecord.store.shard_info import ShardInfo

if TYPE_CHECKING:
    from fastrecord.store.cache import Cache

# What is read from the end of a file at first: its columns, if it is not large.
_TAIL = 64 << 10
_BYTES_PER_RECORD = 56
_MOST_TAIL = 32 << 20
# Padding between two payloads is shorter.
_PADDING = 256
# Gaps that are read too, because a request for each side costs more.
_GAP = 64 << 10
# A reader of all records brings whole runs of so many bytes.
_RUN = 2 << 20
_MOST_RECORDS = 1 << 22  # of a file in which runs are looked for: 40 bytes of memory each and field
_MOST_PLACES = 1 << 18  # of a file whose places are all kept: 24 bytes of memory each
# Ranges that are compared at once.
_MOST_PORTION = 1000
_TOUCH_SECONDS = 5.0
# Seconds between two looks whether all parts are here.
_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Head:
    """What has been read of a file already: its first page, its end, and its ETag; and its bytes."""

    first: bytes
    tail: bytes
    etag: str | None
    size: int

    @classmethod
    def ask(cls, store: RemoteFolder, name: str, start: int = -_TAIL, length: int | None = None) -> Self:
        """Read the first page and the end of a file, side by side.

        Args:
            store: The folder.
            name: The file.
            start: Where the end begins, as for `RemoteFolder.get`.
            length: Its bytes.

        Raises:
            FileNotFoundError: it does not exist. FastRecordError: the store does not answer; the
                file changed meanwhile.
        """
        first, last = at_once(partial(store.get, name, 0, PAGE), partial(store.get, name, start, length))
        if first.etag != last.etag:
            raise Code.REPLACED.error(f"{store.where(name)}: changed while it was opened: open it again")
        return cls(bytes(first.data), bytes(last.data), last.etag, last.size)

    def commit(self, store: RemoteFolder, name: str) -> tuple[ShardInfo, Ranges]:
        """Return what the footer says of the file, and where the rest of what opening reads lies.

        Raises:
            CorruptFileError: it is not a .frec file, or does not end with a commit.
        """
        footer = self.tail[-PAGE:]
        file_id, commit, records, *rest = commit_parts(as_name(store.where(name)), self.first, footer, self.size - PAGE)
        return ShardInfo(name, file_id, commit, records, self.size, crc32c(footer[:-4])), rest


class Traffic:
    """Counts bytes of a store's files.

    Attributes:
        brought: Brought from the store.
        found: Payloads that were here already when a loader asked for them.
    """

    def __init__(self) -> None:
        self.brought = self.found = 0
        self._lock = threading.Lock()

    def add(self, *, brought: int = 0, found: int = 0) -> None:
        """Count bytes."""
        with self._lock:
            self.brought += brought
            self.found += found

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()


class Facts:
    """What is known of a copy, whether it is open or not.

    Attributes:
        whole: Fields (None: all) -> the generation of the cache in which all their parts were here.
        sizes: Fields -> the bytes of each record's payloads, int64 (records,).
    """

    def __init__(self) -> None:
        self.whole: dict[tuple[str, ...] | None, int] = {}
        self.sizes: dict[tuple[str, ...], Numbers] = {}


class CachedFile:
    """A local copy of a shard; closed when nothing refers to it.

    Args:
        store: Where the shard lies.
        shard: What the manifest says of it.
        place: The sparse file; None for one without a name, which is gone with this object.
        room: Where its bytes count.
        traffic: Counts what is brought and found.
        facts: What is known of it already.
        head: What has been read of it already.
        base: A copy in a cache that cannot be written to: its parts are taken from there.

    Attributes:
        store, shard, place, facts: As given.
    """

    _descriptor = _base = -1

    def __init__(
        self,
        store: RemoteFolder,
        shard: ShardInfo,
        place: str | None,
        room: Cache,
        traffic: Traffic,
        *,
        facts: Facts | None = None,
        head: Head | None = None,
        base: str | None = None,
    ) -> None:
        self.store, self.shard, self.place = store, shard, place
        self._room, self._traffic = room, traffic
        self._head, self._base_place = head, base
        self._opening, self._lock = threading.Lock(), threading.RLock()
        self._turns = threading.Condition()
        self._claimed: Ranges = []  # by threads of this process
        # By the numbers of marks: the payloads of runs that threads of this process bring.
        self._coming = np.zeros(0, np.bool_)
        self._reader: Reader | None = None
        self._marks: Marks | None = None
        self._base_marks: Marks | None = None
        self._all_rows: dict[str, Numbers] = {}
        self._all_places: tuple[list[str], tuple[Numbers, Numbers, Numbers] | None] | None = None
        self.facts = Facts() if facts is None else facts
        self._looked = self._touched = 0.0

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        # When the interpreter ends, the module `os` may be gone.
        for descriptor in (self._descriptor, self._base):
            if descriptor >= 0:
                _close(descriptor)

    @property
    def where(self) -> str:
        """The file's URL."""
        return as_name(self.store.where(self.shard.name))

    @property
    def is_open(self) -> bool:
        """Whether this object has opened the copy."""
        return self._marks is not None

    @property
    def reader(self) -> Reader:
        """Reads what is here."""
        self.open()
        return self._open_reader()

    @property
    def _known_marks(self) -> Marks:
        self.open()
        if self._marks is None:
            raise AssertionError
        return self._marks

    def open(self) -> str:
        """Bring what opening reads; return the path of the copy."""
        if not self.is_open:
            with self._room.explained(), self._opening:  # another thread may be quicker
                try:
                    while not (self.place is None or self.open_here()):
                        self._begin(self.place)
                except PermissionError:  # another user's: it is used as it is, and counts nowhere
                    self._base_place, self.place, self.facts, self._room = (
                        self.place,
                        None,
                        Facts(),
                        self._room.unnamed(),
                    )
                if not self.is_open:
                    self._open_unnamed()
        return self.place if self.place is not None else f"/proc/self/fd/{self._descriptor}"

    def open_here(self) -> bool:
        """Open the copy if what opening reads is here, else return False. Nothing is brought, and no room is needed.

        Raises:
            PermissionError: it is another user's.
        """
        with self._lock:
            if not self.is_open and self.place is not None and os.path.exists(marks_of(self.place)):
                with self._unremoved(self.place):
                    self._use_named(marks_of(self.place))
            return self.is_open

    def need(
        self,
        fields: Sequence[str] | None,
        records: Numbers | None,
        *,
        payloads: bool = True,
        whole: bool = False,
        count: bool = False,
        tight: bool = False,
    ) -> None:
        """Bring parts that are not here.

        Args:
            fields: Names of fields, or of columns such as "image.width"; None: all.
            records: Record numbers, int64 (N,); None: all.
            payloads: Whether payloads are needed, or columns only.
            whole: Whether all records are needed in the end: then neighbours come in larger runs.
            count: Count as found what is here already.
            tight: Bring no gaps between values, at the price of more requests.

        Raises:
            FastRecordError: the store does not answer, or has another file.
            CorruptFileError: a column is damaged in the store.
        """
        with self._room.explained():
            marks = self._known_marks
            self._touch()
            names = self._known(fields)
            self._bring_columns([name for name in names if not marks.has_columns(name)])
            if payloads:
                places = marks.places(names, self._numbers(records))
                missing = places[marks.every[places] == 0]
                if count:
                    here = places[marks.every[places] != 0]
                    self._traffic.add(found=_bytes_of(self._rows(here)))
                if len(missing) and whole and self.shard.records <= _MOST_RECORDS:
                    self._bring_runs(names, missing)
                    missing = missing[marks.every[missing] == 0]
                self._bring_payloads(self._rows(missing), PAGE if tight else _GAP)

    def mend(self, fields: Sequence[str] | None, records: Numbers | None, *, payloads: bool = True) -> bool:
        """Bring parts again that are marked as here, but differ from their checksums: others changed the copy.

        The arguments are those of `need`. Returns whether it helps to read again: False if all that is damaged
        is so in the store itself.

        Raises:
            FastRecordError: parts cannot be brought.
        """
        with self._blamed():
            names = [name for name in self._known(fields) if self._mend_columns(name)]
            places = self._known_marks.places(names if payloads else [], self._numbers(records))
            return bool(names) and self._mend_payloads(places)

    def mend_head(self) -> None:
        """Bring again what opening reads, after another process or the disk has changed it here.

        Raises:
            FastRecordError: it cannot be brought.
        """
        end = self.shard.bytes - PAGE
        with self._blamed(), self._claim([(0, PAGE), (end, PAGE)]):
            self._download([(0, PAGE), (end, PAGE)], parallel=True)
            if crc32c(os.pread(self._descriptor, PAGE - 4, end)) != self.shard.footer_crc:
                raise self._other("its footer is another")
            self._download(self._commit_ranges(), parallel=True)
        _log.warning("%s: its head was brought again, as the copy here was damaged, %s", self.where, self.place)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Have what fails while damage is mended name the copy, and the way out."""
        try:
            yield
        except (FastRecordError, OSError) as error:
            place = self.place or f"{tempfile.gettempdir()}, a file without a name"
            raise Code.CACHE.error(
                f"{self.where}: the copy here, {place}, is damaged, and what it lacks cannot be brought again: remove "
                f"the copy, and check the disk: {error}"
            ) from error

    def _mend_columns(self, name: str) -> bool:
        """Return whether the columns of a field are right, after they were brought again if they were not."""
        reader = self._open_reader()
        try:
            check_field(reader, name)
        except CorruptFileError as damage:
            ranges = _column_ranges(reader, name)
            try:
                # Not claimed: columns are never given up, and others write the same bytes.
                self._until_sound(ranges, partial(check_field, reader, name))
            except CorruptFileError:
                return False
            self._all_rows.clear()
            self._all_places = None
            _log.warning("%s: brought again, as the copy here was damaged, %s: check the disk", damage, self.place)
        return True

    def _mend_payloads(self, places: Numbers) -> bool:
        """Return whether it helps to read again, after payloads were brought again that were not right."""
        every, rows = self._known_marks.every, self._rows(places)
        rows = rows[self._damaged(rows)]
        if len(rows) and (every[rows[:, 0]] == BAD).all():
            return False
        with self._claim(merged(_pairs(rows), 0)):
            # Others may have given some up, or mended them, meanwhile.
            rows = rows[every[rows[:, 0]] == HERE]
            rows = rows[self._damaged(rows)]
            left = self._download_sound(rows)
            for name, _, records in self._known_marks.by_field(np.delete(rows[:, 0], left)):
                _log.warning(
                    "%s: %d values of %s, such as of record %d, were brought again, as the copy here was damaged, "
                    "%s: check the disk",
                    *(self.where, len(records), name, records[0], self.place),
                )
            with self._changing():
                every[rows[left, 0]] = BAD
        return True

    def damaged(self, fields: Sequence[str], records: Numbers) -> Iterator[tuple[str, Numbers]]:
        """Yield fields, and their records of these, int64 (N,), whose payloads are damaged in the store itself."""
        marks = self._known_marks
        places = marks.places(fields, records)
        for name, _, numbers in marks.by_field(places[marks.every[places] == BAD]):
            yield name, numbers

    def has(self, fields: Sequence[str] | None, records: Numbers | None, *, payloads: bool = True) -> bool:
        """Return whether parts are here; the arguments are those of `need`."""
        marks = self._marks
        if marks is None:
            return False
        every: Any = slice(None) if records is None else records
        for name in self._known(fields):
            if not marks.has_columns(name):
                return False
            if payloads and name in marks.payloads and not marks.payloads[name][every].all():
                return False
        return True

    def is_whole(self, fields: tuple[str, ...] | None, generation: int) -> bool:
        """Return whether all parts of fields are known to be here. Quick, so it may know it a little late.

        Args:
            fields: Their names; None: all.
            generation: The generation of the cache that is held.
        """
        if self.facts.whole.get(fields) == generation:
            return True
        now = time.monotonic()
        if now < self._looked + _LOOK_SECONDS:
            return False
        self._looked = now
        if not self.has(fields, None):
            return False
        self.facts.whole[fields] = generation
        self._all_rows.clear()
        return True

    def sizes(self, fields: Sequence[str]) -> Numbers:
        """Return the bytes of each record's payloads of some fields, int64 (records,)."""
        key = tuple(fields)
        found = self.facts.sizes.get(key)
        if found is None:
            self.need(fields, None, payloads=False)
            found = np.zeros(self.shard.records, np.int64)
            for name in self._known_payloads(fields):
                found += self._every_row(name)[:, 2::2].sum(axis=1)
            self.facts.sizes[key] = found
        return found

    def forget(self, fields: Sequence[str] | None, records: Numbers) -> int:
        """Mark payloads of fields, None for all, as not here; return the bytes of those that were.

        `free`, with the same arguments, gives back their space once none reads them any more.
        """
        marks = self._known_marks
        self._count(1)  # until they are free
        with self._changing():
            places = marks.places(self._known(fields), records)
            gone = places[marks.every[places] != 0]
            size = _bytes_of(self._rows(gone))
            marks.every[gone] = 0
            marks.charge -= size
        return size

    def free(self, fields: Sequence[str] | None, records: Numbers) -> None:
        """Give back the space of payloads that are not marked as here."""
        marks = self._known_marks
        rows = self._rows(marks.places(filter(marks.has_columns, self._known(fields)), records))
        with self._claim(_blocks(rows)):
            self._punch_unmarked(rows)
        self._count(-1)

    @property
    def charge(self) -> int:
        """Bytes of the parts that are here, of what opening reads, and of columns."""
        return self._known_marks.charge

    def all_here(self, fields: Sequence[str]) -> Numbers:
        """Return the records whose payloads of all fields are here, int64 (N,)."""
        found = np.ones(self.shard.records, np.bool_)
        for name in self._known_payloads(fields):
            found &= self._known_marks.payloads[name] != 0
        return np.flatnonzero(found)

    def after_fork(self) -> None:
        """Replace locks that another thread of the parent may have held."""
        self._opening, self._lock, self._turns = threading.Lock(), threading.RLock(), threading.Condition()
        self._claimed, self._coming = [], np.zeros(0, np.bool_)

    def _known(self, fields: Sequence[str] | None) -> list[str]:
        """Return the fields that columns belong to; a reader reports names that do not exist."""
        known = self._known_marks.fields
        if fields is None:
            return known
        plain = dict.fromkeys(name if name in known else name.rpartition(".")[0] for name in fields)
        return [name for name in plain if name in known]

    def _known_payloads(self, fields: Sequence[str]) -> list[str]:
        return [name for name in self._known(fields) if name in self._known_marks.payloads]

    def _touch(self) -> None:
        """Note when the copy was last used: changes through a mapping do not."""
        now = time.monotonic()
        if self.place is not None and now > self._touched + _TOUCH_SECONDS:
            self._touched = now
            with suppress(OSError):
                os.utime(marks_of(self.place))

    @contextmanager
    def _claim(self, ranges: Ranges) -> Iterator[None]:
        """Keep other threads and processes from bringing or freeing the same bytes.

        The ranges ascend, so processes never wait in a circle.
        """
        taken: Ranges = []
        try:
            for offset, length in ranges:
                with self._turns:
                    while any(offset < at + size and at < offset + length for at, size in self._claimed):
                        self._turns.wait()
                    self._claimed.append((offset, length))
                    taken.append((offset, length))
                if self.place is not None:
                    lock(self._descriptor, offset, length)
            yield
        finally:
            if self.place is not None:
                for offset, length in taken:
                    unlock(self._descriptor, offset, length)
            with self._turns:
                for one in taken:
                    self._claimed.remove(one)
                self._turns.notify_all()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count this process among those that bring parts: what a killed one has left shows by the count."""
        if self.place is None:
            yield  # it ends with this process
            return
        self._count(1)
        yield
        # Not after an error: what was written without a mark counts as left by a killed one.
        self._count(-1)

    def _count(self, change: int) -> None:
        with self._changing():
            self._known_marks.busy += change

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let one thread of one process at a time change what is counted."""
        with self._lock:
            if self.place is None:
                yield
                return
            with locked(self._descriptor, COUNT):
                yield

    def _mark(self, rows: Numbers, value: int) -> int:
        """Mark payloads as here; return their bytes, which count from now on."""
        if not len(rows):
            return 0
        marks, size = self._known_marks, _bytes_of(rows)
        with self._changing():
            marks.every[rows[:, 0]] = value
            marks.charge += size
        return size

    def _column_bytes(self, name: str) -> int:
        """Return the bytes of a field's columns that do not come with the head."""
        return total(lacking(self._head_ranges(), field_parts(self._open_reader(), name)))

    def _measured(self, marks: Marks) -> int:
        """Return the bytes of what opening reads, and of all parts that are marked as here."""
        size = total(self._head_ranges())
        for name in filter(marks.has_columns, marks.fields):
            size += self._column_bytes(name)
            if name in marks.payloads:
                size += int(self._parts(name, marks.here(name))[:, 1::2].sum())
        return size

    def _once(self, is_done: Callable[[], bool], work: Callable[[], Any]) -> None:
        """Do what one process does for all; others wait."""
        pause = pauses()
        while not is_done():
            if try_lock(self._descriptor, ONCE):
                try:
                    if not is_done():
                        work()
                finally:
                    unlock(self._descriptor, ONCE)
            else:
                pause()

    def _open_unnamed(self) -> None:
        with tempfile.TemporaryFile(prefix="fastrecord-") as file:
            self._descriptor = os.dup(file.fileno())
        self._open_base()
        content = self._bring_head()
        shared = mmap.mmap(-1, len(content))  # forked children see each other's marks
        shared[:] = content
        self._use_marks(shared)

    def _begin(self, place: str) -> None:
        """Open a new copy: bring its head, unless another process does, or has done it."""
        # Room is made before a lock of the copy is taken: making it may open any copy.
        path, reserved, kept = marks_of(place), total(self._head_ranges()), 0
        self._room.reserve(reserved)
        try:
            with self._lock, self._unremoved(place):

                def bring() -> None:
                    nonlocal kept
                    content = self._bring_head()
                    write_whole(path, content)
                    kept = self._marks_in(content).charge

                self._once(partial(os.path.exists, path), bring)
                self._use_named(path)
        finally:
            self._room.settle(reserved, kept)

    @contextmanager
    def _unremoved(self, place: str) -> Iterator[None]:
        """Open the file, and keep processes that need its space from removing it meanwhile."""
        while True:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor, self._reader = -1, None
            self._descriptor = open_shared(place)
            lock(self._descriptor, OPENING, shared=True)
            if is_linked(self._descriptor, place):
                break
        try:
            yield
        finally:
            unlock(self._descriptor, OPENING)

    def _use_named(self, path: str) -> None:
        with suppress(FileNotFoundError), os.fdopen(open_file(path, os.O_RDWR), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            self._use_marks(mmap.mmap(file.fileno(), size) if size else mmap.mmap(-1, 1))

    def _open_base(self) -> None:
        """Open a copy that can only be read, if there is one."""
        if self._base_place is None:
            return
        with suppress(OSError), os.fdopen(open_file(marks_of(self._base_place)), "rb") as file:
            self._base_content = file.read()
            self._base = open_file(self._base_place)

    def _tail(self) -> int:
        """Return how much of the end of the file is read at first."""
        return min(self.shard.bytes, tail_bytes(self.shard.records))

    def _head_ranges(self) -> Ranges:
        """Return the ranges that are read at first: the first page, and the end."""
        tail = self._tail()
        return [(0, PAGE), (self.shard.bytes - tail, tail)]

    def _commit_ranges(self) -> Ranges:
        """Return the ranges that opening reads besides the first page and the footer, which are here."""
        end = self.shard.bytes - PAGE
        first, footer = (os.pread(self._descriptor, PAGE, at) for at in (0, end))
        return list(commit_parts(self.where, first, footer, end)[3:])

    def _bring_head(self) -> bytes:
        """Bring what opening reads; return the first marks."""
        shard, size = self.shard, self.shard.bytes
        os.ftruncate(self._descriptor, 0)  # a killed process may have left something
        os.ftruncate(self._descriptor, size)
        if size <= PAGE:
            raise self._other("it is shorter than a commit")
        if self._base >= 0:
            return self._base_head()
        tail = self._tail()
        head, self._head = self._head or Head.ask(self.store, shard.name, size - tail, tail), None
        if head.size < size:
            raise self._other(f"it has {head.size:,} bytes, not {size:,}")
        here = [(0, len(head.first)), (size - len(head.tail), len(head.tail))]
        if crc32c(head.tail[-PAGE:-4]) != shard.footer_crc:
            raise self._other("its footer is another")
        self._traffic.add(brought=total(here))
        write_at(self._descriptor, head.first, 0)
        write_at(self._descriptor, head.tail, size - len(head.tail))
        file_id, commit, _, *rest = commit_parts(self.where, head.first, head.tail[-PAGE:], size - PAGE)
        if (file_id, commit) != (shard.file_id, shard.commit):
            raise self._other(f"it is file {file_id} at commit {commit}")
        self._fetch(lacking(here, rest), head.etag, parallel=True)
        reader, known, start = self._open_reader(), here + rest, size - len(head.tail)
        fields, with_payloads = list(reader.schema), payload_fields(reader)
        content = first_page(shard, head.etag) + bytearray(len(fields) + len(with_payloads) * shard.records)
        marks = self._marks_in(content)
        for name in fields:
            if not lacking(known, field_parts(reader, name)):
                with suppress(CorruptFileError):  # it is asked for again
                    check_field(reader, name)
                    marks.mark_columns(name, HERE)
                    if name in with_payloads and shard.records <= _MOST_RECORDS:
                        self._mark_from(marks, name, start)
        marks.charge = self._measured(marks)
        return bytes(content)

    def _mark_from(self, marks: Marks, name: str, start: int) -> None:
        """Mark the payloads of a field that lie after `start`, and those without a byte."""
        value, size, side, more = self._parts(name, np.arange(self.shard.records)).T
        here = np.flatnonzero(((value >= start) | (size == 0)) & ((side >= start) | (more == 0)))
        marks.payloads[name][np.delete(here, damaged_payloads(self._open_reader(), name, here))] = HERE

    def _base_head(self) -> bytes:
        """Take over all but the payloads of a copy that can only be read."""
        self._copy_base(self._head_ranges())
        self._copy_base(self._commit_ranges())
        base = self._base_marks = self._marks_in(self._base_content)
        for name in base.fields:
            if base.has_columns(name):
                self._copy_base(field_parts(self._open_reader(), name))
        here = self._base_content[: PAGE + len(base.fields)]
        return here + bytes(len(self._base_content) - len(here))

    def _copy_base(self, ranges: Sequence[tuple[int, int]]) -> None:
        for offset, length in ranges:
            while length:
                done = os.copy_file_range(self._base, self._descriptor, min(length, 1 << 30), offset, offset)
                if not done:
                    raise self._other("its copy in the cache is shorter")
                offset, length = offset + done, length - done

    def _marks_in(self, content: Any) -> Marks:
        """Return the marks that some bytes hold.

        Raises:
            FastRecordError: they, or the copy, are damaged.
        """
        try:
            reader = self._open_reader()
            return Marks(content, list(reader.schema), payload_fields(reader), self.shard.records)
        except ValueError:
            place = marks_of(self.place or self._base_place or "")
            raise Code.CACHE.error(f"{place}: is not what this version writes: remove the cache's folder") from None
        except (CorruptFileError, FastRecordError) as error:
            # What comes from the store is compared before it is marked.
            raise Code.CACHE.error(f"{self.place}: the copy in the cache is damaged: remove it: {error}") from error

    def _use_marks(self, mapped: mmap.mmap) -> None:
        marks = self._marks_in(mapped)
        marks.open_in(self._room.session)
        self._once(lambda: marks.is_checked, partial(self._check_again, marks))
        self._marks = marks

    def _check_again(self, marks: Marks) -> None:
        """Check all parts: the machine was started anew, and may have lost what was not on the disk."""
        reader = self._open_reader()
        for name in marks.fields:
            if not marks.has_columns(name):
                continue
            payloads = marks.payloads.get(name, np.empty(0, np.uint8))
            try:
                check_field(reader, name)
                if len(payloads):
                    here = marks.here(name)
                    payloads[here[damaged_payloads(reader, name, here)]] = 0
            except CorruptFileError:
                marks.mark_columns(name, 0)
                payloads[:] = 0
        marks.busy = max(1, marks.busy)  # what was lost is cleared by the next session
        marks.set_checked()

    def clear(self, *, alone: bool) -> None:
        """Give back what killed processes had written without a mark, and count what is here again.

        No process reads what has no mark.

        Args:
            alone: Whether no other process uses the copy.
        """
        marks = self._known_marks
        for name, payloads in marks.payloads.items():
            if marks.has_columns(name):  # without its columns none of it was brought
                rows = self._rows(marks.places([name], np.flatnonzero(payloads == 0)))
                with nullcontext() if alone else self._claim(_blocks(rows)):
                    self._punch_unmarked(rows)
        with self._changing():
            marks.charge = self._measured(marks)
            if alone:
                marks.busy = 0

    def _punch_unmarked(self, rows: Numbers) -> None:
        """Give back the blocks of payloads that are not here, unless something else that is here lies in them."""
        for offset, length in self._joined(rows[self._known_marks.every[rows[:, 0]] == 0]):
            start, end = offset // PAGE * PAGE, -(-(offset + length) // PAGE) * PAGE
            if start < offset and self._is_used(start):
                start += PAGE
            if end > offset + length and self._is_used(end - PAGE):
                end -= PAGE
            if end > start:
                with suppress(OSError):  # a file system without holes keeps the space
                    punch_hole(self._descriptor, start, end - start)

    def _is_used(self, block: int) -> bool:
        """Return whether something that is here lies in a block."""
        if (known := self._places()) is None:
            return True
        starts, ends, places = known
        first, last = np.searchsorted(ends, block, "right"), np.searchsorted(starts, block + PAGE, "left")
        return bool(self._known_marks.every[places[first:last]].any())

    def _joined(self, rows: Numbers) -> Ranges:
        """Return the ranges of payloads: those with nothing but padding between them are one."""
        pairs = _pairs(rows)
        if len(pairs) < 2 or (known := self._places()) is None:
            return merged(pairs, 0)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        starts, ends = pairs[:, 0], np.maximum.accumulate(pairs[:, 0] + pairs[:, 1])
        between = np.diff(np.searchsorted(known[0], starts)) > 1
        apart = (starts[1:] > ends[:-1]) & (between | (starts[1:] > ends[:-1] + _PADDING))
        cuts = np.flatnonzero(apart) + 1
        firsts, lasts = np.r_[0, cuts], np.r_[cuts, len(pairs)] - 1
        return [(int(start), int(end - start)) for start, end in zip(starts[firsts], ends[lasts], strict=True)]

    def _places(self) -> tuple[Numbers, Numbers, Numbers] | None:
        """Return where parts of the file begin and end, and where their marks are, in order, int64 (N,) each.

        Parts that are not payloads have the mark of byte 0, which is never 0. None: there are too many parts, or
        some cannot be found.
        """
        if self.shard.records > _MOST_PLACES:
            return None
        marks = self._known_marks
        known = list(filter(marks.has_columns, marks.payloads))
        if self._all_places is None or self._all_places[0] != known:
            places = None
            with suppress(CorruptFileError):  # of a value that its record reports
                places = self._found_places(marks.places(known, self._numbers()))
            self._all_places = known, places
        return self._all_places[1]

    def _found_places(self, payloads: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return what `_places` does, for all payloads."""
        reader, end = self._open_reader(), self.shard.bytes - PAGE
        fixed = [(0, PAGE), (end, PAGE), *self._commit_ranges()]
        fixed += [part for name in self._known_marks.fields for part in field_parts(reader, name)]
        rows = self._rows(payloads)
        fixed_rows = np.array([(0, start, length) for start, length in fixed], np.int64)
        table = np.concatenate([fixed_rows, rows[:, :3], rows[:, [0, 3, 4]]])
        table = table[table[:, 2] > 0]
        places, starts, lengths = table[np.argsort(table[:, 1], kind="stable")].T
        return starts.copy(), np.maximum.accumulate(starts + lengths), places.copy()

    def _open_reader(self) -> Reader:
        if self._reader is None:
            shard, here = self.shard, Here(self.place or f"/proc/self/fd/{self._descriptor}")
            self._reader = open_shard(self.where, "mmap", False, shard.about, here)
        return self._reader

    def _bring_columns(self, names: Sequence[str]) -> None:
        marks, reader = self._known_marks, self._open_reader()
        for name in names:
            ranges = _column_ranges(reader, name)
            reserved, used = self._column_bytes(name), 0
            self._room.reserve(reserved)
            try:
                with self._counted(), self._claim(ranges):
                    if not marks.has_columns(name):  # else another process has brought it
                        self._until_sound(ranges, partial(check_field, reader, name))
                        with self._changing():
                            marks.mark_columns(name, HERE)
                            marks.charge += reserved
                        used = reserved
            finally:
                self._room.settle(reserved, used)

    def _bring_payloads(self, rows: Numbers, gap: int) -> None:
        if not len(rows):
            return
        # Before parts are claimed: making room may need to claim parts of other files.
        self._room.reserve(_bytes_of(rows))
        # The helper of a forked child takes one call at a time, and makes its requests side by side.
        groups = [rows] if is_forked() else [rows[at] for at in grouped(rows[:, 1:], gap, PART)]
        if len(groups) == 1:
            self._bring_group(rows, gap, parallel=True)
            return
        futures = [submit(self._bring_group, group, gap) for group in groups]
        try:
            for future in futures:
                future.result()
        finally:
            for group, future in zip(groups, futures, strict=True):
                if future.cancel():  # after an error
                    self._room.settle(_bytes_of(group), 0)

    def _bring_group(self, rows: Numbers, gap: int, *, parallel: bool = False) -> None:
        """Bring payloads for which space is reserved."""
        every = self._known_marks.every
        reserved, used = _bytes_of(rows), 0
        try:
            with self._counted(), self._claim(merged(_pairs(rows), gap)):
                rows = rows[every[rows[:, 0]] == 0]
                if self._base_marks is not None:
                    used += self._take_base(self._base_marks, rows)
                    rows = rows[every[rows[:, 0]] == 0]
                bad = self._download_sound(rows, gap=gap, parallel=parallel)
                used += self._mark(np.delete(rows, bad, axis=0), HERE)
                # The reader reports the records that are damaged in the store itself.
                used += self._mark(rows[bad], BAD)
        finally:
            self._room.settle(reserved, used)

    def _take_base(self, base: Marks, rows: Numbers) -> int:
        """Copy payloads from a copy that can only be read; return their bytes."""
        rows = rows[base.every[rows[:, 0]] == HERE]
        self._copy_base(merged(_pairs(rows), 0))
        # Its owner may have given them up since.
        return self._mark(np.delete(rows, self._damaged(rows), axis=0), HERE)

    def _until_sound(self, ranges: Ranges, check: Callable[[], Any]) -> None:
        """Download, and again if a checksum differs: a proxy may have damaged it."""

        def ask() -> None:
            self._download(ranges, parallel=True)
            check()

        asked_until_good(ask)

    def _download_sound(self, rows: Numbers, *, gap: int = 0, parallel: bool = True) -> Numbers:
        """Download payloads, and again if checksums differ; return the positions of those that do each time."""
        left = np.arange(len(rows))
        for _ in range(ATTEMPTS):
            if not len(left):
                break
            self._download(self._joined(rows[left]), gap=gap, parallel=parallel)
            left = left[self._damaged(rows[left])]
        return left

    def _download(self, ranges: Ranges, *, gap: int = 0, parallel: bool) -> None:
        marks = self._known_marks
        etag = marks.etag
        try:
            self._fetch(ranges, etag, gap=gap, parallel=parallel)
        except FastRecordError as error:
            if error.code != Code.REPLACED:
                raise
            # The same shard may have been sent again.
            footer = self.store.get(self.shard.name, self.shard.bytes - PAGE, PAGE)
            here = os.pread(self._descriptor, PAGE, self.shard.bytes - PAGE)
            if footer.etag == etag or footer.etag is None or bytes(footer.data) != here:
                raise
            with self._lock:  # of threads that see it, one compares
                if marks.etag != footer.etag:
                    if not self._is_same(footer.etag):
                        raise
                    marks.etag = footer.etag
            self._fetch(ranges, footer.etag, gap=gap, parallel=parallel)

    def _is_same(self, etag: str) -> bool:
        """Return whether all that is here is what the store has by now: brought once more, as footers may be alike."""
        with tempfile.TemporaryFile(prefix="fastrecord-") as file:
            for ranges in _divided(self._ranges_here()):
                place = f"/proc/{os.getpid()}/fd/{file.fileno()}"
                self._traffic.add(brought=self.store.download(self.shard.name, ranges, place, etag, gap=_GAP))
                for at, length in ranges:
                    if os.pread(file.fileno(), length, at) != os.pread(self._descriptor, length, at):
                        return False
                file.truncate(0)
        return True

    def _ranges_here(self) -> Ranges:
        """Return the ranges of all parts that are here."""
        marks, reader, pairs = self._known_marks, self._open_reader(), self._head_ranges()
        for name in filter(marks.has_columns, marks.fields):
            pairs += field_parts(reader, name)
            if name in marks.payloads:
                pairs += _pairs(self._rows(marks.places([name], marks.here(name)))).tolist()
        return merged(np.array(pairs, np.int64), 0)

    def _fetch(self, ranges: Ranges, etag: str | None, *, gap: int = 0, parallel: bool) -> None:
        if ranges:
            # Not by its name, which may stand for another file by then.
            place = f"/proc/{os.getpid()}/fd/{self._descriptor}"
            brought = self.store.download(self.shard.name, ranges, place, etag, gap=gap, parallel=parallel)
            self._traffic.add(brought=brought)

    def _bring_runs(self, names: Sequence[str], missing: Numbers) -> None:
        """Bring the runs of bytes in which missing payloads lie; wait for those that other threads bring."""
        every = self._known_marks.every
        rows = np.concatenate([self._every_row(name) for name in self._known_payloads(names)])
        runs = rows[:, 1] // _RUN
        wanted = np.zeros(int(runs.max()) + 1, np.bool_)
        wanted[self._rows(missing)[:, 1] // _RUN] = True
        with self._turns:
            if not len(self._coming):
                self._coming = np.zeros(len(every), np.bool_)
            coming = self._coming
            own = rows[wanted[runs] & (every[rows[:, 0]] == 0) & ~coming[rows[:, 0]]]
            coming[own[:, 0]] = True
        try:
            self._bring_payloads(own, _GAP)
        finally:
            with self._turns:
                coming[own[:, 0]] = False
                self._turns.notify_all()
        with self._turns:
            self._turns.wait_for(lambda: not coming[missing].any())

    def _every_row(self, name: str) -> Numbers:
        if name not in self._all_rows:
            self._all_rows[name] = self._rows(self._known_marks.places([name], self._numbers()))
        return self._all_rows[name]

    def _numbers(self, records: Numbers | None = None) -> Numbers:
        """Return the numbers of records, each once; None: of all."""
        return np.arange(self.shard.records) if records is None else np.unique(records)

    def _rows(self, places: Numbers) -> Numbers:
        """Return a row for each payload, int64 (N, 5).

        It has the number of its mark, then the offset and length of its value, and of its side bytes.
        """
        rows = np.empty((len(places), 5), np.int64)
        rows[:, 0] = places
        for name, at, records in self._known_marks.by_field(places):
            rows[at, 1:] = self._parts(name, records)
        return rows

    def _damaged(self, rows: Numbers) -> Numbers:
        """Return the positions of rows whose bytes here differ from their checksums, ascending."""
        differs = np.zeros(len(rows), np.bool_)
        for name, at, records in self._known_marks.by_field(rows[:, 0]):
            differs[at[damaged_payloads(self._open_reader(), name, records)]] = True
        return np.flatnonzero(differs)

    def _parts(self, name: str, records: Numbers) -> Numbers:
        try:
            return payload_parts(self._open_reader(), name, records).reshape(-1, 4)
        except CorruptFileError:  # what is damaged in the store has no mark
            with self._blamed():
                is_sound = self._mend_columns(name)
            if not is_sound:
                raise
            return payload_parts(self._open_reader(), name, records).reshape(-1, 4)

    def _other(self, what: str) -> Exception:
        return Code.REPLACED.error(
            f"{self.where}: is not the shard that the manifest names: {what}: `fastrecord manifest` renews it"
        )


class Here:
    """A supply whose file has everything that is asked for."""

    passing = False

    def __init__(self, place: str) -> None:
        self._place = place

    def open(self) -> str:
        """Return the file."""
        return self._place

    def need(self, *_: Any) -> None:
        """Bring nothing."""

    def mend(self, *_: Any) -> bool:
        """Bring nothing."""
        return False

    def mend_head(self) -> bool:
        """Bring nothing."""
        return False


def tail_bytes(records: int) -> int:
    """Return how much of the end of a file of so many records is read at first."""
    return max(_TAIL, min(_MOST_TAIL, records * _BYTES_PER_RECORD))


def _divided(ranges: Ranges) -> Iterator[Ranges]:
    """Yield ranges in portions, none of them too large for memory."""
    portion: Ranges = []
    for start, length in ranges:
        for at in range(start, start + length, PART):
            portion.append((at, min(PART, start + length - at)))
            if total(portion) >= PART or len(portion) >= _MOST_PORTION:
                yield portion
                portion = []
    if portion:
        yield portion


def _column_ranges(reader: Reader, name: str) -> Ranges:
    """Return the ranges of the columns of a field."""
    return merged(np.array([part for part in field_parts(reader, name) if part[1]], np.int64), 0)


def _pairs(rows: Numbers) -> Numbers:
    """Return the (offset, length) of values and side bytes that have bytes, int64 (N, 2)."""
    pairs = rows[:, 1:].reshape(-1, 2)
    return pairs[pairs[:, 1] > 0]


def _bytes_of(rows: Numbers) -> int:
    """Return the bytes of values and side bytes."""
    return int(rows[:, 2::2].sum())


def _blocks(rows: Numbers) -> Ranges:
    """Return the ranges of whole blocks in which payloads lie."""
    pairs = _pairs(rows)
    starts, ends = pairs[:, 0] // PAGE * PAGE, -(-pairs.sum(axis=1) // PAGE) * PAGE
    return merged(np.stack([starts, ends - starts], axis=1), _GAP)
