"""Train a torchvision classifier on packed files: in one process, or in many under torchrun.

`python -m fastrecord.train TRAIN.frec --val VAL.frec` is the command; `train(TrainConfig(...))`
does the same from Python. `run_ladder` (`--ladder`) measures the cost of each layer between the
records and the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastrecord.train.config import TrainConfig, TrainError

if TYPE_CHECKING:
    from fastrecord.train.engine import Result, train
    from fastrecord.train.ladder import Ladder, Rung, run_ladder

# The engine needs torch; the configuration and `--help` do not (PEP 562).
_LAZY = {
    "Ladder": "fastrecord.train.ladder",
    "Result": "fastrecord.train.engine",
    "Rung": "fastrecord.train.ladder",
    "run_ladder": "fastrecord.train.ladder",
    "train": "fastrecord.train.engine",
}

__all__ = ["Ladder", "Result", "Rung", "TrainConfig", "TrainError", "run_ladder", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastrecord.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
