"""All GPUs in one process, and where that is refused."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import get_args

import pytest
import torch

from fastrecord.train import TrainError, run_ladder, train
from fastrecord.train.config import Parallel
from fastrecord.train.learner import InPrecision
from tests.support.training import losses, small_config


@pytest.mark.parametrize("start", [train, run_ladder])
def test_it_is_refused_on_the_cpu_and_in_several_processes(
    start: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(start)
    config = small_config(tmp_path / "none.frec", tmp_path / "out", parallel="dp")
    with pytest.raises(TrainError, match="--parallel dp divides batches among GPUs, and this run has none: use --par"):
        start(config)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(TrainError, match="is for one process that has all GPUs, and here are 2: start it without torc"):
        start(config)


def test_torch_compile_is_refused_with_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compile is True: it must be False with parallel dp"):
        small_config(tmp_path, tmp_path, parallel="dp", compile=True)


def test_its_threads_compute_in_the_type_of_the_run() -> None:
    model, found = InPrecision(torch.nn.Linear(4, 2), "cpu", torch.bfloat16), []
    thread = threading.Thread(target=lambda: found.append(model(torch.ones(1, 4)).dtype))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]


@pytest.mark.gpu
def test_its_checkpoints_and_those_of_one_gpu_continue_each_other(colours: Path, tmp_path: Path) -> None:
    config = small_config(colours, tmp_path / "whole", device="cuda", val=str(colours), amp="bf16")
    assert train(config).step == 20
    for parallel, steps in zip((*get_args(Parallel), "ddp"), (4, 12, None), strict=True):
        parts = dataclasses.replace(config, out=tmp_path / "parts", parallel=parallel, max_steps=steps, resume="auto")
        assert train(parts).step == (steps or 20)
    found, expected = losses(tmp_path / "parts"), losses(tmp_path / "whole")
    assert found == pytest.approx(expected, rel=0.1)
    state = torch.load(tmp_path / "parts" / "checkpoints" / "last.pt", weights_only=True)["model"]
    assert not [name for name in state if name.startswith("module.")]
    ladder = run_ladder(dataclasses.replace(config, out=tmp_path / "ladder", val=None, max_steps=4, parallel="dp"))
    assert ladder is not None
