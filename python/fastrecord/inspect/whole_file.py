"""`write_whole`: a file that appears under its name when it is complete, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from fastrecord.errors import Code
from fastrecord.files.places import exists_already


def check_output(path: str, *, overwrite: bool) -> None:
    """Refuse a path that cannot be written, before any work.

    Raises:
        FileExistsError: something is there, and `overwrite` is false.
        IsADirectoryError, FileNotFoundError: it is a folder, or its folder does not exist.
        FastRecordError: it is a device, a pipe or a socket.
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    if not os.path.lexists(path):
        return
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise Code.NOT_REGULAR.error(f"{path}: is not a regular file")
    if not overwrite:
        raise exists_already(path)


def write_whole(path: str, content: bytes, *, overwrite: bool) -> None:
    """Write a file under another name beside `path`, then rename it.

    Raises:
        OSError: it cannot be written. FileExistsError: a file appeared at `path` meanwhile.
    """
    temporary = f"{path}.tmp-{secrets.token_hex(4)}"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        check_output(path, overwrite=overwrite)
        os.replace(temporary, path)
    except OSError as error:
        if error.filename == temporary:
            raise OSError(error.errno, error.strerror, path) from error
        if error.filename is None and error.errno is not None:  # of write or fsync
            raise OSError(error.errno, os.strerror(error.errno), path) from error
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
