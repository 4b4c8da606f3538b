"""What the subcommands share: sizes as text, and the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def bytes_text(size: float) -> str:
    """Return a number of bytes with a decimal unit: `138.0 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def printable(text: str) -> str:
    """Return text that takes one line of a terminal and does nothing else to it."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


@contextmanager
def progress_bar(*, quiet: bool, **options: Any) -> Iterator[tqdm[Any] | None]:
    """Show a progress bar on stderr while the block runs, or give None if there is no terminal to show it on.

    Args:
        quiet: Show none.
        options: Of `tqdm.tqdm`; the total may be set later by its `reset`.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(file=sys.stderr, dynamic_ncols=True, leave=False, **options) as bar:
        yield bar
