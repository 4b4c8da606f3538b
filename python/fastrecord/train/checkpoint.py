"""Checkpoints: written so that a run killed at any moment leaves the one before whole."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastrecord.train.config import TrainError

_FORMAT = "fastrecord.train 1"
_TEMPORARY = ".{}.tmp"


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` to `path`, replacing what is there in one step, and wait until the disk has it.

    Raises:
        OSError: it can not be written (a full disk); what was at `path` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Through memory: torch turns a full disk into an error without the path, and it leaves the reason out.
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    temporary = path.with_name(_TEMPORARY.format(path.name))
    try:
        with temporary.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; the checkpoint was not written", str(path)) from error
    finally:
        # It is gone if all went well.
        temporary.unlink(missing_ok=True)
    # The folder too may be new to the disk.
    for folder in (path.parent, path.parent.parent):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove the files that a killed run was writing when it ended: of checkpoints, metrics and plot."""
    for name in ("checkpoints/last.pt", "checkpoints/best.pt", "metrics.jsonl", "training.png"):
        path = folder / name
        path.with_name(_TEMPORARY.format(path.name)).unlink(missing_ok=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint into the host's memory. Only tensors and plain values are unpickled.

    Raises:
        TrainError: the file is not there, or is not a checkpoint of this trainer.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise TrainError(f"{path}: {error.strerror}") from error
    except (RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
        raise TrainError(f"{path}: not a checkpoint of fastrecord.train, or damaged ({error})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise TrainError(f"{path}: not a checkpoint of fastrecord.train ({_FORMAT!r})")
    return state


def find_snapshots(resume: str | Path | None, folder: Path) -> list[dict[str, Any]] | None:
    """Return which commits of its files the run that is gone on with has, None if there is none, or it does not say.

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
        resume: A checkpoint, the folder of a run, "auto" for the run in `folder` if there is one, or None.
        folder: Where the run writes.

    Raises:
        TrainError: `resume` names something that is not there.
    """
    if resume is None:
        return None
    if resume == "auto":
        # The best one is written first: a run may have been killed before it had a last one.
        newest = (folder / "checkpoints" / name for name in ("last.pt", "best.pt"))
        return next((path for path in newest if path.exists()), None)
    path = Path(resume)
    for candidate in (path, path / "last.pt", path / "checkpoints" / "last.pt"):
        if candidate.is_file():
            return candidate
    raise TrainError(f"{path}: no checkpoint there (a file, or a folder with checkpoints/last.pt)")
