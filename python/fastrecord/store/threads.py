"""`Threads`: threads for calls that may wait long, which nothing waits for at the end of a process.

`in_order` computes on them what a caller takes one after the other.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fastrecord.ending import close_at_exit, join_at_exit

_T = TypeVar("_T")
_Item = TypeVar("_Item")
_Work = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    """A fixed number of threads, each started when it is needed.

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
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            join_at_exit(thread)
            thread.start()
        return future

    def end(self) -> None:
        """End the threads after the calls that they have."""
        with self._lock:
            for _ in range(self._started):
                self._queue.put(None)

    def close(self) -> None:
        """Cancel the calls that have not begun, and end the threads after the others."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(Empty):
            while True:
                if (work := self._queue.get_nowait()) is not None:
                    work[0].cancel()
        self.end()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            future, function, arguments = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001 - who waits for the future raises it
                    future.set_exception(error)
            with self._lock:
                self._busy -= 1
            del work, future, function, arguments  # an idle thread keeps nothing alive


def in_order(function: Callable[[_Item], _T], items: Iterable[_Item], count: int, name: str) -> Iterator[_T]:
    """Yield what a function returns for each item, computed on threads, a few items ahead.

    Args:
        function: Its errors are raised in the place of what it would return.
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
