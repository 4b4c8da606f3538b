"""`HeldInterrupt`: delays Ctrl-C until a safe point."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class HeldInterrupt:
    """Records the first Ctrl-C instead of raising it, so that stepwise work can end between steps.

    A second Ctrl-C is raised at once. Outside the main thread, or if the caller has its own signal
    handler, nothing is recorded.

    Attributes:
        pending: Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.pending = False
        self._held = False

    def __enter__(self) -> Self:
        # Python runs signal handlers only in the main thread, and a caller's own handler stays
        # installed.
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
