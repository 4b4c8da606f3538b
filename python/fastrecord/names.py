"""File system names as text, which is stored as UTF-8 in any locale."""

from __future__ import annotations

import os
from collections.abc import Sequence


def as_text(name: str) -> str:
    """Return a name from the system as UTF-8 text.

    Raises:
        UnicodeDecodeError: its bytes are not UTF-8.
    """
    return os.fsencode(name).decode()


def as_name(text: str) -> str:
    """Return the name to open for UTF-8 text, or for what `as_key` has made of a name."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def as_key(name: str) -> str:
    """Return a name, or an argument, from the system as UTF-8 text; other bytes in it are surrogate escapes."""
    try:
        return os.fsencode(name).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no name from the system
        return name


def readable(name: str) -> str:
    """Return a name, or an argument, from the system as UTF-8 text, with other bytes spelt out."""
    return as_key(name).encode("utf-8", "backslashreplace").decode()


_NAMED_AT_MOST = 5


def name_some(names: Sequence[str]) -> str:
    """Return the first few names, quoted, and the number of further names."""
    shown = ", ".join(repr(name) for name in names[:_NAMED_AT_MOST])
    more = len(names) - _NAMED_AT_MOST
    return f"{shown} and {more:,} more" if more > 0 else shown
