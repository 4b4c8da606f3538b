"""The part of a file that is in the page cache, and dropping it from there.

Works for every user who may read the file.
"""

from __future__ import annotations

import os

from fastrecord._core import resident_bytes

_PROBES = 512


def resident_size(path: str | os.PathLike[str]) -> int | None:
    """Return how many bytes of a file are in the page cache, without reading any of it.

    The result is None if the system does not report it.

    Raises:
        FileNotFoundError: no such file.
        CorruptFileError: it is not a regular file.
    """
    # The kernel reports correctly only to owners and users with write access; to others the whole
    # file seems resident.
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    try:
        return resident_bytes(path)[0]
    except OSError:
        return None  # it cannot be read, or its file system does not support mapping


def resident_share(path: str | os.PathLike[str]) -> float | None:
    """Return the share of a file in the page cache, by `resident_size` or else by probes.

    Call it before reading the file: opening it reads a part of it, and the probes may cause reads.
    """
    resident, size = resident_size(path), os.stat(path).st_size
    if resident is not None:
        return resident / max(size, 1)
    return cached_share(path, size) if os.path.isfile(path) else None


def cached_share(path: str | os.PathLike[str], nbytes: int) -> float | None:
    """Return the share of a file in the page cache, by probing bytes without waiting for the disk.

    It also works for users who neither own the file nor may write to it; `resident_bytes` reports
    the whole file to them.
    """
    import numpy as np

    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    places = np.random.default_rng(0).integers(0, max(nbytes, 1), _PROBES)
    found, byte = 0, bytearray(1)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for place in places.tolist():
            try:
                found += os.preadv(descriptor, [byte], place, flag)
            except BlockingIOError:
                continue
    except OSError:
        return None  # the file system does not support such probes
    finally:
        os.close(descriptor)
    return found / _PROBES


def drop_from_cache(path: str | os.PathLike[str]) -> None:
    """Ask the system to drop a file's pages; mapped and unwritten pages stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
