"""The folder of a run, created if possible and locked for one trainer.

Two trainers in one folder would replace each other's files. The lock is the system's: it ends with
the process.
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
    """Close the locks in a forked process: a killed trainer's workers must not keep its folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_held)


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be created or written to.

    Raises:
        TrainError: names the obstacle.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise TrainError(f"--out {folder}: {nearest} is not a folder: choose another --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TrainError(f"--out {folder}: no permission to write to {nearest}: choose another --out")


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Create a folder, and keep other trainers from writing to it until the block ends.

    Its file `run.lock` names the last process that held the lock, and is not removed.

    Raises:
        TrainError: another process holds the lock; the message names that process and its host.
        OSError: the folder or the file cannot be created.
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
        _log.warning(f"{folder} cannot be locked ({error.strerror}): make sure that only one trainer writes there")
        return
    os.ftruncate(descriptor, 0)
    with suppress(OSError):  # on a full disk the lock has no name
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
