"""`ReadAhead`: reads in a thread, while the caller stores what was read before.

Where no thread can be started, the caller's reads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from fastrecord.files.interrupt import HeldInterrupt

T = TypeVar("T")
_log = logging.getLogger("fastrecord.pack")
# Runs that wait: one is being read, one waits, one is being stored.
_WAITING = 1
# How often Ctrl-C is looked for, and how long a run may then still take before its thread is left alone: a data set,
# or a network's file system, may never return.
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0


class ReadAhead(Generic[T]):
    """An iterator over runs of records, and a context manager that ends its thread.

    Args:
        runs: The runs. An error that they raise is raised where its run would come.
        interrupt: Ctrl-C there ends the iteration while the next run is waited for.

    Attributes:
        error: The error that the runs have raised.
        interrupted: Ctrl-C has ended the iteration.
    """

    def __init__(self, runs: Iterator[T], interrupt: HeldInterrupt | None = None) -> None:
        self.error: BaseException | None = None
        self.interrupted = False
        self._interrupt = interrupt
        self._runs = runs
        self._waiting: queue.Queue[T | None] = queue.Queue(_WAITING)
        self._stopped = threading.Event()
        self._alone = False
        self._thread = threading.Thread(target=self._work, name="fastrecord-source", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError as err:
            _log.warning("records are read in the thread that stores them: %s", err)
            self._alone = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        broken_off = self.interrupted or (kind is not None and issubclass(kind, KeyboardInterrupt))
        until = time.monotonic() + (_PATIENCE_SECONDS if broken_off else float("inf"))
        while self._thread.is_alive() and time.monotonic() < until:
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self._thread.join(0.05)

    def __iter__(self) -> Iterator[T]:
        if self._alone:
            try:
                yield from self._runs
            except Exception as err:
                self.error = err
                raise
            return
        while (rows := self._next()) is not None:
            yield rows
        if self.error is not None and not self.interrupted:
            raise self.error

    def _next(self) -> T | None:
        while True:
            try:
                return self._waiting.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if self._interrupt is not None and self._interrupt.pending:
                    self.interrupted = True
                    return None

    def _work(self) -> None:
        error = None
        try:
            for rows in self._runs:
                self._put(rows)
                if self._stopped.is_set():
                    break
        except BaseException as err:  # noqa: BLE001 - raised by the thread that iterates
            error = err
        self.error = error
        self._put(None)

    def _put(self, rows: T | None) -> None:
        while not self._stopped.is_set():
            try:
                self._waiting.put(rows, timeout=0.1)
            except queue.Full:
                continue
            return
