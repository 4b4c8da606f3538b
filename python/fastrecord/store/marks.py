"""The marks of a copy: a file beside it that says which parts of it are here.

One page about the copy, then a byte for each field, which stands for its columns, then for each field
with payloads a byte for each record.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.store.locks import try_lock
from fastrecord.store.requests import PAGE

Marks = NDArray[np.uint8]

MAGIC = b"frecparts1\n"
# Places in the page: how many processes bring parts, or were killed when they did; the session in which
# it was opened last; the boot of the machine after which it was checked; what the copy is of; the bytes of
# the parts that are here.
BUSY, _SESSION, _BOOT, _NUMBERS, _CHARGE = 16, slice(24, 32), slice(32, 80), slice(80, 112), slice(112, 120)
_ETAG = slice(128, 640)
# What a byte says: the part is here; it is here, but damaged in the store itself.
HERE, BAD = 1, 2
# Places of the copy that are locked, beyond all its bytes: while it is opened, or removed; while one process
# does something for all; to count who brings parts. A part that is brought or freed is locked in its own place.
OPENING, ONCE, COUNT = (1 << 62) + 1, (1 << 62) + 2, (1 << 62) + 3


@dataclass(frozen=True)
class ShardInfo:
    """What is known of a file before it is opened: a row of a manifest."""

    name: str
    file_id: str
    commit: int
    records: int
    bytes: int
    footer_crc: int


def first_page(shard: ShardInfo, etag: str | None) -> Marks:
    """Return the page about a new copy."""
    page = np.zeros(PAGE, np.uint8)
    page[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
    page[_NUMBERS] = np.array([shard.records, shard.bytes, shard.commit, shard.footer_crc], "<i8").view(np.uint8)
    set_etag(page, etag)
    set_checked(page)
    return page


def etag_of(marks: Marks) -> str | None:
    """Return the ETag of the object when it was brought."""
    return marks[_ETAG].tobytes().rstrip(b"\0").decode() or None


def set_etag(marks: Marks, etag: str | None) -> None:
    """Note the ETag."""
    marks[_ETAG] = np.frombuffer((etag or "").encode()[:512].ljust(512, b"\0"), np.uint8)


def is_checked(marks: Marks) -> bool:
    """Return whether the copy was checked since the machine was started."""
    return marks[_BOOT].tobytes() == boot_id()


def set_checked(marks: Marks) -> None:
    """Note that it was."""
    marks[_BOOT] = np.frombuffer(boot_id(), np.uint8)


def set_session(marks: Marks, session: int) -> None:
    """Note that a process of a session of the cache has opened the copy."""
    last = max(session, int(np.frombuffer(marks[_SESSION].tobytes(), "<i8")[0]))
    marks[_SESSION] = np.array([last], "<i8").view(np.uint8)


def charge(marks: Marks) -> int:
    """Return the bytes of the parts that are here."""
    return int(marks[_CHARGE].view("<i8")[0])


def set_charge(marks: Marks, size: int) -> None:
    """Note them."""
    marks[_CHARGE] = np.array([size], "<i8").view(np.uint8)


def charge_of(place: str) -> int:
    """Return the bytes of the parts of a copy that are here; 0 if it has no marks."""
    page = _page(place)
    return 0 if page is None else charge(np.frombuffer(page, np.uint8))


def marks_of(place: str) -> str:
    """Return the path of the marks of a copy."""
    return f"{place}.parts"


def info_of(place: str) -> ShardInfo | None:
    """Return what a copy is of, from its name and marks; None if it has none."""
    page = _page(place)
    if page is None:
        return None
    records, size, commit, crc = np.frombuffer(page[_NUMBERS], "<i8").tolist()
    name = os.path.basename(place)
    return ShardInfo(name, name.partition("-")[0], commit, records, size, crc)


def is_busy(place: str) -> bool:
    """Return whether a process brings parts of a copy, or was killed when it did."""
    page = _page(place)
    return page is not None and page[BUSY] != 0


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
        if page is not None and np.frombuffer(page[_SESSION], "<i8")[0] == session:
            return 0
        try:
            for path in (marks_of(place), place):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        except OSError:
            return 0  # another user's, or a folder
        return 0 if page is None else charge(np.frombuffer(page, np.uint8))
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


def _page(place: str) -> bytes | None:
    with suppress(OSError, FastRecordError), os.fdopen(open_file(marks_of(place)), "rb") as file:
        page = file.read(PAGE)
        if page.startswith(MAGIC) and len(page) == PAGE:
            return page
    return None


@cache
def boot_id() -> bytes:
    """Return what names this start of the machine."""
    size = _BOOT.stop - _BOOT.start
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip()[:size].ljust(size, b"\0")
    except OSError:
        return b"unknown".ljust(size, b"\0")
