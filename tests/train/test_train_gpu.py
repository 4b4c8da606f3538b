"""The trainer on a GPU: precisions, compilation, a resumed run, and NCCL."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastrecord.train import train
from fastrecord.train.meters import read_metrics
from tests.support.training import losses, read_rest, running, small_config

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE = "cuda"


@pytest.mark.parametrize("loader", ["native", "torch"])
@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_the_cpu_and_each_precision_find_nearly_the_same_losses(
    colours: Path, tmp_path: Path, amp: Any, loader: Any
) -> None:
    # Without learning: the weights of a small model soon differ after rounding.
    options: dict[str, Any] = {"max_steps": 4, "lr": 0.0, "loader": loader, "threads": 1, "channels_last": True}
    train(small_config(colours, tmp_path / "cpu", **options))
    train(small_config(colours, tmp_path / "gpu", **options, amp=amp, device=DEVICE))
    expected, found = (list(losses(tmp_path / name).values()) for name in ("cpu", "gpu"))
    assert len(found) == 4
    assert np.allclose(found, expected, rtol=0.15 if amp == "bf16" else 0.05)


@pytest.mark.slow
def test_a_compiled_model_trains(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "max_steps": 3, "amp": "bf16", "channels_last": True}
    config = small_config(colours, tmp_path, val=str(held_out), compile=True, device=DEVICE, **options)
    result = train(config)
    assert (result.step, result.val is not None and result.val.count) == (3, 37)
    assert np.isfinite(list(losses(tmp_path).values())).all()


def test_a_run_goes_on_from_its_checkpoint(colours: Path, tmp_path: Path) -> None:
    config = small_config(colours, tmp_path, epochs=1, amp="fp16", device=DEVICE, max_steps=4)
    train(config)
    result = train(dataclasses.replace(config, max_steps=None, resume="auto"))
    assert result.step == 10
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 11))


@pytest.mark.ddp
@pytest.mark.parametrize("ladder", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_exchange_over_nccl(colours: Path, held_out: Path, tmp_path: Path, ranks: int, ladder: bool) -> None:
    import torch

    if DEVICE == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"fewer than {ranks} GPUs")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "fastrecord.train")
    options = ["--model", "shufflenet_v2_x0_5", "--image-size", "32", "-b", "8", "-j", "1", "--device", DEVICE]
    options += ["--ladder", "--max-steps", "8"] if ladder else ["--val", str(held_out), "--epochs", "1"]
    with running(*launch, colours, *options, "--out", tmp_path / "out") as process:
        status, output = read_rest(process)
    assert status == 0, output
    assert (tmp_path / "out" / ("ladder.json" if ladder else "checkpoints/last.pt")).exists()
    if not ladder:
        (evaluated,) = (row for row in read_metrics(tmp_path / "out" / "metrics.jsonl") if row["event"] == "val")
        assert evaluated["count"] == 37
