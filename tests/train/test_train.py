"""The trainer on one process: refusals, results and outputs."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import fastrecord as fr
from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.batches.open import check_classes, open_batches, open_datasets
from fastrecord.train.checkpoint import load_checkpoint, save_checkpoint
from fastrecord.train.distributed import Ranks
from fastrecord.train.engine import evaluate
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.learner import Learner
from fastrecord.train.meters import MetricsFile, TrainMeter, correct_guesses, read_metrics
from fastrecord.train.model import build_classifier, classifier_names, has_batch_norm, parameter_groups
from fastrecord.train.plot import plot_metrics
from fastrecord.train.schedule import LearningRate
from tests.support.training import (
    CLASSES,
    assert_learnt,
    losses,
    small_config,
    write_colours,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)


# The schedule


def test_the_learning_rate_grows_with_the_global_batch_and_the_warm_up_with_the_run() -> None:
    config = TrainConfig(train="x", epochs=90)
    for size, peak in ((256, 0.1), (8192, 3.2)):
        made = LearningRate(config, size, 10)
        assert made.peak == pytest.approx(peak)
    assert config.warmup == 5
    assert TrainConfig(train="x", epochs=6).warmup == pytest.approx(0.6)
    assert TrainConfig(train="x", epochs=6, warmup_epochs=0).warmup == 0


COSINE = {0: 3.2 / 500, 249: 1.6, 499: 3.2, 500: 3.2, 4750: 1.6, 2625: 3.2 * (1 + math.sqrt(0.5)) / 2, 8999: 0}
STEPS = {0: 0.1, 2999: 0.1, 3000: 0.01, 5999: 0.01, 6000: 0.001}


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (LearningRate(TrainConfig(train="x"), 8192, 100), COSINE),
        (LearningRate(TrainConfig(train="x", schedule="step", warmup_epochs=0), 256, 100), STEPS),
    ],
)
def test_a_schedule_warms_up_and_falls(rate: LearningRate, expected: dict[int, float]) -> None:
    for step, value in expected.items():
        assert rate(step) == pytest.approx(value, abs=1e-6)
    assert rate(8999) > 0


# Refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("accumulate", -1),
        ("label_smoothing", 1.0),
        ("lr", -0.1),
        ("lr", math.nan),
        ("momentum", math.inf),
        ("weight_decay", -1.0),
        ("lr_gamma", math.nan),
        ("warmup_epochs", 91),
        ("max_steps", 0),
        ("checkpoint_every", -1),
        ("amp", "fp8"),
        ("schedule", "linear"),
        ("seed", -1),
        ("threads", 0),
        ("max_skipped", 1.5),
        ("max_skipped", -1),
        ("on_error", "ignore"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {re.escape(repr(value))}: it must be "):
        TrainConfig(**{"train": "x", name: value})


@pytest.mark.parametrize(
    ("name", "value", "only"),
    [("on_error", "skip", "raise"), ("decoder", "native", "auto"), ("sixteen_bit", "clip", "reject")],
)
def test_options_of_the_native_loader_are_refused_with_the_torch_loader(name: str, value: Any, only: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is '{value}': it must be '{only}' with loader torch"):
        TrainConfig(**{"train": "x", "loader": "torch", name: value})


def test_a_model_that_cannot_be_built_as_asked_is_refused() -> None:
    for name, size, message in (
        ("resnet55", 224, r"'resnet55'; similar names are .*resnet50"),
        ("alexnet", 16, "alexnet does not take images of 16 x 16 pixels"),
    ):
        with pytest.raises(TrainError, match=message):
            build_classifier(name, classes=10, image_size=size)
    with pytest.raises(TrainError, match=r"--zero-init-residual is for .*resnet, .*not for squeezenet1_1"):
        build_classifier("squeezenet1_1", classes=4, image_size=32, zero_init_residual=True)


@pytest.mark.parametrize(("zero", "ends"), [(True, 0.0), (False, 1.0)])
def test_residual_blocks_begin_as_the_identity_on_request(zero: bool, ends: float) -> None:
    model = build_classifier("resnet18", classes=4, image_size=32, zero_init_residual=zero)
    scales = [module.weight for name, module in model.named_modules() if name.endswith("bn2")]
    assert [float(scale.detach().mean()) for scale in scales] == [ends] * 8


FAMILIES = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_of_each_family_gives_logits_for_its_classes(name: str) -> None:
    # The meta device computes only shapes. RegNet draws its weights in a way that needs memory.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        model = build_classifier(name, classes=7, image_size=224).train()
    assert model.to("meta")(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 7)


def test_each_classifier_is_of_a_family_that_is_tested() -> None:
    prefixes = tuple({re.split(r"\d|_", name)[0] for name in FAMILIES})
    assert [name for name in classifier_names() if not name.startswith(prefixes)] == []


def test_differing_classes_are_refused_naming_missing_and_extra_ones() -> None:
    with pytest.raises(
        TrainError, match=r"b\.frec does not have 'owl'; only b\.frec has 'asp', 'bee'\. .*--classes-from"
    ):
        check_classes(["cat", "owl"], ["bee", "cat", "asp"], train="a.frec", val="b.frec")
    with pytest.raises(TrainError, match=r"'00', .*'04' and 95 more"):
        check_classes([f"{i:02}" for i in range(100)], [], train="a.frec", val="b.frec")
    check_classes(["cat", "owl"], ["owl", "cat"], train="a.frec", val="b.frec")


def write_labels(path: Path, labels: Sequence[Any], kind: fr.FieldType | None = None, **metadata: Any) -> Path:
    """Write images with labels, like a custom loop."""
    with fr.Writer(path, {"image": fr.image(), "label": kind or fr.FieldType("int64")}, metadata=metadata) as writer:
        for number, label in enumerate(labels):
            pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8).tobytes()
            writer.append({"image": b"P6\n8 8\n255\n" + pixels, "label": label})
    return path


def test_classes_are_matched_by_name(colours: Path, tmp_path: Path) -> None:
    val = write_colours(tmp_path / "val.frec", 8, seed=1, classes=CLASSES[::-1])
    _, val_set = open_datasets(small_config(colours, tmp_path, val=str(val)))
    assert val_set is not None
    assert [val_set[record][1] for record in range(8)] == val_set.targets.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    # Labels that are names may lack some of the classes in the evaluation file.
    train_file = write_labels(tmp_path / "names.frec", ["ant", "bee", "cat"], fr.string())
    two = write_labels(tmp_path / "two.frec", ["cat", "bee"], fr.string())
    _, val_set = open_datasets(small_config(train_file, tmp_path, val=str(two)))
    assert val_set is not None
    assert (val_set.classes, val_set.targets.tolist()) == (["ant", "bee", "cat"], [2, 1])


def test_a_file_that_names_no_classes_trains_on_the_numbers_of_its_labels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    path = write_labels(tmp_path / "loop.frec", [0, 2, 6, 2])
    # A training class may be missing in evaluation.
    val = write_labels(tmp_path / "val.frec", [0, 1, 5])
    options: dict[str, Any] = {"val": str(val), "epochs": 1, "batch_size": 2}
    result = train(small_config(path, tmp_path / "out", **options, max_steps=1))
    assert [*result.module.parameters()][-1].shape == (7,)
    assert result.val is not None
    assert result.val.count == 3
    assert (
        f"{path} names no classes: 7 are taken from its labels, 0 to 6; "
        "fr.files.set_metadata(path, classes=[...]) names them" in caplog.messages
    )
    assert train(small_config(path, tmp_path / "out", **options, resume="auto")).step == 2


def test_a_run_continues_after_its_classes_got_names(colours: Path, tmp_path: Path) -> None:
    train(small_config(colours, tmp_path, epochs=1, max_steps=1))
    last = tmp_path / "checkpoints" / "last.pt"
    state = load_checkpoint(last)
    assert state["classes"] == list(CLASSES)
    save_checkpoint({**state, "classes": [str(label) for label in range(len(CLASSES))]}, last)
    assert train(small_config(colours, tmp_path, epochs=1, max_steps=2, resume="auto")).step == 2


def test_labels_that_do_not_fit_the_classes_are_refused(colours: Path, tmp_path: Path) -> None:
    def write(name: str, labels: Sequence[Any], kind: fr.FieldType | None = None, **metadata: Any) -> Path:
        return write_labels(tmp_path / f"{name}.frec", labels, kind, **metadata)

    two, names = write("two", [0, 1]), write("names", ["ant", "bee"], fr.string())
    cases: list[tuple[str, Path, Path | None, str]] = [
        ("FR420", write("large", [0, 2_000_000_000]), None, "names no classes, and has the label 2000000000 in 2 rec"),
        ("FR424", write("minus", [0, -1]), None, "record 1 has label -1, but the 1 classes"),
        (
            "FR424",
            write("floats", [0, 1], fr.FieldType("float64")),
            None,
            r"floats\.frec: its labels are float64, not numbers",
        ),
        ("FR424", write("bad", [0, 2, -1], classes=["a", "b"]), None, r"record 1 has label 2, .* 2 record\(s\) in all"),
        ("FR424", two, write("four", [0, 3]), r"four\.frec: record 1 has label 3, but the 2 classes"),
        # The mapping between their class numbers is unknown.
        ("FR420", colours, two, f"{colours} names classes and {two} does not: "),
        ("FR420", two, colours, f"{colours} names classes and {two} does not: "),
        ("", names, write("owl", ["bee", "owl"], fr.string()), r"only .*owl\.frec has 'owl'"),
        ("", names, write("listed", ["bee"], fr.string(), classes=["bee"]), "have 'ant'"),
    ]
    for code, train_file, val, message in cases:
        with pytest.raises(TrainError, match=message + (rf".* \[{code}\]$" if code else "")):
            train(small_config(train_file, tmp_path / "out", val=str(val) if val else None))
    assert not (tmp_path / "out").exists()


def test_a_file_without_labels_or_images_is_refused_with_the_field_that_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "bare.frec"
    with fr.Writer(path, fr.Schema({"image": fr.image()})) as writer:
        writer.append({"image": b"P6\n1 1\n255\nabc"})
    with pytest.raises(TrainError, match=r"bare\.frec has no field 'label', which holds the numbers of the classes$"):
        train(small_config(path, tmp_path / "out"))
    arrays = tmp_path / "arrays.frec"
    with fr.Writer(arrays, {"x": fr.array("float32", (3,)), "label": "int64"}) as writer:
        writer.append({"x": np.zeros(3, np.float32), "label": 0})
    with pytest.raises(TrainError, match=r"arrays\.frec has no field of images$"):
        train(small_config(arrays, tmp_path / "out"))


def test_one_image_a_batch_is_refused_for_models_with_batch_normalisation(colours: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="--batch-size 1"):
        train(small_config(colours, tmp_path, batch_size=1))
    assert not has_batch_norm(build_classifier("squeezenet1_1", classes=4, image_size=32))


def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_no_checkpoint(colours: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrainError, match=r"no longer finite at epoch 0, step \d+ .* try a lower --lr .* no checkpoint is written yet"
    ):
        train(small_config(colours, tmp_path, lr=1e30, warmup_epochs=0))
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_folder_that_holds_a_run_is_replaced_only_on_request(colours: Path, tmp_path: Path) -> None:
    train(small_config(colours, tmp_path, max_steps=2))
    with pytest.raises(TrainError, match=r"already holds a run .*--resume auto.*--overwrite"):
        train(small_config(colours, tmp_path, max_steps=1))
    assert len(losses(tmp_path)) == 2
    train(small_config(colours, tmp_path, max_steps=1, overwrite=True))
    assert len(losses(tmp_path)) == 1


# Results


@pytest.mark.usefixtures("plot")
def test_training_learns_and_writes_log_metrics_checkpoints_and_plot(
    colours: Path, held_out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    options = {"val": str(held_out), "epochs": 8, "batch_size": 16, "lr": 0.2, "label_smoothing": 0.05, "print_freq": 3}
    result = train(small_config(colours, tmp_path, **options))
    assert (result.epoch, result.step, result.signal) == (8, 40, 0)
    assert result.val is not None
    assert result.val.count == 37
    assert_learnt(result)
    assert result.best_error1 is not None
    assert result.best_error1 <= result.val.error1

    number = r"\d+\.\d+"
    line = (
        rf"Epoch: \[0\]\[3/5\]  Time {number}  Data {number} images/s \({number}% wait\)  Loss {number} \({number}\)  "
    )
    assert re.search(line + rf"Error@1 {number} \({number}\)  Error@5 {number} \({number}\)  LR 0", caplog.text)
    assert f"Accuracy {100 - result.val.error1:.2f} % ({result.val.correct1} of 37)" in caplog.text

    rows = read_metrics(tmp_path / "metrics.jsonl")
    trained = [row for row in rows if row["event"] == "train"]
    assert [(row["epoch"], row["step"]) for row in trained[:4]] == [(0, 3), (0, 5), (1, 8), (1, 10)]
    assert all(row["images_per_second"] > 0 and 0 <= row["data_wait"] <= 1 for row in trained)
    evaluated = [row for row in rows if row["event"] == "val"]
    assert [row["step"] for row in evaluated] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert evaluated[-1]["correct1"] == result.val.correct1
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["best.pt", "last.pt"]
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("loader", ["native", "torch"])
def test_evaluation_counts_what_one_pass_over_all_images_counts(loader: str, held_out: Path, tmp_path: Path) -> None:
    config = small_config(held_out, tmp_path, batch_size=10, loader=loader)
    dataset, _ = open_datasets(config)
    torch.manual_seed(0)
    learner = Learner(build_classifier("squeezenet1_1", classes=4, image_size=32), config, ALONE)
    batches = open_batches(dataset, config, ALONE, training=False)
    found = evaluate(learner, batches.epoch(0), ALONE, StopSignal())
    assert found is not None
    (metrics,) = found
    assert learner.module.training

    learner.module.eval()
    if loader == "torch":
        images = torch.stack([dataset[record][0] for record in range(37)])
    else:
        sample = [fr.transforms.Resize(32), fr.transforms.CenterCrop(32)]
        ((images, _),) = fr.FastRecordLoader(dataset, 37, shuffle=False, sample=sample)
    labels = torch.tensor(dataset.targets.tolist())
    logits = learner.predict(images)
    assert metrics.count == 37
    assert metrics.correct1 == int((logits.argmax(1) == labels).sum())
    assert metrics.correct5 == 37
    assert metrics.loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), abs=2e-5)


def test_a_loss_in_evaluation_that_is_not_finite_is_written_as_null(held_out: Path, tmp_path: Path) -> None:
    config = small_config(held_out, tmp_path)
    dataset, _ = open_datasets(config)
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    nn.init.constant_(next(reversed(list(module.parameters()))), math.nan)
    found = evaluate(
        Learner(module, config, ALONE),
        open_batches(dataset, config, ALONE, training=False).epoch(0),
        ALONE,
        StopSignal(),
    )
    assert found is not None
    (metrics,) = found
    assert metrics.count == 37
    assert math.isnan(metrics.loss)
    with MetricsFile(tmp_path / "metrics.jsonl", keep_steps=None) as file:
        file.write({"step": 1, "loss": metrics.loss})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": None}


def test_guesses_are_counted_among_the_first_one_and_the_first_five() -> None:
    logits = torch.arange(70.0).view(10, 7)
    labels = torch.tensor([6, 6, 5, 4, 3, 2, 2, 1, 1, 0])
    assert [int(count) for count in correct_guesses(logits, labels)] == [2, 7]
    assert [int(count) for count in correct_guesses(logits[:, :3], torch.tensor([2, 1, 0, 0, 0, 0, 0, 0, 0, 2]))] == [
        2,
        10,
    ]


def one_step(**options: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a small module after a step on eight images."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    batch = [(torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8), torch.randint(0, 5, (8,)))]
    learner = Learner(module, small_config(Path("none"), Path("none"), **options), ALONE)
    learner.step(batch, learning_rate=0.1, meter=TrainMeter(ALONE))
    return {name: value.detach() for name, value in learner.module.state_dict().items()}


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_and_channels_last_take_nearly_the_same_step(amp: str) -> None:
    plain, mixed = one_step(), one_step(amp=amp, channels_last=True)
    assert all(value.dtype == torch.float32 for value in mixed.values())
    torch.testing.assert_close(mixed, plain, rtol=0.05, atol=0.02)
    assert not torch.equal(mixed["3.weight"], plain["3.weight"])


def test_a_compiled_model_takes_the_same_steps_and_its_weights_keep_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The default backend compiles C++ for a minute.
    compile_model = Mock(side_effect=partial(torch.compile, backend="eager"))
    monkeypatch.setattr(torch, "compile", compile_model)
    torch.testing.assert_close(one_step(compile=True), one_step(), rtol=1e-4, atol=1e-5)
    compile_model.assert_called_once()


def test_biases_and_normalisation_can_be_left_out_of_weight_decay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)))
    decayed, others = parameter_groups(model, weight_decay=0.1, decay_norm_bias=False)
    assert [tuple(value.shape) for value in decayed["params"]] == [(4, 3, 3, 3), (2, 4)]
    assert [tuple(value.shape) for value in others["params"]] == [(4,), (4,), (4,), (2,), (2,), (2,)]
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    (every,) = parameter_groups(model, weight_decay=0.1, decay_norm_bias=True)
    assert len(every["params"]) == 8


# The environment


def test_without_matplotlib_one_line_says_that_the_plot_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "training.png") is False
    assert caplog.messages == ["no plot: matplotlib is not installed (pip install matplotlib)"]
    assert not list(tmp_path.iterdir())


def test_the_command_line_does_not_import_torch() -> None:
    code = "import sys, fastrecord.train.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
