"""Names of the file system as text, which is stored as UTF-8 whatever the locale is."""

from __future__ import annotations

import os


def as_text(name: str) -> str:
    """Return what a name that the system gave is as UTF-8.

    Raises:
        UnicodeDecodeError: its bytes are not UTF-8.
    """
    return os.fsencode(name).decode()


def as_name(text: str) -> str:
    """Return the name that stands for UTF-8 text where a path is opened."""
    return os.fsdecode(text.encode())
