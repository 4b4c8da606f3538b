"""`helper`: the process that makes a forked child's requests.

obstore's threads do not survive a fork, and nothing can start them again in the child. So the child
starts a new interpreter, which is not a fork, and sends it the calls over a pipe. Downloaded bytes do
not pass through the pipe: the helper writes them where they belong. It ends with its parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastrecord.ending import close_at_exit
from fastrecord.store.answer import Answer


class Helper:
    """A process that calls functions; one call at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_over = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fastrecord.store.helper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        close_at_exit(self)

    def close(self) -> None:
        """End the process."""
        self.is_over = True
        with suppress(OSError), self._process:  # closes its pipes, and waits
            self._process.kill()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function of a module returns there, or raise what it raises."""
        source, sink = self._process.stdout, self._process.stdin
        if source is None or sink is None:
            raise OSError("the helper process has no pipes")
        with self._lock:
            try:
                pickle.dump((function, arguments), sink)
                sink.flush()
                good, value = pickle.load(source)
            except BaseException as error:
                self.close()  # its answer would be taken for that of the next call
                if isinstance(error, (OSError, EOFError)):
                    raise OSError("the helper process that makes requests has ended") from None
                raise
        if good:
            return value
        raise value


_helper: tuple[int, Helper] | None = None
_starting = threading.Lock()


def _forked() -> None:
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def helper() -> Helper:
    """Return the helper of this process, started at first use."""
    global _helper
    with _starting:
        if _helper is None or _helper[0] != os.getpid() or _helper[1].is_over:
            _helper = os.getpid(), Helper()
        return _helper[1]


def _plain(value: Any) -> Any:
    """Return a value that can be pickled."""
    return Answer(bytes(value.data), value.size, value.etag) if isinstance(value, Answer) else value


def main() -> None:
    """Call what comes in, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else writes to the pipe
    while True:
        try:
            function, arguments = pickle.load(source)
        except EOFError:
            return
        try:
            answer = (True, _plain(function(*arguments)))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = (False, error)
        try:
            pickle.dump(answer, sink)
            sink.flush()
        except BrokenPipeError:
            return


if __name__ == "__main__":
    main()
