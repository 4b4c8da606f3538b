"""`Staging`: a file or folder that appears at its path only when it is complete; and journals, which do so too."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from fastrecord.errors import Code
from fastrecord.files.places import exists_already

_log = logging.getLogger("fastrecord.export")
_MARK = ".tmp-"
_LEFT = re.compile(r"[0-9a-f]{8}")


class Staging:
    """A temporary folder beside a path, in which what belongs there is made under its final name.

    The folder is locked while its process lives: a later call removes folders of killed processes,
    and no others.

    Attributes:
        given: The path.
        target: The path, links resolved.
        path: Where to write: a path that does not exist, in the temporary folder.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool) -> None:
        self.given, self.overwrite = os.fspath(path), overwrite
        self.target = os.path.realpath(self.given)
        self.path = self._folder = ""
        self._lock = -1

    def __enter__(self) -> Self:
        """Make the folder.

        Raises:
            FileExistsError: something is at the path, and may not be replaced.
            FastRecordError: what is there is neither a file nor a folder.
            OSError: nothing can be written there.
        """
        remove_stale(self.target)
        self._refuse()
        try:
            while not self._locked():
                pass
        except OSError as err:
            raise type(err)(err.errno, err.strerror, self.given) from err
        self.path = os.path.join(self._folder, os.path.basename(self.target))
        return self

    def __exit__(self, *exception: object) -> None:
        _put_back(self._folder, self.target)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def finish(self) -> None:
        """Put what was written in its place, durably.

        Raises:
            FileExistsError: something has come to be there meanwhile.
            OSError: it cannot be put there.
        """
        self._refuse()
        with suppress(FileNotFoundError):
            before = os.stat(self.target).st_mode
            is_folder = os.path.isdir(self.path)
            if stat.S_ISDIR(before) == is_folder:
                os.chmod(self.path, stat.S_IMODE(before) & 0o777)
            if stat.S_ISDIR(before) or is_folder:
                # A kill between these two renames leaves the old one here; the next call puts it back.
                os.rename(self.target, self.path + ".old")
        os.rename(self.path, self.target)
        sync_folder(os.path.dirname(self.target))

    def write(self, content: bytes) -> None:
        """Write the file as a whole, and put it in its place.

        Raises:
            OSError: as `finish`, or it cannot be written; the error names the path.
        """
        try:
            write_through(self.path, content)
        except OSError as err:
            raise type(err)(err.errno, err.strerror, self.given) from err
        self.finish()

    def _refuse(self) -> None:
        if not os.path.lexists(self.target):
            return
        if not self.overwrite:
            raise exists_already(self.given)
        if not (os.path.isdir(self.target) or os.path.isfile(self.target)):
            raise Code.NOT_REGULAR.error(f"{self.given}: is neither a file nor a folder: choose another path")

    def _locked(self) -> bool:
        """Make and lock a folder; return False if another process took it for a stale one before."""
        folder = f"{self.target}{_MARK}{secrets.token_hex(4)}"
        os.mkdir(folder, 0o700)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks: other calls leave the folder alone
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(folder):
            os.close(lock)
            return False
        self._folder, self._lock = folder, lock
        return True


def _put_back(folder: str, target: str) -> None:
    old = os.path.join(folder, os.path.basename(target) + ".old")
    if os.path.lexists(old) and not os.path.lexists(target):
        os.rename(old, target)


def remove_stale(target: str) -> list[str]:
    """Remove the temporary folders of killed processes; put back what they were about to replace.

    Args:
        target: The path that they were to write, links resolved.

    Returns:
        The names of the folders that were removed.
    """
    parent, name = os.path.split(target)
    removed = []
    with suppress(OSError):
        for entry in os.listdir(parent):
            if entry.startswith(name + _MARK) and _LEFT.fullmatch(entry.removeprefix(name + _MARK)):
                with suppress(OSError):  # it is in use, belongs to someone else, or is gone
                    _remove(os.path.join(parent, entry), target)
                    removed.append(entry)
    return removed


def _remove(folder: str, target: str) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _put_back(folder, target)
        shutil.rmtree(folder)
        _log.info("%s: removed: an interrupted command left it", folder)
    finally:
        os.close(lock)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable, where the file system can."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def write_through(path: str, content: bytes) -> None:
    """Write a file, and wait until its bytes are on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_journal(path: str, state: Mapping[str, Any]) -> None:
    """Replace a journal durably: it is there as a whole, or as it was before."""
    write_through(f"{path}.new", json.dumps(state).encode())
    os.rename(f"{path}.new", path)
    sync_folder(os.path.dirname(path))
