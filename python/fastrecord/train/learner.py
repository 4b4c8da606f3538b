"""`Learner`: one optimizer step, with model, optimizer, precision and gradient exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastrecord.train.batches.base import Batch
from fastrecord.train.config import TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import TrainMeter
from fastrecord.train.model import parameter_groups
from fastrecord.transforms import Normalize

_AMP_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class InPrecision(nn.Module):
    """Runs a model under autocast of its own.

    DataParallel's threads do not inherit the type of the caller's autocast: bf16 would become fp16.

    Args:
        module: The model.
        device: Type of its device.
        dtype: Type of the computation; None: no autocast.
    """

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.module = module
        self._device, self._dtype = device, dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the model's output."""
        with torch.autocast(self._device, dtype=self._dtype, enabled=self._dtype is not None):
            output: torch.Tensor = self.module(images)
        return output


class Learner:
    """A model under SGD, the same on every rank.

    Args:
        module: Maps float32 (B, 3, S, S) to logits (B, classes).
        config: Optimizer, precision, compilation.
        ranks: The processes that average their gradients.

    Attributes:
        module: The model without the wrappers of DDP, DataParallel and torch.compile; it shares its
            parameters with them.
        gpus: The GPUs among which DataParallel divides each batch; empty without it.
    """

    def __init__(self, module: nn.Module, config: TrainConfig, ranks: Ranks) -> None:
        self._device = ranks.device
        self._memory_format = torch.channels_last if config.channels_last else torch.contiguous_format
        self.module = module.to(ranks.device).to(memory_format=self._memory_format)
        self._normalize = Normalize().to(ranks.device)
        self._ddp: DistributedDataParallel | None = None
        self._model: Any = self.module
        self._amp = _AMP_TYPES.get(config.amp)
        self.gpus = list(range(torch.cuda.device_count())) if config.parallel == "dp" else []
        if self.gpus:
            # On one GPU too, to measure what the wrapper costs.
            self._model = nn.DataParallel(InPrecision(self.module, ranks.device.type, self._amp), self.gpus)
        if ranks.world_size > 1:
            self._ddp = self._model = DistributedDataParallel(
                self.module, device_ids=[ranks.device] if ranks.device.type == "cuda" else None
            )
        if config.compile:
            # Outside DDP, so that the graph is split where gradients are exchanged.
            self._model = torch.compile(self._model)
        self.optimizer = torch.optim.SGD(
            parameter_groups(self.module, weight_decay=config.weight_decay, decay_norm_bias=config.decay_norm_bias),
            lr=config.lr,
            momentum=config.momentum,
        )
        self._scaler = torch.amp.GradScaler(ranks.device.type, enabled=config.amp == "fp16")
        self._loss = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)

    def step(self, batches: Sequence[Batch], *, learning_rate: float, meter: TrainMeter) -> None:
        """Take one optimizer step over batches, as if all ranks' batches were one.

        Args:
            batches: One for each pass; of equal size, or nearly so if records were skipped.
            learning_rate: Learning rate of this step.
            meter: Counts the batches and the step.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        total = sum(len(labels) for _, labels in batches)
        for left, (images, labels) in zip(reversed(range(len(batches))), batches, strict=True):
            # Only the last pass of a step exchanges gradients.
            with nullcontext() if self._ddp is None or not left else self._ddp.no_sync():
                self._backward(images, labels, meter, share=len(labels) / total)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        meter.add_step()

    def _backward(self, images: torch.Tensor, labels: torch.Tensor, meter: TrainMeter, *, share: float) -> None:
        labels = self._move(labels)
        with self._autocast():
            logits = self._model(self._prepare(images))
            loss = self._loss(logits, labels)
        self._scaler.scale(loss * share).backward()
        with torch.no_grad():
            meter.add_batch(loss.detach(), logits.detach(), labels)

    def predict(self, images: torch.Tensor, module: nn.Module | None = None) -> torch.Tensor:
        """Return this rank's float32 logits (B, classes).

        Args:
            images: (B, 3, S, S) on any device: uint8, or normalised floats.
            module: A model with other weights; None: the learner's.
        """
        if module is None:
            # Not DDP, which would exchange buffers: ranks may evaluate different numbers of batches.
            module = self._model if self.gpus else self.module
        with torch.no_grad(), self._autocast():
            logits: torch.Tensor = module(self._prepare(images))
        return logits.float()

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        moved = self._move(images).contiguous(memory_format=self._memory_format)
        prepared: torch.Tensor = self._normalize(moved) if moved.dtype == torch.uint8 else moved
        return prepared

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        # torch keeps pinned memory until the copy is done; other memory may be reused before.
        return tensor.to(self._device, non_blocking=tensor.is_pinned())

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=self._amp, enabled=self._amp is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of model, optimizer and gradient scaler."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a return value of `state_dict`; keep this run's momentum and weight decay.

        Raises:
            ValueError: the state is of another model, or of an optimizer with other parameter
                groups.
        """
        ours = [{name: group[name] for name in group.keys() - {"params"}} for group in self.optimizer.param_groups]
        try:
            self.module.load_state_dict(state["model"])
        except RuntimeError as error:
            first = next(filter(None, map(str.strip, str(error).splitlines()[1:])), str(error))
            raise ValueError(f"its weights do not fit the model: {first:.200}") from error
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except ValueError as error:
            raise ValueError(
                "its optimizer has other groups of parameters: was it made with or without --no-decay-norm-bias?"
            ) from error
        for group, options in zip(self.optimizer.param_groups, ours, strict=True):
            group.update(options)
        if state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
