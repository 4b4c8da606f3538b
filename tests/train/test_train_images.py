"""What becomes of images in training and evaluation: their sizes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastrecord as fr
from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import read_metrics
from fastrecord.train.schedule import LearningRate
from tests.support.training import losses, small_config

pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)


def drawn(config: TrainConfig, *, training: bool = True, epochs: int = 1) -> list[list[Any]]:
    """Return the batches of the first epochs."""
    dataset = open_datasets(config)[0 if training else 1]
    assert dataset is not None
    batches = open_batches(dataset, config, ALONE, training=training)
    found = [list(batches.epoch(epoch)) for epoch in range(epochs)]
    batches.close()
    return found


# Sizes


def test_sizes_have_equal_parts_of_the_epochs() -> None:
    config = TrainConfig(train="x", epochs=9, image_size=[128, 160, 192, 192])
    assert [config.size_in(epoch) for epoch in range(9)] == [128] * 3 + [160] * 2 + [192] * 4
    assert config.evaluation == (192, 219)
    assert dataclasses.replace(config, image_size=224).evaluation == (224, 256)
    assert dataclasses.replace(config, image_size=176, eval_size=224, eval_resize=232).evaluation == (224, 232)
    assert dataclasses.replace(config, augment="none").evaluation == (192, 192)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": []}, r"image_size is \[\]: it must be at least 1, or a list of 1 to 90 sizes"),
        ({"image_size": 0}, "image_size is 0: it must be at least 1, or a list"),
        ({"image_size": [32, 0]}, r"image_size is \[32, 0\]: it must be at least 1"),
        ({"image_size": [32, 48], "epochs": 1}, "a list of 1 to 1 sizes, as many as there are epochs at most"),
        ({"image_size": [32, 48], "loader": "torch"}, "it must be one size with loader torch"),
        ({"eval_size": 0}, "eval_size is 0: it must be at least 1"),
        ({"eval_resize": 200}, "eval_resize is 200: it must be at least eval_size, which is 224"),
        ({"warmup_start": 1.5}, r"warmup_start is 1.5: it must be in \[0, 1\]"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(train="x", **options)


def test_images_grow_from_epoch_to_epoch_also_after_a_resume(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"val": str(held_out), "image_size": [32, 40, 48], "epochs": 3, "batch_size": 16}
    config = small_config(colours, tmp_path / "whole", **options, augment="imagenet")
    sizes = [{tuple(images.shape[1:]) for images, _ in epoch} for epoch in drawn(config, epochs=3)]
    assert sizes == [{(3, 32, 32)}, {(3, 40, 40)}, {(3, 48, 48)}]
    assert {tuple(images.shape[1:]) for images, _ in drawn(config, training=False)[0]} == {(3, 48, 48)}
    assert train(config).epoch == 3
    for steps in (7, 10, None):
        parts = dataclasses.replace(config, out=tmp_path / "parts", max_steps=steps, resume="auto")
        train(parts)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert TrainConfig.from_toml(tmp_path / "whole" / "config.toml").image_size == [32, 40, 48]


def test_evaluation_resizes_and_cuts_as_torchvision_does(held_out: Path, tmp_path: Path) -> None:
    config = small_config(held_out, tmp_path, val=str(held_out), eval_size=28, eval_resize=35, augment="imagenet")
    expected = v2.Compose([v2.Resize(35), v2.CenterCrop(28), v2.PILToTensor()])
    dataset = fr.FastRecordDataset(held_out)
    images = torch.stack([expected(dataset[record][0]) for record in range(len(dataset))])
    for loader in ("native", "torch"):
        (batches,) = drawn(dataclasses.replace(config, loader=loader), training=False)
        found = torch.cat([batch for batch, _ in batches])
        assert found.shape == (37, 3, 28, 28)
        assert np.abs(found.numpy().astype(int) - images.numpy().astype(int)).mean() <= 1.0


def test_a_model_that_does_not_take_all_sizes_is_refused_before_training(colours: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "alexnet", "image_size": [64, 16], "eval_size": 64}
    with pytest.raises(TrainError, match="alexnet does not take images of 16 x 16 pixels"):
        train(small_config(colours, tmp_path, **options))
    assert not read_metrics(tmp_path / "metrics.jsonl")


# The warm-up


def test_the_warm_up_begins_at_a_share_of_the_peak() -> None:
    config = TrainConfig(train="x", epochs=600, lr=0.125, warmup_epochs=5, warmup_start=0.01)
    rate = LearningRate(config, 1024, 100)
    assert rate.peak == 0.5
    assert [rate(step) for step in (0, 249, 499)] == pytest.approx([0.5 * (0.01 + 0.99 / 500), 0.2525, 0.5])
