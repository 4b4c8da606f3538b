"""`LearningRate`: a pure function of the step, so that a resumed run needs no state for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastrecord.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Linear scaling, gradual warm-up, then cosine or step decay.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017.

    Attributes:
        config: Peak for 256 images a step, epochs, warm-up, schedule and drops.
        global_batch_size: Images of a step.
        steps_per_epoch: Optimizer steps per epoch.
    """

    config: TrainConfig
    global_batch_size: int
    steps_per_epoch: int

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up."""
        return self.config.lr * self.global_batch_size / 256

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps of the warm-up."""
        return round(self.config.warmup * self.steps_per_epoch)

    def __call__(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from 0 over the whole run."""
        config, warmup = self.config, self.warmup_steps
        if step < warmup:
            start = self.config.warmup_start
            return self.peak * (start + (1 - start) * (step + 1) / warmup)
        if config.schedule == "cosine":
            total = config.epochs * self.steps_per_epoch
            return self.peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        epoch, drops = step // self.steps_per_epoch, config.lr_step_epochs
        fallen = epoch // drops if isinstance(drops, int) else sum(epoch >= drop for drop in drops)
        return self.peak * config.lr_gamma**fallen
