"""`replace_file`: how each file of a run is written: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replace a file at once and durably; a kill leaves the old one, and a leftover for `remove_leftovers`.

    Raises:
        OSError: it cannot be written (a full disk); the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        # It no longer exists if all went well.
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of a killed run: checkpoints, metrics, settings, plot and ladder."""
    files = ("metrics.jsonl", "config.toml", "training.png", "ladder.json")
    for name in ("checkpoints/last.pt", "checkpoints/best.pt", *files):
        path = folder / name
        path.with_name(f".{path.name}.tmp").unlink(missing_ok=True)
