"""Ending at a good moment when Ctrl-C comes."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class HeldInterrupt:
    """Notes the first Ctrl-C instead of raising it, so that work in steps can end between two of them.

    A second Ctrl-C is raised at once. Outside of the main thread, and where the caller has a handler of their own,
    nothing is noted.

    Attributes:
        pending: Ctrl-C came.
    """

    def __init__(self) -> None:
        self.pending = False
        self._held = False

    def __enter__(self) -> Self:
        # Python runs signal handlers in the main thread alone, and a handler of the caller's own stays in charge.
        main = threading.current_thread() is threading.main_thread()
        self._held = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._held:
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            signal.default_int_handler(number, frame)
        self.pending = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            signal.signal(signal.SIGINT, signal.default_int_handler)
