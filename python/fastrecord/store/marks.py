"""`Marks`: a file beside a copy that says which parts of it are here.

One page about the copy, then a byte for each field, which stands for its columns, then for each field
with payloads a byte for each record.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.store.locks import try_lock
from fastrecord.store.requests import PAGE
from fastrecord.store.shard_info import ShardInfo

_MAGIC = b"frecparts1\n"
_BOOT_BYTES = 48
# The page: how many processes bring parts, or were killed when they did; the session in which it was opened
# last; the boot of the machine after which it was checked; what the copy is of; the bytes of the parts that
# are here; the ETag of the object when it was brought.
_ABOUT = np.dtype(
    {
        "names": ["magic", "busy", "session", "boot", "numbers", "charge", "etag"],
        "formats": [f"S{len(_MAGIC)}", "u1", "<i8", f"S{_BOOT_BYTES}", "4<i8", "<i8", "S512"],
        "offsets": [0, 16, 24, 32, 80, 112, 128],
        "itemsize": PAGE,
    }
)
# What a byte says: the part is here; it is here, but damaged in the store itself.
HERE, BAD = 1, 2
# Places of the copy that are locked, beyond all its bytes: while it is opened, or removed; while one process
# does something for all; to count the processes that bring parts. A part that is brought or freed is locked in
# its own place.
OPENING, ONCE, COUNT = (1 << 62) + 1, (1 << 62) + 2, (1 << 62) + 3


class Marks:
    """The marks of an open copy. What is assigned to them is written.

    Args:
        content: The bytes of the file, or a mapping of it.
        fields: The names of the fields.
        payload_fields: Those of them whose values are payloads.
        records: Records of the copy.

    Attributes:
        fields: As given.
        payloads: Field with payloads -> a byte for each record, uint8 (records,).
        every: All bytes; the first one is not 0. A payload is known by the number of its byte.

    Raises:
        ValueError: the bytes are not such marks.
    """

    def __init__(self, content: Any, fields: Sequence[str], payload_fields: Sequence[str], records: int) -> None:
        every, start = np.frombuffer(content, np.uint8), PAGE + len(fields)
        if len(every) != start + len(payload_fields) * records or every[: len(_MAGIC)].tobytes() != _MAGIC:
            raise ValueError("not marks of this version")
        if not np.frombuffer(content, _ABOUT, 1)[0]["etag"].decode("ascii").isprintable():
            raise ValueError("an ETag that no store sends")
        self.fields = list(fields)
        self.every, self._first, self._records = every, start, records
        self._about, self._columns = np.frombuffer(content, _ABOUT, 1)[0], every[PAGE:start]
        self.payloads = dict(zip(payload_fields, every[start:].reshape(len(payload_fields), records), strict=True))
        for marks in (self._columns, *self.payloads.values()) if every.flags.writeable else ():
            marks[marks == BAD] = 0  # the store may have it whole by now

    def has_columns(self, field: str) -> bool:
        """Return whether the columns of a field are here."""
        return bool(self._columns[self.fields.index(field)])

    def mark_columns(self, field: str, value: int) -> None:
        """Mark the columns of a field."""
        self._columns[self.fields.index(field)] = value

    def places(self, fields: Iterable[str], records: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in `every` of the marks of payloads, field by field, int64 (N,)."""
        known = list(self.payloads)
        firsts = [self._first + known.index(name) * self._records for name in fields if name in self.payloads]
        return np.add.outer(np.array(firsts, np.int64), records).ravel()

    def by_field(self, places: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the fields of payloads, with their positions in `places` and the numbers of their records."""
        fields, records = np.divmod(places - self._first, max(self._records, 1))
        for number, name in enumerate(self.payloads):
            at = np.flatnonzero(fields == number)
            if len(at):
                yield name, at, records[at]

    def here(self, field: str) -> NDArray[np.int64]:
        """Return the records whose payloads of a field are here, int64 (N,)."""
        # In a copy of the marks: numpy refuses to search what others change meanwhile.
        return np.flatnonzero(self.payloads[field].copy())

    @property
    def etag(self) -> str | None:
        """The ETag of the object when it was brought."""
        return self._about["etag"].decode() or None

    @etag.setter
    def etag(self, etag: str | None) -> None:
        self._about["etag"] = (etag or "").encode()

    @property
    def charge(self) -> int:
        """Bytes of the parts that are here."""
        return int(self._about["charge"])

    @charge.setter
    def charge(self, size: int) -> None:
        self._about["charge"] = size

    @property
    def busy(self) -> int:
        """How many processes bring parts, or were killed when they did."""
        return int(self._about["busy"])

    @busy.setter
    def busy(self, count: int) -> None:
        self._about["busy"] = min(255, max(0, count))

    def open_in(self, session: int) -> None:
        """Note that a process of a session of the cache has opened the copy."""
        self._about["session"] = max(session, int(self._about["session"]))

    @property
    def is_checked(self) -> bool:
        """Whether the copy was checked since the machine was started."""
        return bool(self._about["boot"] == boot_id())

    def set_checked(self) -> None:
        """Note that it was."""
        self._about["boot"] = boot_id()


def first_page(shard: ShardInfo, etag: str | None) -> bytearray:
    """Return the page about a new copy."""
    page = np.zeros(1, _ABOUT)
    numbers = (shard.records, shard.bytes, shard.commit, shard.footer_crc)
    page[0] = (_MAGIC, 0, 0, boot_id(), numbers, 0, (etag or "").encode())
    return bytearray(page.tobytes())


def charge_of(place: str) -> int:
    """Return the bytes of the parts of a copy that are here; 0 if it has no marks."""
    page = _page(place)
    return 0 if page is None else int(page["charge"])


def marks_of(place: str) -> str:
    """Return the path of the marks of a copy."""
    return f"{place}.parts"


def info_of(place: str) -> ShardInfo | None:
    """Return what a copy is of, from its name and marks; None if it has none."""
    page = _page(place)
    if page is None:
        return None
    records, size, commit, crc = page["numbers"].tolist()
    name = os.path.basename(place)
    return ShardInfo(name, name.partition("-")[0], commit, records, size, crc)


def is_busy(place: str) -> bool:
    """Return whether a process brings parts of a copy, or was killed when it did."""
    page = _page(place)
    return page is not None and bool(page["busy"])


def remove(place: str, session: int) -> int:
    """Remove a copy unless a process of this session has opened it; return the bytes that were here.

    Such a process may have it mapped still: in the copy that follows, it would not see what is brought.
    """
    try:
        descriptor = open_file(place, os.O_RDWR)
    except (FileNotFoundError, PermissionError, FastRecordError):
        return 0
    try:
        if not try_lock(descriptor, OPENING):
            return 0
        page = _page(place)
        if page is not None and page["session"] == session:
            return 0
        try:
            for path in (marks_of(place), place):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        except OSError:
            return 0  # another user's, or a folder
        return 0 if page is None else int(page["charge"])
    finally:
        os.close(descriptor)


# What a new file of a cache is called until it is whole.
NEW = ".new"


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file of a cache, and nothing that another user may have put in its place.

    Raises:
        FastRecordError: it is a link, a pipe or a folder, or has a second name, by which it may be a file of
            another place. OSError: the system refuses it.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_nlink <= 1:
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise Code.CACHE.error(
        f"{path}: is a link, a pipe or a folder, or has a second name, so it is no file of a cache: another user may "
        "have put it there: remove it, and see who may write to the folder"
    )


def open_shared(path: str) -> int:
    """Open a file of a cache, or make it, for all who may write to its folder.

    Raises:
        FastRecordError, OSError: as `open_file`.
    """
    while True:
        # In folders with the sticky bit, Linux refuses O_CREAT for what is another user's.
        with suppress(FileNotFoundError):
            return open_file(path, os.O_RDWR)
        with suppress(FileExistsError):  # another process was quicker
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            share(descriptor, path)
            return descriptor


def share(descriptor: int, path: str) -> None:
    """Let all who may write to the folder of a new file write to the file."""
    os.fchmod(descriptor, os.stat(os.path.dirname(path)).st_mode & 0o666)


def write_whole(path: str, content: bytes) -> None:
    """Write a file of a cache that is there as a whole, or not at all."""
    temporary = f"{path}.{secrets.token_hex(8)}{NEW}"
    try:
        with os.fdopen(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            share(file.fileno(), path)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _page(place: str) -> Any:
    """Return the page about a copy; None if it has none."""
    with suppress(OSError, FastRecordError), os.fdopen(open_file(marks_of(place)), "rb") as file:
        page = file.read(PAGE)
        if page.startswith(_MAGIC) and len(page) == PAGE:
            return np.frombuffer(page, _ABOUT)[0]
    return None


@cache
def boot_id() -> bytes:
    """Return what names this start of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()[:_BOOT_BYTES]
    except OSError:
        return b"unknown"
