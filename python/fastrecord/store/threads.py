"""`Threads`: threads for calls that may wait long, which nothing waits for at the end of a process.

Where no thread can be started, `Threads` does with fewer, or with the calling one; `start` says why.
`in_order` computes on them what a caller takes one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fastrecord.ending import close_at_exit, join_at_exit
from fastrecord.errors import Code

_log = logging.getLogger("fastrecord.store")
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        RuntimeError: the system refuses; with FR103.
    """
    try:
        thread.start()
    except RuntimeError as err:
        raise no_thread(err) from err


def no_thread(reason: RuntimeError) -> Exception:
    """Return the error for a thread that the system refuses."""
    return Code.THREADS.error(
        f"no thread can be started ({reason}): raise the limit of processes (`ulimit -u`, `pids.max`) or of memory "
        "(`ulimit -v`)"
    )


class Threads:
    """A fixed number of threads, each started when it is needed.

    A process at its limit of threads or memory works with fewer. Without any, `submit` makes the call itself.

    Those of `concurrent.futures` are joined at exit: Ctrl-C would wait for a store that does not answer.

    Args:
        count: Threads at most.
        name: What they are called.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = self._busy = 0
        self._closed = False
        close_at_exit(self)

    def submit(self, function: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Call a function on one of the threads."""
        future: Future[_T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._busy += 1
            start = self._busy > self._started and self._started < self._count
            self._started += start
        self._queue.put((future, function, arguments))
        if start:
            self._start()
        return future

    def map(self, function: Callable[..., _T], *arguments: Iterable[Any]) -> list[_T]:
        """Return the results of calls with the items of iterables; an error cancels the calls that have not begun."""
        futures = [self.submit(function, *each) for each in zip(*arguments, strict=True)]
        try:
            return [future.result() for future in futures]
        finally:
            wait([future for future in futures if not future.cancel()])

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        join_at_exit(thread)
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                self._started -= 1
                alone = not self._started
            _log.warning("only %d of %d threads could be started: %s", self._started, self._count, error)
            while alone and (work := self._next()) is not None:
                self._call(work)

    def end(self) -> None:
        """End the threads after the calls that they have."""
        with self._lock:
            for _ in range(self._started):
                self._queue.put(None)

    def close(self) -> None:
        """Cancel the calls that have not begun, and end the threads after the others."""
        with self._lock:
            self._closed = True
        while (work := self._next()) is not None:
            work[0].cancel()
        self.end()

    def _next(self) -> _Work | None:
        """Return a call that waits, without waiting for one."""
        with contextlib.suppress(Empty):
            while (work := self._queue.get_nowait()) is None:
                pass
            return work
        return None

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._call(work)
            del work  # an idle thread keeps nothing alive

    def _call(self, work: _Work) -> None:
        future, function, arguments = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)
        with self._lock:
            self._busy -= 1


def in_order(function: Callable[[_Item], _T], items: Iterable[_Item], count: int, name: str) -> Iterator[_T]:
    """Yield what a function returns for each item, computed on threads, a few items ahead.

    Args:
        function: Its errors are raised where its result would come.
        items: Taken as the results are.
        count: Threads. Twice as many results wait at most.
        name: What the threads are called.
    """
    threads = Threads(count, name)
    coming: deque[Future[_T]] = deque()
    try:
        for item in items:
            coming.append(threads.submit(function, item))
            if len(coming) >= 2 * count:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        threads.close()
