"""`Average`: the exponential moving average of a model's weights, as torchvision's recipes take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fastrecord.train.config import TrainConfig


class Average:
    """An average of the weights and buffers of a model. During the warm-up it is a copy of the model.

    It moves every `config.ema_steps` optimizer steps, so that the weights of old steps count less and
    less. It is a pure function of the weights at these steps, the same on every rank.

    Args:
        model: The model, on its device.
        config: Decay and steps.
        global_batch_size: Images of a step.
        warmup_steps: Optimizer steps of the warm-up.

    Attributes:
        module: The averaged model, in evaluation mode.
        decay: What the average keeps when it moves: `1 - min(1, (1 - ema_decay) * global batch *
            ema_steps / epochs)`. So the average covers the same share of a run of any batch size.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, *, global_batch_size: int, warmup_steps: int) -> None:
        self.decay = 1 - min(1.0, (1 - config.ema_decay) * global_batch_size * config.ema_steps / config.epochs)
        self._every, self._warmup_steps = config.ema_steps, warmup_steps
        moved = get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]
        self._averaged = AveragedModel(model, multi_avg_fn=moved, use_buffers=True).eval()

    @property
    def module(self) -> nn.Module:
        """See the class."""
        module: nn.Module = self._averaged.module
        return module

    def follow(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights of a model after `step` steps of the run, if it is due."""
        if step % self._every:
            return
        # torch copies the weights at what it takes for the first update.
        self._averaged.n_averaged.fill_(int(step > self._warmup_steps))
        self._averaged.update_parameters(model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state dict of `module`."""
        self.module.load_state_dict(state)
