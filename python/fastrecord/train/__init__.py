"""Train a classifier of torchvision or timm on packed files: in one process, or in many under torchrun.

`python -m fastrecord.train TRAIN.frec --val VAL.frec` is the command; `train(TrainConfig(...))`
does the same from Python. `run_ladder` (`--ladder`) measures the cost of each layer between the
records and the model.
"""

from typing import TYPE_CHECKING

from fastrecord.lazy import lazily
from fastrecord.train.config import TrainConfig as TrainConfig
from fastrecord.train.config import TrainError as TrainError

if TYPE_CHECKING:
    from fastrecord.train.engine import Result as Result
    from fastrecord.train.engine import train as train
    from fastrecord.train.ladder import Ladder as Ladder
    from fastrecord.train.ladder import Rung as Rung
    from fastrecord.train.ladder import run_ladder as run_ladder

# The engine needs torch; the configuration and `--help` do not.
_NAMES = {"Result": "engine", "train": "engine", "Ladder": "ladder", "Rung": "ladder", "run_ladder": "ladder"}
__all__ = sorted([*_NAMES, "TrainConfig", "TrainError"])
__getattr__, __dir__ = lazily(__name__, _NAMES)
