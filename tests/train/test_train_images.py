"""What becomes of images in training and evaluation: their sizes, augmentation and order."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torchvision.transforms import v2

import fastrecord as fr
import fastrecord.transforms as T  # noqa: N812 - as torchvision's users write
from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.__main__ import main
from fastrecord.train.batches.native import make_mixing, make_sample
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.distributed import Ranks
from fastrecord.train.learner import Learner
from fastrecord.train.meters import TrainMeter, correct_guesses, read_metrics
from fastrecord.train.schedule import LearningRate
from fastrecord.transforms import Normalize
from tests.support.training import losses, numbers_of, small_config, write_numbered

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


def test_sizes_on_the_command_line_are_pixels(tmp_path: Path) -> None:
    shown = " ".join(CliRunner().invoke(main, ["--help"]).stdout.split())
    assert "--eval-size N Height and width of the images in evaluation" in shown
    for size, message in (("1GiB", "'1GiB' is not a whole number"), ("224x224", "'224x224' is not a whole number")):
        assert message in CliRunner().invoke(main, ["a", "--eval-size", size]).stderr
    command = ["a", "--image-size", "96,48", "--eval-size", "64", "--epochs", "1", "--warmup-epochs", "0"]
    assert "--image-size is [96, 48]: it must be" in CliRunner().invoke(main, command).stderr
    (tmp_path / "a.toml").write_text("image-size = [96, 48]\neval-size = 64\n")
    config = TrainConfig.from_toml(tmp_path / "a.toml", train="x")
    assert (config.sizes, config.evaluation) == ((96, 48), (64, 73))


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


# Augmentation


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"augment": "trivialaugment"}, [T.TrivialAugmentWide(interpolation="bilinear")]),
        ({"augment": "randaugment"}, [T.RandAugment(interpolation="bilinear")]),
        ({"random_erasing": 0.1}, [T.ToFloat("float32", layout="nchw"), T.RandomErasing(0.1)]),
        (
            {"random_erasing": 0.1, "amp": "bf16", "channels_last": True, "augment": "trivialaugment"},
            [T.TrivialAugmentWide(interpolation="bilinear"), T.ToFloat("bfloat16"), T.RandomErasing(0.1)],
        ),
    ],
)
def test_the_steps_of_training_are_those_of_torchvisions_trainer(options: dict[str, Any], more: list[Any]) -> None:
    config = TrainConfig(train="x", **options)
    crop = [T.RandomResizedCrop(48), T.RandomHorizontalFlip()]
    assert make_sample(config, 48, training=True) == [*crop, *more]
    assert make_sample(config, 48, training=False) == [T.Resize(256), T.CenterCrop(224)]


@pytest.mark.parametrize("augment", ["trivialaugment", "randaugment"])
def test_both_loaders_change_the_colours_of_images(augment: Any, colours: Path, tmp_path: Path) -> None:
    for loader in ("native", "torch"):
        config = small_config(colours, tmp_path, augment=augment, loader=loader, batch_size=76)
        ((images, _),) = drawn(config)[0]
        ((plain, _),) = drawn(dataclasses.replace(config, augment="imagenet"))[0]
        assert images.dtype == torch.uint8
        # The mean colour of each image shows the class in plain crops.
        difference = (images.float() - plain.float()).mean((2, 3)).abs().amax(1)
        assert (difference > 40).float().mean() > 0.2


def test_a_rectangle_of_some_images_gets_the_mean_colour(colours: Path, tmp_path: Path) -> None:
    config = small_config(colours, tmp_path, random_erasing=0.5, batch_size=76)
    ((images, _),) = drawn(config)[0]
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    erased = (images == 0).all(1).flatten(1).any(1)
    assert 20 <= erased.sum() <= 56
    ((plain, _),) = drawn(dataclasses.replace(config, random_erasing=0.0))[0]
    torch.testing.assert_close(images[~erased], Normalize()(plain)[~erased], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "autoaugment"}, "augment is 'autoaugment': it must be one of imagenet, trivialaugment, randaug"),
        ({"random_erasing": 1.5}, r"random_erasing is 1.5: it must be in \[0, 1\]"),
        ({"random_erasing": 0.1, "loader": "torch"}, "random_erasing is 0.1: it must be 0 with loader torch"),
        ({"mixup": -0.1}, "mixup is -0.1: it must be at least 0 and finite"),
        ({"cutmix": math.inf}, "cutmix is inf: it must be at least 0 and finite"),
        ({"mixup": 0.2, "loader": "torch"}, "mixup is 0.2: it must be 0 with loader torch: only the native loader mix"),
        ({"repeated_augmentation": 0}, "repeated_augmentation is 0: it must be at least 1"),
        (
            {"repeated_augmentation": 2, "shuffle": "blocks"},
            "repeated_augmentation is 2: it must be 1 with shuffle",
        ),
    ],
)
def test_augmentation_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(train="x", **options)


# Mixing


@pytest.mark.parametrize(("accumulate", "mixup"), [(1, 0.8), (2, 0.8), (1, 0.0)])
def test_training_images_are_mixed_in_pairs_with_their_labels(
    accumulate: int, mixup: float, colours: Path, held_out: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"mixup": mixup, "cutmix": 1.0, "val": str(held_out), "accumulate": accumulate}
    config = small_config(colours, tmp_path, batch_size=10, **options)
    batches = drawn(config)[0]
    plain = drawn(dataclasses.replace(config, mixup=0.0, cutmix=0.0))[0]
    kinds = set()
    for (images, labels), (_, classes) in zip(batches, plain, strict=True):
        assert (images.dtype, labels.dtype, labels.shape) == (torch.float32, torch.float32, (10, 4))
        torch.testing.assert_close(labels.sum(1), torch.ones(10))
        assert (labels.gather(1, classes[:, None]) > 0).any()
        kinds.add(int((labels > 0).sum(1).max()))
    assert kinds == {2}
    for images, labels in drawn(config, training=False)[0]:
        assert (images.dtype, labels.dtype, labels.ndim) == (torch.uint8, torch.int64, 1)


def test_each_batch_gets_one_of_the_two() -> None:
    config = TrainConfig(train="x", mixup=0.2, cutmix=1.0)
    assert make_mixing(config, 7) == [T.MixUp(0.2, num_classes=7), T.CutMix(1.0, num_classes=7)]
    assert make_mixing(dataclasses.replace(config, mixup=0.0), 7) == [T.CutMix(1.0, num_classes=7)]
    assert make_mixing(TrainConfig(train="x"), 7) is None


def test_a_guess_of_the_class_with_the_larger_share_counts() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 1.0]])
    labels = torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.0, 0.8], [0.0, 0.0, 1.0]])
    assert int(correct_guesses(logits, labels)[0]) == 2


def test_the_loss_of_mixed_labels_is_the_mean_over_their_shares(tmp_path: Path) -> None:
    config = small_config(tmp_path, tmp_path, label_smoothing=0.1)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 5))
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8)
    first, second = torch.randint(0, 5, (6,)), torch.randint(0, 5, (6,))
    share = 0.3

    def loss(labels: torch.Tensor) -> float:
        learner, meter = Learner(module, config, ALONE), TrainMeter(ALONE)
        learner.step([(images, labels)], learning_rate=0.0, meter=meter)
        meter.collect()
        return meter.epoch.loss

    mixed = share * torch.nn.functional.one_hot(first, 5) + (1 - share) * torch.nn.functional.one_hot(second, 5)
    assert loss(mixed) == pytest.approx(share * loss(first) + (1 - share) * loss(second), rel=1e-5)


# Repeated augmentation


def test_records_come_several_times_in_a_row_and_steps_stay_as_many(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "train.frec", 300)
    config = small_config(path, tmp_path, image_size=8, batch_size=16, accumulate=2)
    plain = [numbers_of(images) for images, _ in drawn(config)[0]]
    for loader in ("native", "torch"):
        repeated = dataclasses.replace(config, repeated_augmentation=4, loader=loader, val=str(path))
        found = [numbers_of(images) for images, _ in drawn(repeated)[0]]
        assert len(found) == len(plain) == 20
        first = [number for batch in plain for number in batch][:75]
        assert [number for batch in found for number in batch][:300] == [number for number in first for _ in range(4)]
        evaluated = [number for images, _ in drawn(repeated, training=False)[0] for number in numbers_of(images)]
        assert evaluated == list(range(300))


def test_a_run_with_all_of_it_goes_on_in_mid_epoch_bit_for_bit(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "val": str(held_out),
        "augment": "trivialaugment",
        "random_erasing": 0.3,
        "mixup": 0.2,
        "cutmix": 1.0,
        "label_smoothing": 0.1,
        "repeated_augmentation": 4,
        "image_size": [32, 40],
        "ema_decay": 0.97,
        "ema_steps": 2,
    }
    whole = train(small_config(colours, tmp_path / "whole", **options))
    for steps in (3, 13, None):
        parts = train(small_config(colours, tmp_path / "parts", **options, max_steps=steps, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert (parts.val, parts.ema) == (whole.val, whole.ema)
    options["repeated_augmentation"] = 2
    with pytest.raises(TrainError, match="was made with repeated_augmentation 4, not 2: it cannot be resumed so"):
        train(small_config(colours, tmp_path / "parts", **options, resume="auto"))


# The warm-up


def test_the_warm_up_begins_at_a_share_of_the_peak() -> None:
    config = TrainConfig(train="x", epochs=600, lr=0.125, warmup_epochs=5, warmup_start=0.01)
    rate = LearningRate(config, 1024, 100)
    assert rate.peak == 0.5
    assert [rate(step) for step in (0, 249, 499)] == pytest.approx([0.5 * (0.01 + 0.99 / 500), 0.2525, 0.5])
