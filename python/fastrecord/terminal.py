"""Text for a terminal: names from a file or a folder must not control it; sizes."""

from __future__ import annotations

import logging
import os
import sys


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return text that fits on one line of a terminal in some encoding and does not control it."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


class PrintableFormatter(logging.Formatter):
    """Formats a log record as one line without control characters; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record."""
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return the full text of a record."""
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


def occupy_streams() -> None:
    """Open closed standard streams onto nothing: a file of ours would get what C libraries print to them."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)


def drop_unwritten() -> None:
    """Drop what stdout cannot take: Python would try again at exit, and print its own message."""
    if sys.stdout is None:  # it was closed from the start
        return
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def bytes_text(size: float) -> str:
    """Return a number of bytes with a decimal unit: `138.0 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
