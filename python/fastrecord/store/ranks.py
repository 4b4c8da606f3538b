"""`Ranks`: how far the ranks of a node are, which execute one plan together; they share it in a small file.

Each rank holds a lock as long as it takes part, which ends with its process, so the others never wait
for one that was killed. The first rank leads: it says where the plan begins, and gives up. Brings
nothing, and knows neither plans nor caches.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fastrecord.store.locks import is_linked, locked, pauses, try_lock, unlock
from fastrecord.store.marks import open_shared
from fastrecord.store.requests import PAGE

# How the file's name ends.
SUFFIX = ".ranks"
# Most ranks that have their numbers in a page.
MOST = 120
# Bytes of the file that are locked: to come or leave; the places of ranks.
_DOOR, _PLACES = 0, 1
# Numbers in the file: whether the leader has begun, and with a plan or without; how often it has given up; where the
# plan begins. Then for each rank: whether it is here, its last step that is done, the step before which it has
# brought all its share, and its process.
_BEGUN, _GIVEN_UP, _STEP, _LIMIT, _AHEAD, _FIRST = 0, 1, 2, 3, 4, 8
_STATE, _DONE, _REACHED, _PROCESS, _EACH = 0, 1, 2, 3, 4
_ABSENT, _HERE, _LEFT = 0, 1, 2
_PLAN, _NO_PLAN = 1, 2
_LEADER = 0
# Below what any decision waits for.
_NOTHING = -2
# Seconds to wait for ranks that have not been seen yet; and for those that have taken part before, and may do
# something else between two epochs.
_FIRST_PATIENCE, PATIENCE = 30.0, 120.0

_log = logging.getLogger("fastrecord.store")
# Folder and rank -> the process of a rank that was there in an epoch before; 0 if it is not seen from here, as that of
# another container.
_met: dict[tuple[str, int], int] = {}
# Folders and ranks that were killed or did not come: the others do not wait for them again.
_lost: set[tuple[str, int]] = set()


@dataclass(frozen=True, slots=True)
class Start:
    """What all ranks begin their plans with.

    Attributes:
        step: The first step, counted through the epochs.
        limit: Bytes that the plan may have here.
        ahead: Steps to be ahead.
        there: Units that are here, int64 (N,).
    """

    step: int
    limit: int
    ahead: int
    there: NDArray[np.int64]


class Ranks:
    """One rank among the others of its node; made by `join`.

    Attributes:
        rank, count: Its number on the node, and how many ranks there are.
    """

    def __init__(self, path: str, descriptor: int, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self._path, self._folder, self._descriptor = path, os.path.dirname(path), descriptor
        self._numbers = np.frombuffer(mmap.mmap(descriptor, PAGE), np.int64)
        self._table = self._numbers[_FIRST : _FIRST + count * _EACH].reshape(count, _EACH)
        self._since = time.monotonic()

    @classmethod
    def join(cls, folder: str, name: str, rank: int, count: int) -> Self | None:
        """Take part; None if another one has the rank's place, or those of an earlier time do not leave.

        Args:
            folder: The cache's.
            name: The same for all ranks; another one for each epoch.
            rank: The number on the node.
            count: Ranks of the node.
        """
        path = os.path.join(folder, name + SUFFIX)
        pause, end = pauses(), time.monotonic() + _FIRST_PATIENCE
        while time.monotonic() < end:
            descriptor = open_shared(path)
            try:
                with locked(descriptor, _DOOR):
                    # The last one to leave may have removed it meanwhile.
                    if is_linked(descriptor, path):
                        if os.fstat(descriptor).st_size < PAGE:
                            os.ftruncate(descriptor, PAGE)
                        made = cls(path, descriptor, rank, count)
                        if not try_lock(descriptor, _PLACES + rank):
                            if made._table[rank, _STATE] == _HERE:
                                return None
                            continue  # another rank looks whether it is free, for an instant
                        if made._is_old():
                            made._numbers[:] = 0
                            os.ftruncate(descriptor, PAGE)
                        if made._table[rank, _STATE] == _ABSENT:
                            made._table[rank, [_DONE, _REACHED]] = _NOTHING
                            made._table[rank, _PROCESS] = os.getpid()
                            made._table[rank, _STATE] = _HERE
                            descriptor = -1
                            return made
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            pause()
        return None

    @property
    def leads(self) -> bool:
        """Whether this rank leads."""
        return self.rank == _LEADER

    def begin(self, start: Start | None) -> None:
        """Let the others begin. The leader calls it, with None if there is no plan."""
        if start is not None:
            self._numbers[[_STEP, _LIMIT, _AHEAD]] = start.step, start.limit, start.ahead
            here = np.zeros(int(start.there.max(initial=-1)) + 1, bool)
            here[start.there] = True
            os.pwrite(self._descriptor, np.packbits(here).tobytes(), PAGE)
        self._numbers[_BEGUN] = _NO_PLAN if start is None else _PLAN

    def start(self) -> Start | None:
        """Wait until the leader begins; None if it has no plan, or is gone."""
        pause = pauses()
        while not self._numbers[_BEGUN]:
            if self._is_gone(_LEADER):
                return None
            pause()
        if self._numbers[_BEGUN] == _NO_PLAN:
            return None
        step, limit, ahead = self._numbers[[_STEP, _LIMIT, _AHEAD]].tolist()
        size = os.fstat(self._descriptor).st_size - PAGE
        here = np.frombuffer(os.pread(self._descriptor, size, PAGE), np.uint8)
        return Start(step, limit, ahead, np.flatnonzero(np.unpackbits(here)))

    def report(self, *, done: int | None = None, reached: int | None = None) -> None:
        """Let the others know how far this rank is.

        Args:
            done: The last step that it has read.
            reached: It has brought its share of all steps before this one.
        """
        if done is not None:
            self._table[self.rank, _DONE] = done
        if reached is not None:
            self._table[self.rank, _REACHED] = reached

    @property
    def done(self) -> int:
        """The last step that all ranks are done with; those that are gone are done with all."""
        left = [rank for rank in range(self.count) if not self._is_gone(rank)]
        return min(int(self._table[rank, _DONE]) if self._table[rank, _STATE] else _NOTHING for rank in left)

    def has(self, step: int) -> bool:
        """Return whether the ranks have brought what a step needs, or those that have not are gone."""
        if self._is_gone(_LEADER):
            return True  # it makes no room any more
        return all(self._table[rank, _REACHED] > step or self._is_gone(rank) for rank in range(self.count))

    def gave_up(self) -> None:
        """Count a decision whose units are given up. The leader calls it."""
        self._numbers[_GIVEN_UP] += 1

    @property
    def given_up(self) -> int:
        """How often the leader has given up."""
        return int(self._numbers[_GIVEN_UP])

    def progress(self) -> tuple[int, ...]:
        """Return all that changes as long as ranks go on."""
        return (self.given_up, *self._table.ravel().tolist())

    def leave(self) -> None:
        """Take part no more; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            with locked(descriptor, _DOOR):
                self._table[self.rank, _STATE] = _LEFT
                if (self._table[:, _STATE] == _LEFT).all() and is_linked(descriptor, self._path):
                    with suppress(PermissionError):  # another user's, in a folder with the sticky bit
                        os.unlink(self._path)
        finally:
            os.close(descriptor)

    def _is_old(self) -> bool:
        """Return whether the file is of an earlier time: its ranks were killed, or have left with this one."""
        states = self._table[:, _STATE]
        known = states[self.rank] != _ABSENT or (states == _HERE).any()
        return bool(known) and all(self._is_free(other) for other in range(self.count) if other != self.rank)

    def _is_gone(self, rank: int) -> bool:
        """Return whether a rank was killed, has left, or does not come."""
        state, process = self._table[rank, [_STATE, _PROCESS]].tolist()
        known = self._folder, rank
        if state != _ABSENT:
            if process != _met.get(known):
                _met[known] = process if _is_running(process) else 0
            _lost.discard(known)
            if state == _HERE and rank != self.rank and self._is_free(rank):
                state = int(self._table[rank, _STATE])  # it may have left meanwhile
                if state == _HERE:
                    _lost.add(known)
            return state == _LEFT or known in _lost
        if known in _lost:
            return True
        patience = PATIENCE if known in _met else _FIRST_PATIENCE
        before = _met.get(known, 0)
        if time.monotonic() < self._since + patience and (not before or _is_running(before)):
            return False
        _lost.add(known)
        _log.warning(
            "%s: rank %d of this node %s: the others go on without it, and the cache does not follow a plan",
            self._path,
            rank,
            f"has not come for {patience:.0f} seconds" if not before or _is_running(before) else "has ended",
        )
        return True

    def _is_free(self, rank: int) -> bool:
        """Return whether no process holds a rank's place."""
        if not try_lock(self._descriptor, _PLACES + rank, shared=True):
            return False
        unlock(self._descriptor, _PLACES + rank)
        return True


def _is_running(process: int) -> bool:
    return os.path.exists(f"/proc/{process}")
