"""The exponential moving average of the weights: what it is, and that a run keeps it."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from fastrecord.train import TrainConfig, train
from fastrecord.train.average import Average
from fastrecord.train.checkpoint import load_checkpoint
from fastrecord.train.meters import read_metrics
from tests.support.training import losses, small_config

pytestmark = pytest.mark.usefixtures("one_thread")

# Ten steps of eight images; with this decay the average keeps 0.76 of itself.
AVERAGED: dict[str, Any] = {"ema_decay": 0.97, "ema_steps": 2, "warmup_epochs": 0.4}


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in module.state_dict().values() if value.is_floating_point()])


def test_the_decay_is_that_of_torchvisions_trainer() -> None:
    # Of 600 epochs with 1,024 images a step: alpha = 2e-5 * 1024 * 32 / 600.
    config = TrainConfig(train="x", epochs=600, ema_decay=0.99998)
    average = Average(nn.Linear(2, 2), config, global_batch_size=1024, warmup_steps=0)
    assert average.decay == pytest.approx(1 - 0.0010922667)
    config = dataclasses.replace(config, epochs=1)
    assert Average(nn.Linear(2, 2), config, global_batch_size=4096, warmup_steps=0).decay == 0


def test_it_moves_at_its_steps_and_copies_weights_and_buffers_until_the_warm_up_ends() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    config = TrainConfig(train="x", epochs=8, ema_decay=0.97, ema_steps=2)
    average = Average(model, config, global_batch_size=32, warmup_steps=4)
    assert average.decay == pytest.approx(0.76)
    expected = weights(model)
    for step in range(1, 11):
        model(torch.randn(4, 3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.follow(model, step)
        if step % 2 == 0:
            now = weights(model)
            expected = now if step <= 4 else expected.lerp(now, 0.24)
            torch.testing.assert_close(weights(average.module), expected)
    assert not average.module.training
    assert model.training


@pytest.mark.parametrize("name", ["ema_decay", "ema_steps"])
def test_a_decay_or_steps_out_of_range_are_refused(name: str) -> None:
    for value in (1.0, -0.1) if name == "ema_decay" else (0,):
        with pytest.raises(ValueError, match=f"{name} is {value}: it must be "):
            TrainConfig(train="x", **cast("dict[str, Any]", {name: value}))


def test_a_run_evaluates_its_average_beside_the_model_and_keeps_the_best_one(
    colours: Path, held_out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    result = train(small_config(colours, tmp_path, val=str(held_out), **AVERAGED))
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["event"] == "val"]
    assert len(rows) == 2
    assert result.val is not None
    assert result.ema is not None
    assert result.ema_module is not None
    assert (rows[1]["loss"], rows[1]["ema_loss"]) == (result.val.loss, result.ema.loss)
    assert rows[1]["loss"] != rows[1]["ema_loss"]
    assert result.best_error1 == min(row["ema_error1"] for row in rows)
    assert caplog.text.count("Ema:   [") == 2
    last = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    copied = copy.deepcopy(result.module)
    copied.load_state_dict(last["ema"])
    assert torch.equal(weights(copied), weights(result.ema_module))
    assert not torch.equal(weights(copied), weights(result.module))


def test_a_resumed_run_has_the_same_average_bit_for_bit(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"val": str(held_out), "augment": "imagenet", **AVERAGED}
    whole = train(small_config(colours, tmp_path / "whole", **options))
    # In the warm-up, between two moves, and at the end of an epoch.
    for steps in (3, 7, 10, 15, None):
        parts = train(small_config(colours, tmp_path / "parts", **options, max_steps=steps, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert whole.ema_module is not None
    assert parts.ema_module is not None
    assert torch.equal(weights(parts.ema_module), weights(whole.ema_module))
    assert parts.ema == whole.ema


def test_a_run_without_an_average_begins_one_when_it_is_resumed(colours: Path, tmp_path: Path) -> None:
    train(small_config(colours, tmp_path, max_steps=6))
    before = load_checkpoint(tmp_path / "checkpoints" / "last.pt")
    assert "ema" not in before
    result = train(small_config(colours, tmp_path, max_steps=7, resume="auto", **AVERAGED))
    assert result.ema_module is not None
    for name, value in result.ema_module.state_dict().items():
        assert torch.equal(value, before["model"][name])
