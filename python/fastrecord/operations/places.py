"""Where output may go: a regular file, or a path that is absent."""

from __future__ import annotations

import errno
import os
import stat

from fastrecord._core import FastRecordError


def refuse_irregular(path: str) -> None:
    """Refuse to write where a folder, a device, a pipe or a socket is; a link counts as its target.

    Raises:
        IsADirectoryError: the path is a folder. FastRecordError: it is another thing that is not a regular file.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # absent, or out of reach: opening it reports that
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise FastRecordError(f"{path}: is not a regular file: nothing is written: choose another path [FR744]")
