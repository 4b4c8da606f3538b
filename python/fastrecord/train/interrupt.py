"""`StopSignal`: Ctrl-C and SIGTERM as a request that the run checks between two steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

# A launcher forwards a signal to processes that the terminal has already signalled: within this
# time, in seconds, both are one request.
_ONE_WISH = 2.0
# How long a data worker may outlive its trainer, in seconds.
_ORPHANED = 5.0


class StopSignal:
    """Records the first SIGINT, SIGTERM or SIGHUP in its block, instead of raising within a step.

    A later SIGINT raises KeyboardInterrupt, for a run that hangs. Outside the main thread it
    records nothing. An ignored SIGHUP (nohup) stays ignored. A process started by torchrun treats
    the end of torchrun as SIGHUP: no launcher is left to end this process, or to restart it.
    """

    def __init__(self) -> None:
        self._number = 0
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._noted_at = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if kind is signal.SIGHUP and signal.getsignal(kind) is signal.SIG_IGN:
                    continue
                self._previous[kind] = signal.signal(kind, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            # A handler that was not set from Python reads as None, and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def number(self) -> int:
        """The recorded signal, or 0."""
        if not self._number and self._launcher is not None and os.getppid() != self._launcher:
            self._number = signal.SIGHUP
        return self._number

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the signals act at once during the block, which waits for other processes.

        Nothing is lost: no step was taken. A signal noted here would be looked at only after the
        wait, and a launcher that starts the job anew waits for the end of this process.
        """
        default = (None, signal.default_int_handler)
        for kind, previous in self._previous.items():
            signal.signal(kind, signal.SIG_DFL if previous in default else previous)
        try:
            yield
        finally:
            for kind in self._previous:
                signal.signal(kind, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._number:
            self._number, self._noted_at = number, now
        elif number == signal.SIGINT and now - self._noted_at > _ONE_WISH:
            raise KeyboardInterrupt


def ignore_launcher(_worker: int) -> None:
    """Let only the trainer end a data worker; a DataLoader's `worker_init_fn`.

    Terminals and launchers signal the whole process group. If a worker died of that signal, the
    current step would fail; the trainer ends the worker after that step. A worker whose trainer is
    gone ends by itself, even while its batch waits to be received. A worker of a plain DataLoader
    would then wait forever if the batch does not fit into a pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Only sigwaitinfo reports a signal's sender to Python. Threads that start later inherit the
    # mask.
    waited = {signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    parent = multiprocessing.parent_process()
    # Not getppid: if the trainer was killed while the worker imported torch, the parent is another
    # process.
    trainer = os.getppid() if parent is None or parent.pid is None else parent.pid
    threading.Thread(target=_obey_parent, args=(waited, trainer), daemon=True).start()


def _obey_parent(waited: set[signal.Signals], parent: int) -> None:
    while os.getppid() == parent:
        sent = signal.sigtimedwait(waited, _ORPHANED)
        if sent is not None and sent.si_pid == parent:
            os._exit(0)
    os._exit(1)
