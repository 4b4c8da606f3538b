"""Checks of output paths: a regular file, or an absent path."""

from __future__ import annotations

import errno
import os
import stat

from fastrecord.errors import Code


def refuse_irregular(path: str) -> None:
    """Refuse to write to a folder, a device, a pipe or a socket; a link counts as its target.

    Raises:
        IsADirectoryError: the path is a folder.
        FastRecordError: it is something else that is not a regular file.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # absent or unreachable: opening it reports the error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise Code.NOT_REGULAR.error(f"{path}: is not a regular file: choose another path")
