"""`LearningRate`: a pure function of the step, so that a resumed run needs no state for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastrecord.train.config import Schedule, TrainConfig


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Linear scaling, gradual warm-up, then cosine or step decay.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017.

    Attributes:
        peak: Learning rate at the end of the warm-up.
        steps_per_epoch: Optimizer steps per epoch.
        epochs: Length of the run.
        warmup_epochs: Epochs of linear warm-up.
        schedule: The schedule after the warm-up.
        step_epochs: Epochs between two drops of the step schedule, counted from the start of the
            run; or the epochs of the drops.
        gamma: Factor of each drop.
    """

    peak: float
    steps_per_epoch: int
    epochs: int
    warmup_epochs: float
    schedule: Schedule
    step_epochs: int | Sequence[int]
    gamma: float

    @classmethod
    def from_config(cls, config: TrainConfig, *, global_batch_size: int, steps_per_epoch: int) -> LearningRate:
        """Scale `config.lr` from 256 images a step to `global_batch_size`."""
        return cls(
            peak=config.lr * global_batch_size / 256,
            steps_per_epoch=steps_per_epoch,
            epochs=config.epochs,
            warmup_epochs=config.warmup,
            schedule=config.schedule,
            step_epochs=config.lr_step_epochs,
            gamma=config.lr_gamma,
        )

    def __call__(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from 0 over the whole run."""
        warmup = round(self.warmup_epochs * self.steps_per_epoch)
        if step < warmup:
            return self.peak * (step + 1) / warmup
        if self.schedule == "step":
            return self.peak * self.gamma ** self._drops(step // self.steps_per_epoch)
        total = self.epochs * self.steps_per_epoch
        return self.peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))

    def _drops(self, epoch: int) -> int:
        if isinstance(self.step_epochs, int):
            return epoch // self.step_epochs
        return sum(epoch >= drop for drop in self.step_epochs)
