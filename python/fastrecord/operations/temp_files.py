"""Temporary files of extracts. A running extract holds their locks; unlocked ones are left over."""

from __future__ import annotations

import fcntl
import os
import re
import secrets

_NAME = re.compile(r"\.fastrecord-[0-9a-f]{16}\.tmp")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def temporary_name() -> str:
    """Return a unique file name."""
    return f".fastrecord-{secrets.token_hex(8)}.tmp"


def above_streams(file: int) -> int:
    """Return a descriptor of an open file that is not a standard stream's.

    Libraries may print to the standard streams.
    """
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


def create(name: str, folder: int, mode: int) -> int:
    """Create a file in a folder and take its lock.

    Args:
        name: A return value of `temporary_name`.
        folder: Descriptor of the folder.
        mode: Permissions, before the umask.

    Returns:
        Its descriptor, open for writing.

    Raises:
        OSError: the system's error.
    """
    while True:
        file = above_streams(os.open(name, _FLAGS, mode, dir_fd=folder))
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # removed as a leftover before we took the lock


def remove_leftovers(folder: int) -> None:
    """Remove the temporary files of killed extracts.

    Args:
        folder: Descriptor of the folder.
    """
    for name in filter(_NAME.fullmatch, os.listdir(folder)):
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue  # already gone, or another user's
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=folder)
        except OSError:
            pass  # it is being written
        finally:
            os.close(file)
