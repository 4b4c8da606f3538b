"""`close_at_exit`: closes what has threads while the interpreter is still whole.

An interpreter that ends stops each thread that runs Python, without a way to clean up: if there are
functions of an extension module on its stack, the process aborts (before Python 3.14).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import Any

# Seconds to wait for threads, such as those that wait for a store that does not answer.
_PATIENCE = 1.0

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def close_at_exit(closable: Any) -> None:
    """Call `close` before the interpreter ends, if the object still exists."""
    _open.add(closable)


def join_at_exit(thread: threading.Thread) -> None:
    """Wait a moment for a daemon thread before the interpreter ends: its owner has been closed then."""
    _threads.add(thread)


# What a forked child has of its parent has no threads.
os.register_at_fork(after_in_child=_open.clear)
os.register_at_fork(after_in_child=_threads.clear)


@atexit.register
def _close_all() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C ends the waiting
        for closable in list(_open):
            # Such as a generator that another thread runs; nobody is left to handle an error.
            with contextlib.suppress(Exception):
                closable.close()
        end = time.monotonic() + _PATIENCE
        for thread in list(_threads):
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
