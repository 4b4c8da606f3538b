"""`PlanExecutor`: brings what a plan decides before it is needed, on threads that end with their loader.

Knows neither stores nor caches: a `Place` brings and gives up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fastrecord.ending import join_at_exit
from fastrecord.store.plan import Decision
from fastrecord.store.threads import Threads, start

# Seconds between two looks at the progress of the ranks, which may be other processes.
_PAUSE = 0.005
# Seconds to wait for threads that are bringing something when it is closed.
_PATIENCE = 1.0


class Place(Protocol):
    """What executes decisions, such as a cache. Units are those of the plan."""

    def bring(self, units: NDArray[np.int64]) -> None:
        """Bring units, int64 (N,); return when they are here. Called by several threads."""

    def give_up(self, units: NDArray[np.int64]) -> None:
        """Give up units, int64 (N,). Only one thread calls it."""

    def progress(self) -> int:
        """Return the last step that all ranks of the node are done with, or -1."""


class PlanExecutor:
    """Executes decisions in their order, ahead of the ranks.

    A unit is given up only when all ranks are done with the steps that use it before. So a limit that
    holds for the plan holds here at any time. While nothing has to be given up, units come as fast as
    the place brings them.

    Use it as a context manager, or call `start` and `close`.

    Args:
        decisions: A `Plan`, or the decisions of one.
        place: Executes them.
        steps: Steps that it may be ahead of the ranks at most.
        parallel: Decisions whose units are brought at the same time: while one waits for its last
            answers, the next one has begun.
        reached: Called with the step before which all that is needed has been brought, when it changes.
    """

    def __init__(
        self,
        decisions: Iterable[Decision],
        place: Place,
        *,
        steps: int,
        parallel: int = 8,
        reached: Callable[[int], None] | None = None,
    ) -> None:
        self._decisions, self._place, self._steps, self._reached = decisions, place, steps, reached
        self._changed = threading.Condition()
        # Steps of the decisions whose units are not all here yet, ascending; and how many are being brought.
        self._open: list[int] = []
        self._running = 0
        # Every decision before this step has been executed, but for those that are open.
        self._front = -1
        self._error: BaseException | None = None
        self._over = False
        self._room = parallel
        self._follower = threading.Thread(target=self._follow, name="fastrecord-ahead", daemon=True)
        self._threads = Threads(parallel, "fastrecord-bring")

    def start(self) -> Self:
        """Start the threads; a process at its limit of threads or memory brings with fewer.

        Raises:
            RuntimeError: none can be started (FR103).
        """
        join_at_exit(self._follower)
        start(self._follower)
        return self

    def wait(self, step: int) -> None:
        """Wait until everything that a step needs has been brought.

        Raises:
            RuntimeError: it was closed.
            Exception: what the plan or the place has raised, in any step.
        """
        with self._changed:
            while True:
                self._raise()
                if self._has(step):
                    return
                if self._over:
                    raise RuntimeError("it was closed while a step was waited for")
                self._changed.wait(0.1)  # Ctrl-C ends it

    def has(self, step: int) -> bool:
        """Return whether `wait` for a step returns at once."""
        with self._changed:
            return self._error is not None or self._has(step)

    def _has(self, step: int) -> bool:
        return self._front > step and not any(number <= step for number in self._open)

    def check(self) -> None:
        """Raise what the plan or the place has raised, if anything."""
        with self._changed:
            self._raise()

    def close(self) -> None:
        """End the threads, after what they are bringing at the moment.

        Those that wait for a store which does not answer end later: Ctrl-C would wait for it too.
        """
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._threads.close()
        if threading.current_thread() is not self._follower:
            with self._changed:
                self._changed.wait_for(lambda: not self._running, _PATIENCE)
            if self._follower.is_alive():
                self._follower.join(_PATIENCE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._over = True
            self._changed.notify_all()

    def _follow(self) -> None:
        """Execute decisions, one after the other."""
        try:
            for decision in self._decisions:
                with self._changed:
                    self._go_on(decision.step)
                if not self._may(decision):
                    return
                if len(decision.give_up):
                    self._place.give_up(decision.give_up)
                with self._changed:
                    if len(decision.bring):
                        self._open.append(decision.step)
                    self._go_on(decision.step + 1)
                if len(decision.bring):
                    self._threads.submit(self._bring, decision)
            with self._changed:
                self._go_on(1 << 62)  # the plan has an end
        except BaseException as error:  # noqa: BLE001  the loader raises it
            self._fail(error)

    def _go_on(self, front: int) -> None:
        self._front = front
        if self._reached is not None:
            self._reached(min([front, *self._open]))
        self._changed.notify_all()

    def _may(self, decision: Decision) -> bool:
        """Wait until a decision may be executed; return False if that is not wanted any more."""
        with self._changed:
            while not self._over:
                if len(self._open) < self._room:
                    done = self._place.progress()
                    brought = self._open[0] > decision.after if self._open else True
                    if done >= decision.after and brought and decision.step <= done + self._steps:
                        return True
                self._changed.wait(_PAUSE)
            return False

    def _bring(self, decision: Decision) -> None:
        """Bring the units of a decision."""
        with self._changed:
            if self._over:
                return
            self._running += 1
        try:
            self._place.bring(decision.bring)
        except BaseException as error:  # noqa: BLE001  the loader raises it
            self._fail(error)
        with self._changed:
            self._running -= 1
            if not self._error:
                self._open.remove(decision.step)
            self._go_on(self._front)
