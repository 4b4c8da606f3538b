"""Models of timm in the trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.__main__ import main
from fastrecord.train.model import build_classifier
from tests.support.training import assert_learnt, losses, small_config

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_model_of_timm_learns_and_goes_on(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "timm:test_resnet", "val": str(held_out), "epochs": 4, "lr": 1.0}
    whole = train(small_config(colours, tmp_path / "whole", **options))
    assert_learnt(whole)
    for steps in (7, None):
        train(small_config(colours, tmp_path / "parts", **options, max_steps=steps, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize("name", ["test_vit3", "test_convnext"])
def test_models_are_built_for_the_classes_and_the_size_of_the_images(name: str) -> None:
    model = build_classifier(f"timm:{name}", classes=7, image_size=64)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_names_and_sizes_that_timm_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainError, match=r"timm has no model named 'resnet55'; similar names are .*resnet50"):
        build_classifier("timm:resnet55", classes=7, image_size=64)
    with pytest.raises(TrainError, match="timm:test_vit3 does not take images of 96 x 96 pixels"):
        build_classifier("timm:test_vit3", classes=7, image_size=64, other_sizes=[96])
    with pytest.raises(TrainError, match=r"--zero-init-residual is for models .*, not for timm:resnet50"):
        build_classifier("timm:resnet50", classes=7, image_size=64, zero_init_residual=True)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(TrainError, match=r"timm:resnet50 needs the package timm: .*: `pip install timm`"):
        build_classifier("timm:resnet50", classes=7, image_size=64)


def test_without_timm_the_command_says_how_to_install_it(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    options = ["--model", "timm:resnet18", "--image-size", "32", "--out", str(tmp_path), "--threads", "1"]
    result = CliRunner().invoke(main, [str(colours), *options])
    assert result.exit_code == 1
    assert "Error: timm:resnet18 needs the package timm" in result.stderr
    assert TrainConfig(train="x", model="timm:resnet18").folder == Path("runs/timm-resnet18")
