"""Text for a terminal: names that a file or a folder has made up shall not steer it."""

from __future__ import annotations

import logging
import os


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return text that takes one line of a terminal of some encoding and does nothing else to it."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


class PrintableFormatter(logging.Formatter):
    """Formats a record as one line that does nothing else to a terminal; of a traceback behind it, each line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line of a record."""
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Return all that is written of a record."""
        return "\n".join(printable(line) for line in super().format(record).split("\n"))


def occupy_streams() -> None:
    """Open closed standard streams onto nothing: a file of ours would get what C libraries print to them."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(nowhere)
