"""What the core tells of itself, in Python's `logging`: loggers fastrecord.core.<module>."""

from __future__ import annotations

import atexit
import logging
from types import MappingProxyType

from fastrecord._core import deliver_events

# Who uses a library says where its log goes; without this, Python would print warnings by itself.
logging.getLogger("fastrecord").addHandler(logging.NullHandler())

_CORE = logging.getLogger("fastrecord.core")
# Those modules that tell anything: one may be listened to by itself.
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
_MAIN = MappingProxyType({"main": "MainThread"})


def threshold() -> int:
    """Return the lowest level that any of the core's loggers lets through."""
    base = _CORE.getEffectiveLevel()
    lowest = min(base, *[logger.level or base for logger in _MODULES])
    return max(lowest, _CORE.manager.disable + 1)


def emit(
    name: str, level: int, message: str, created: float, other: bool, thread: str | None, place: tuple[str, int]
) -> None:
    """Give an event to the handlers, as of the time and the thread that it happened at.

    Args:
        name: Of the logger.
        level: As `logging` has it.
        message: The text.
        created: When it happened, in seconds since 1970.
        other: It happened on another thread than this one.
        thread: The name of that thread.
        place: Source file and line.
    """
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(name, level, *place, message, (), None)
    record.relativeCreated += (created - record.created) * 1000
    record.created, record.msecs = created, int(created % 1 * 1000) + 0.0
    if other:
        record.thread, record.threadName = None, _MAIN.get(thread or "?", thread)
    logger.handle(record)


# Before logging ends: its own hook was registered earlier, and hooks run backwards.
atexit.register(deliver_events, last=True)
