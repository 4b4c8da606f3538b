"""Settings from TOML files: what is read, what is refused, and what a run writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fastrecord.train import TrainConfig, train
from fastrecord.train.__main__ import main
from fastrecord.train.schedule import LearningRate
from fastrecord.train.settings_file import write_settings
from tests.support.training import losses, small_config

DEMO = Path(__file__).parents[2] / "demo"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_keys_are_the_options_and_settings_from_the_caller_replace_them(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.toml",
        'train = ["a.frec", "b.frec"]\nbatch-size = 32\nlr = 1\nmax-skipped = "none"\nchannels-last = true\n'
        'lr-step-epochs = [30, 60, 80]\ndecay-norm-bias = false\namp = "bf16"\nwarmup-epochs = 0.5\nout = "runs/a"\n',
    )
    expected = TrainConfig(
        train=["a.frec", "b.frec"],
        batch_size=32,
        lr=1.0,
        max_skipped=None,
        channels_last=True,
        lr_step_epochs=[30, 60, 80],
        decay_norm_bias=False,
        amp="bf16",
        warmup_epochs=0.5,
        out="runs/a",
    )
    assert TrainConfig.from_toml(path) == expected
    assert TrainConfig.from_toml(path, train="c.frec", lr=0.2) == replace(expected, train="c.frec", lr=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size = 32", "unknown key 'batch_size': did you mean batch-size? (the keys are train, val, model, "),
        ("unit = 50", "unknown key 'unit' (the keys are train, val, "),
        ("[lr]\npeak = 0.1", "lr is {'peak': 0.1}: it must be a number"),
        ("epochs = 2.0", "epochs is 2.0: it must be a whole number"),
        ("epochs = true", "epochs is True: it must be a whole number"),
        ("lr = '0.1'", "lr is '0.1': it must be a number"),
        ("compile = 1", "compile is 1: it must be true or false"),
        ("val = [1]", "val is [1]: it must be a text in quotes or a list, each a text in quotes"),
        ("max-skipped = 'all'", "max-skipped is 'all': it must be a number or \"none\""),
        ("lr-step-epochs = '30'", "lr-step-epochs is '30': it must be a whole number or a list, each a whole number"),
        ("amp = 'fp8'", 'amp is \'fp8\': it must be one of "off", "bf16", "fp16"'),
        ("epochs = 0", "epochs is 0: it must be at least 1"),
        ("lr-step-epochs = [60, 30]", "lr-step-epochs is [60, 30]: it must be at least 1, or a list of epochs"),
        ("epochs = 9\nepochs = 9", " is not a TOML file: Cannot overwrite a value "),
        ("epochs: 9", " is not a TOML file: Expected '=' after a key"),
        ("", ' has no files to train on: add train = "FILE.frec" to it, or give them'),
    ],
)
def test_a_bad_file_is_refused_with_its_name_its_key_and_what_is_allowed(
    text: str, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "bad.toml", text)
    arguments = ["--config", str(path), *(["a.frec"] if text else [])]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert f"Error: {path}" in result.stderr
    assert message in result.stderr


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        result = CliRunner().invoke(main, ["a.frec", "--config", str(path)])
        assert result.exit_code == 2
        assert f"{message}" in result.stderr
        assert str(path) in result.stderr
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'model = "\xe9"')
    assert "latin.toml is not a TOML file: " in CliRunner().invoke(main, ["--config", str(latin)]).stderr


def test_an_error_in_an_option_of_the_command_line_does_not_blame_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", "epochs = 3\n")
    result = CliRunner().invoke(main, ["a.frec", "--config", str(path), "--epochs", "0"])
    assert result.stderr.splitlines()[-1] == "Error: epochs is 0: it must be at least 1"
    assert "Missing argument 'TRAIN.frec...'" in CliRunner().invoke(main, ["--epochs", "3"]).stderr
    assert "'3,x' is not a whole number or a list" in CliRunner().invoke(main, ["a", "--lr-step-epochs", "3,x"]).stderr
    assert "'x' is not a number or none" in CliRunner().invoke(main, ["a", "--max-skipped", "x"]).stderr
    assert "Error: --lr-step-epochs is [5, 3]" in CliRunner().invoke(main, ["a", "--lr-step-epochs", "5,3"]).stderr
    alone = CliRunner().invoke(main, ["a", "--cache-size", "1GiB"]).stderr
    assert "Error: --cache-size is '1GiB': it must be absent without a folder (--cache)" in alone


@pytest.mark.usefixtures("one_thread")
def test_a_run_writes_its_settings_and_they_repeat_it(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Paths in the file are relative to the working directory, not to the file.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.frec").symlink_to(colours)
    (tmp_path / "files").mkdir()
    write(
        tmp_path / "files" / "a.toml",
        'train = "train.frec"\nmodel = "shufflenet_v2_x0_5"\nbatch-size = 8\nimage-size = 32\nthreads = 1\n'
        'device = "cpu"\nprint-freq = 1\nchannels-last = true\nmax-skipped = "none"\nmax-steps = 1\nseed = 7\n'
        'schedule = "step"\n',
    )
    command = ["--config", "files/a.toml", "--out", 'first "run"', "--max-steps", "2", "--no-channels-last"]
    result = CliRunner().invoke(main, [*command, "--max-skipped", "9", "--lr-step-epochs", "30,60,80"])
    assert result.exit_code == 0, result.output
    written = tmp_path / 'first "run"' / "config.toml"
    config = TrainConfig.from_toml(written)
    expected = small_config(
        Path("train.frec"),
        Path("anywhere"),
        epochs=90,
        augment="imagenet",
        max_skipped=9,
        max_steps=2,
        seed=7,
        schedule="step",
        lr_step_epochs=[30, 60, 80],
    )
    assert config == replace(expected, out='first "run"')
    assert 'settings: train "train.frec", model "shufflenet_v2_x0_5", ' in caplog.text
    train(replace(config, out="second"))
    assert losses(tmp_path / "second") == losses(written.parent) != {}


def test_all_settings_survive_the_way_through_a_file(tmp_path: Path) -> None:
    every: dict[str, Any] = {
        "val": ['a "quoted" \\ one\n\x7f', "ä*.frec"],
        "max_skipped": None,
        "lr": 1e-7,
        "label_smoothing": 0.1,
        "lr_step_epochs": [1, 2],
        "warmup_epochs": 1,
        "resume": "auto",
    }
    config = small_config(Path("none"), Path("runs/x"), **every)
    path = tmp_path / "config.toml"
    write_settings(path, config, leave_out=(), comment="one\ntwo")
    assert TrainConfig.from_toml(path) == replace(config, out="runs/x")


# The recipes


def test_a_recipe_is_a_settings_file_by_name_whose_settings_the_command_line_replaces(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[TrainConfig] = []

    def run(config: TrainConfig, **_: Any) -> int:
        given.append(config)
        return 0

    monkeypatch.setattr("fastrecord.train.__main__._run", run)
    command = [str(colours), "--recipe", "resnet50-v1", "--epochs", "3", "--warmup-epochs", "1", "--amp", "off"]
    assert CliRunner().invoke(main, command).exit_code == 0
    shown = CliRunner().invoke(main, ["--recipe", "resnet50-v1", "--show"])
    assert (shown.exit_code, shown.stderr) == (0, "")
    copy = write(tmp_path / "copy.toml", shown.stdout)
    changed: dict[str, Any] = {"epochs": 3, "warmup_epochs": 1.0, "amp": "off"}
    assert given == [TrainConfig.from_toml(copy, train=str(colours), **changed)]
    assert given[0].lr_step_epochs == [30, 60, 80]
    assert CliRunner().invoke(main, ["--config", str(copy), "--show"]).stdout == shown.stdout


def test_an_unknown_recipe_is_refused_with_the_names_of_those_that_exist() -> None:
    with pytest.raises(ValueError, match="there is no recipe 'resnet': the recipes are resnet50-v1, resnet50-v2"):
        TrainConfig.from_recipe("resnet", train="x")
    for command, message in (
        (["--recipe", "resnet", "a"], "'resnet' is not one of 'resnet50-v1', 'resnet50-v2'"),
        (["--recipe", "resnet50-v1", "--config", "a.toml", "a"], "give --recipe or --config, not both"),
        (["--recipe", "resnet50-v1"], "Missing argument 'TRAIN.frec...'"),
        (["--show", "a"], "--show prints a settings file: give --recipe or --config"),
        (["--show", "--config", "none.toml"], "No such file"),
        (["--recipe", "resnet50-v1", "a", "--epochs", "2"], "warmup-epochs is 5: it must be between 0 and the 2 epo"),
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert message in result.stderr


def test_the_recipe_of_90_epochs_scales_warms_up_and_drops_as_published() -> None:
    config = TrainConfig.from_recipe("resnet50-v1", train="x")
    assert config == TrainConfig(
        train="x",
        model="resnet50",
        epochs=90,
        batch_size=208,
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        warmup_epochs=5,
        schedule="step",
        lr_step_epochs=[30, 60, 80],
        lr_gamma=0.1,
        amp="fp16",
        channels_last=True,
    )
    # The learning rates that HAL logged for 2 to 64 GPUs.
    for gpus, peak in ((2, 0.1625), (4, 0.325), (16, 1.3), (32, 2.6), (64, 5.2)):
        rate = LearningRate(config, 208 * gpus, 100)
        assert rate.peak == pytest.approx(peak)
        assert [rate(step) / peak for step in (0, 249, 499, 500, 2999)] == pytest.approx([1 / 500, 0.5, 1, 1, 1])
        assert [rate(step) / peak for step in (3000, 5999, 6000, 7999, 8000, 8999)] == pytest.approx(
            [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        )


def test_the_newer_recipe_is_that_of_torchvisions_weights() -> None:
    config = TrainConfig.from_recipe("resnet50-v2", train="x")
    assert config == TrainConfig(
        train="x",
        model="resnet50",
        epochs=600,
        image_size=176,
        eval_size=224,
        eval_resize=232,
        augment="trivialaugment",
        random_erasing=0.1,
        mixup=0.2,
        cutmix=1.0,
        repeated_augmentation=4,
        label_smoothing=0.1,
        global_batch=1024,
        batch_size=128,
        lr=0.125,
        warmup_epochs=5,
        warmup_start=0.01,
        momentum=0.9,
        weight_decay=2e-5,
        decay_norm_bias=False,
        ema_decay=0.99998,
        ema_steps=32,
        amp="bf16",
        channels_last=True,
    )
    for processes, passes in ((1, 8), (4, 2), (8, 1), (16, 1)):
        alone = config.on_processes(processes)
        assert alone.batch_size * alone.accumulate * processes == 1024
        assert alone.accumulate == passes
    rate = LearningRate(config, 1024, 1251)
    assert rate.peak == 0.5
    assert [rate(step) for step in (0, 6254, 375_299, 750_599)] == pytest.approx([0.005, 0.5, 0.2533, 0], abs=1e-3)


def test_the_recipe_of_the_digits_keeps_its_rules_on_cpus() -> None:
    assert TrainConfig.from_toml(DEMO / "digits.toml") == TrainConfig(
        train="demo/out/train.frec",
        val="demo/out/val.frec",
        model="resnet18",
        zero_init_residual=True,
        epochs=12,
        image_size=32,
        batch_size=16,
        accumulate=2,
        lr=0.4,
        warmup_epochs=0.5,
    )
