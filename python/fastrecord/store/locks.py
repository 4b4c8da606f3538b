"""`locked`: locks on bytes of a file, which end with the process that holds them.

They belong to an open file description (fcntl(2), F_OFD_SETLK), so one held by a killed process is
never left behind, and closing another descriptor of the file does not drop it.

The order of a cache's locks. Who holds one takes only those below it, and none of the same line:

1. `CachedFile._opening`: one thread opens a copy that may have to be brought.
2. `Cache._turns`, byte `_TURN`: one thread makes room, for copies that are open. Others only look whether it is free.
3. `Cache._changing`, byte `_CHANGE` (`Cache._alone`): to reserve, to settle, to give up. Their holder opens copies
   only by `open_here`, which brings nothing. It waits for readers, and has this process release what it holds.
4. The places of parts (`CachedFile._claim`), in ascending order: to bring parts, or to free them.
5. `CachedFile._lock`, then a copy's byte `OPENING`, then `ONCE`; or its byte `COUNT`.
6. `Cache._lock`, `CachedFile._turns`, and others that are held for an instant.

A thread for requests never waits for what only another such thread can do: `requests.at_once`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastrecord.errors import Code

_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


def try_lock(descriptor: int, start: int, count: int = 1, *, shared: bool = False) -> bool:
    """Lock bytes of a file; return False if another holder is in the way."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, 0, start, count, 0))
    except OSError as err:
        if err.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if err.errno == errno.ENOLCK:
            place = os.readlink(f"/proc/self/fd/{descriptor}")
            raise Code.CACHE.error(f"{place}: its file system has no locks: put the cache on a local disk") from None
        raise
    return True


def lock(descriptor: int, start: int, count: int = 1, *, shared: bool = False) -> None:
    """Lock bytes of a file; wait for them, so that Ctrl-C ends the wait."""
    pause = pauses()
    while not try_lock(descriptor, start, count, shared=shared):
        pause()


def unlock(descriptor: int, start: int, count: int = 1) -> None:
    """Unlock bytes of a file."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, 0, start, count, 0))


@contextmanager
def locked(descriptor: int, start: int, *, shared: bool = False) -> Iterator[None]:
    """Hold a byte of a file; wait for it."""
    lock(descriptor, start, shared=shared)
    try:
        yield
    finally:
        unlock(descriptor, start)


def is_linked(descriptor: int, path: str) -> bool:
    """Return whether a path still leads to an open file, which may have been removed before it was locked."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def pauses() -> Callable[[], None]:
    """Return what waits a little between two attempts, longer each time."""
    seconds = 0.0005

    def pause() -> None:
        nonlocal seconds
        time.sleep(seconds)
        seconds = min(2 * seconds, 0.02)

    return pause
