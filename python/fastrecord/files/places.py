"""Checks of paths: an output is a regular file or absent, and not a URL."""

from __future__ import annotations

import errno
import os
import stat

from fastrecord.errors import Code
from fastrecord.store import is_url
from fastrecord.store.address import Url


def refuse_irregular(path: str) -> None:
    """Refuse to write to a folder, a device, a pipe or a socket; a link counts as its target.

    Raises:
        IsADirectoryError: the path is a folder.
        FastRecordError: it is something else that is not a regular file, or a URL.
    """
    if is_url(path):
        raise Code.REMOTE.error(
            f"{path}: is in an object store, and this is written to files: choose a path on this machine, and "
            "`fastrecord copy` sends the result there"
        )
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # absent or unreachable: opening it reports the error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise Code.NOT_REGULAR.error(f"{path}: is not a regular file: choose another path")


def exists_already(path: str) -> FileExistsError:
    """Return the error of an output that exists and may not be replaced."""
    return FileExistsError(f"{path}: exists already: `--overwrite` (overwrite=True) replaces it")


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Refuse a file in an object store, for what reads or changes a file of this machine.

    Raises:
        FastRecordError: the path is a URL.
    """
    url = os.fspath(path)
    if is_url(url):
        url = Url(url)
        name = url.name or "."
        raise Code.REMOTE.error(
            f"{url}: is in an object store, where files are neither changed in place nor rewritten: `fastrecord copy "
            f"{url} {name}` brings it here; after the change, `fastrecord copy --overwrite {name} {url}` sends it back"
        )
