"""Checkpoints with checksums: a run killed at any moment leaves the previous one whole.

A checkpoint is a ZIP archive written by `torch.save`. The archive's comment is a SHA-256 of all
bytes before it. `torch.load` reads it like any other.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fastrecord.train.config import TrainError
from fastrecord.train.files import replace_file

_FORMAT = "fastrecord.train 2"
_LABEL = b"fastrecord.train sha256 "
_DIGEST = hashlib.sha256().digest_size * 2


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` to `path`, replacing an existing file atomically, and wait for the disk.

    Raises:
        OSError: it cannot be written (a full disk); the old file at `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Through memory: for a full disk torch raises an error without path and reason.
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    _add_checksum(buffer)
    try:
        replace_file(path, buffer.getbuffer())
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; the checkpoint was not written", str(path)) from error
    # The folder's own entry may not be on the disk yet.
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint into host memory. Only tensors and plain values are unpickled.

    Raises:
        TrainError: the file does not exist, is damaged, or is not a checkpoint of this trainer.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TrainError(f"{path}: {error.strerror}") from error
    body, digest = memoryview(content)[:-_DIGEST], content[-_DIGEST:]
    what = "an empty file" if not content else "not a checkpoint of fastrecord.train, or cut short"
    if bytes(body[-len(_LABEL) :]) == _LABEL:
        if hashlib.sha256(body).hexdigest().encode() == digest:
            with suppress(*_UNREADABLE):
                state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                if state["format"] == _FORMAT:
                    return state
        else:
            what = "the checkpoint is damaged: its content does not match its checksum"
    sound = [str(other) for other in sorted(path.parent.glob("*.pt")) if other != path and _is_sound(other)]
    way_out = f"continue from {' or '.join(sound)} (--resume PATH)"
    if not sound:
        way_out = "no other checkpoint is beside it: begin again (--overwrite), or restore a copy"
    raise TrainError(f"{path}: {what}; {way_out}")


# Exceptions of torch for bytes that are not a torch archive.
_UNREADABLE = (RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, pickle.UnpicklingError)


def _add_checksum(archive: io.BytesIO) -> None:
    """Append a checksum as the comment of a ZIP archive, which ends in the comment's length."""
    archive.seek(-2, os.SEEK_END)
    archive.write(struct.pack("<H", len(_LABEL) + _DIGEST) + _LABEL)
    with archive.getbuffer() as content:
        digest = hashlib.sha256(content).hexdigest()
    archive.write(digest.encode())


def _is_sound(path: Path) -> bool:
    """Return whether a checkpoint matches its checksum, without loading it."""
    try:
        with path.open("rb") as file:
            file.seek(-len(_LABEL) - _DIGEST, os.SEEK_END)
            if file.read(len(_LABEL)) != _LABEL:  # other programs may have files of many gigabytes there
                return False
            content = path.read_bytes()
            return hashlib.sha256(memoryview(content)[:-_DIGEST]).hexdigest().encode() == content[-_DIGEST:]
    except OSError:
        return False


def find_snapshots(resume: str | Path | None, folder: Path) -> list[dict[str, Any]] | None:
    """Return the snapshots of the files of the run to resume.

    The result is None without such a run, or if its checkpoint does not have them.

    Args:
        resume: As for `find_checkpoint`.
        folder: Likewise.

    Raises:
        TrainError: as `find_checkpoint` and `load_checkpoint`.
    """
    found = find_checkpoint(resume, folder)
    return None if found is None else load_checkpoint(found).get("snapshots")


def find_checkpoint(resume: str | Path | None, folder: Path) -> Path | None:
    """Return the checkpoint that a run starts from, or None for a fresh start.

    Args:
        resume: A checkpoint, the folder of a run, "auto" for the run in `folder` if there is one
            (its newest checkpoint that is not damaged), or None.
        folder: The run's output folder.

    Raises:
        TrainError: `resume` names a missing file or folder.
    """
    if resume is None:
        return None
    if resume == "auto":
        # The best one is written first: a run killed in between may not have a last one.
        newest = [folder / "checkpoints" / name for name in ("last.pt", "best.pt")]
        there = [path for path in newest if path.exists()]
        # If none is usable, the error is the newest one's.
        return next(filter(_is_sound, there), there[0] if there else None)
    path = Path(resume)
    names = ("last.pt", "checkpoints/last.pt", "best.pt", "checkpoints/best.pt")
    for candidate in (path, *(path / name for name in names)):
        if candidate.is_file():
            return candidate
    raise TrainError(f"--resume {path}: no checkpoint there (a file, or a folder with checkpoints/last.pt)")
