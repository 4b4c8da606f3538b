"""The folder of a run: made where it can be, and locked, as two trainers would take turns replacing each other's files.

The lock is the system's: it goes with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastrecord.train.config import TrainError

_log = logging.getLogger("fastrecord.train")

_LOCK = "run.lock"
_held: set[int] = set()


def _forget_held() -> None:
    """Close the locks in a forked process: the workers of a killed trainer must not keep its folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_held)


def check_folder(folder: Path) -> None:
    """Refuse a folder that can not be made or written to.

    Raises:
        TrainError: names what is in the way.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise TrainError(f"--out {folder}: {nearest} is not a folder: choose another --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TrainError(f"--out {folder}: no permission to write to {nearest}: choose another --out")


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and keep other trainers from writing to it until the block ends.

    Its file `run.lock` names the process that had the lock last, and stays.

    Raises:
        TrainError: another process has the lock; the message names that process and its host.
        OSError: the folder or the file can not be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _held.add(descriptor)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip() or "another process"
        raise TrainError(
            f"{folder}: {holder} trains there now: wait until it ends, stop it, or choose another --out"
        ) from error
    except OSError as error:
        _log.warning(f"{folder} can not be locked ({error.strerror}): let no second trainer write there")
        return
    os.ftruncate(descriptor, 0)
    with suppress(OSError):  # a full disk leaves the lock without a name
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
