"""What of a file lies in the page cache, as anybody may ask who may read it, and dropping it."""

from __future__ import annotations

import os

import numpy as np

_PROBES = 512


def cached_share(path: str | os.PathLike[str], nbytes: int) -> float | None:
    """Return the share of a file that lies in the page cache, by probing single bytes without waiting for the disk.

    It answers those who neither own the file nor may write to it, too: `resident_bytes` tells them that all is there.
    """
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
