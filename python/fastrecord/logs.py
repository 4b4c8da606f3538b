"""The core's log events in Python's `logging`: loggers fastrecord.core.<module>."""

from __future__ import annotations

import atexit
import logging

from fastrecord._core import deliver_events

# The application configures logging; without this handler, Python would print warnings by itself.
logging.getLogger("fastrecord").addHandler(logging.NullHandler())

_CORE = logging.getLogger("fastrecord.core")
# Modules that log; each has its own logger.
_MODULES = tuple(
    logging.getLogger(f"fastrecord.core.{name}")
    for name in (
        "chunks",
        "commit",
        "loader",
        "open",
        "packing",
        "pool",
        "snapshot",
        "sys",
        "temporary",
        "transfer",
        "writer",
    )
)


def threshold() -> int:
    """Return the lowest level that any of the core's loggers lets through."""
    base = _CORE.getEffectiveLevel()
    lowest = min(base, *[logger.level or base for logger in _MODULES])
    return max(lowest, _CORE.manager.disable + 1)


def emit(name: str, level: int, message: str, created: float, thread: str | None, place: tuple[str, int]) -> None:
    """Pass an event to the handlers with its original time and thread.

    Args:
        name: Name of the logger.
        level: Level as in `logging`.
        message: The text.
        created: Time of the event, in seconds since 1970.
        thread: Name of the thread, if it is not this one.
        place: Source file and line.
    """
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, *place, message, (), None)
    record.relativeCreated += (created - record.created) * 1000
    record.created, record.msecs = created, int(created % 1 * 1000) + 0.0
    if thread is not None:
        record.thread, record.threadName = None, "MainThread" if thread == "main" else thread
    logger.handle(record)


# Before logging shuts down: its own hook was registered earlier, and hooks run in reverse order.
atexit.register(deliver_events, last=True)
