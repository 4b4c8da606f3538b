"""What of a file lies in the page cache, as anybody may ask who may read it, and dropping it."""

from __future__ import annotations

import os

from fastrecord._core import resident_bytes

_PROBES = 512


def resident_size(path: str | os.PathLike[str]) -> int | None:
    """Return how many bytes of a file lie in the page cache, without reading any of it; None if the system won't tell.

    Raises:
        FileNotFoundError: no such file. CorruptFileError: it is no regular file.
    """
    # The kernel tells only those who own the file or may write to it; to others all of it seems to be there.
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        return None
    try:
        return resident_bytes(path)[0]
    except OSError:
        return None  # it may not be read, or lies on a file system that can not be mapped


def resident_share(path: str | os.PathLike[str]) -> float | None:
    """Return the share of a file that lies in the page cache, as `resident_size`, or by probes where that won't tell.

    Ask before anything of the file is read: opening it reads a part of it, and the probes may make the system read.
    """
    resident, size = resident_size(path), os.stat(path).st_size
    if resident is not None:
        return resident / max(size, 1)
    return cached_share(path, size) if os.path.isfile(path) else None


def cached_share(path: str | os.PathLike[str], nbytes: int) -> float | None:
    """Return the share of a file that lies in the page cache, by probing single bytes without waiting for the disk.

    It answers those who neither own the file nor may write to it, too: `resident_bytes` tells them that all is there.
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
        return None  # the file system does not answer such questions
    finally:
        os.close(descriptor)
    return found / _PROBES


def drop_from_cache(path: str | os.PathLike[str]) -> None:
    """Ask the system to forget a file's pages; those that are mapped, or not yet written, stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
