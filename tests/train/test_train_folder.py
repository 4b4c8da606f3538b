"""The folder of a run: verified checkpoints, one trainer at a time, errors that name obstacles."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fastrecord.train import TrainConfig, TrainError, run_ladder, train
from fastrecord.train.__main__ import main
from fastrecord.train.checkpoint import load_checkpoint, save_checkpoint
from fastrecord.train.meters import MetricsFile, read_metrics
from tests.support.training import losses, read_until, running, small_config

pytestmark = pytest.mark.usefixtures("one_thread")


def refusal(config: TrainConfig) -> str:
    """Return the one-line error of a refused run."""
    with pytest.raises(TrainError) as caught:
        train(config)
    message = str(caught.value)
    assert message.isprintable()
    return message


# Checkpoints


@pytest.fixture(scope="module")
def trained(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, with both checkpoints. Read only."""
    out = tmp_path_factory.mktemp("trained") / "out"
    torch.set_num_threads(1)
    train(small_config(colours, out, val=str(colours), max_steps=1))
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained`."""
    return shutil.copytree(trained, tmp_path / "out")


def test_no_flipped_bit_of_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint({"step": 1, "weights": torch.randn(30)}, path)
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    for place in range(len(content)):
        bit = 1 << int(rng.integers(8))
        content[place] ^= bit
        path.write_bytes(content)
        with pytest.raises(TrainError, match=r"^/.*/last\.pt: (the checkpoint is damaged: |not a checkpoint )"):
            load_checkpoint(path)
        content[place] ^= bit
    path.write_bytes(content)
    assert load_checkpoint(path)["step"] == 1


def test_torch_loads_a_checkpoint_as_any_other(run: Path) -> None:
    path = run / "checkpoints" / "best.pt"
    for source in (path, str(path)):
        assert "fc.weight" in torch.load(source, weights_only=True)["model"]


def flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_checksum(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 64)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def pickle_something(path: Path) -> None:
    torch.save([1, 2], path)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (flip_last, "the checkpoint is damaged: its content does not match its checksum"),
        (cut, "not a checkpoint of fastrecord.train, or cut short"),
        (cut_checksum, "not a checkpoint of fastrecord.train, or cut short"),
        (empty, "an empty file"),
        (pickle_something, "not a checkpoint of fastrecord.train, or cut short"),
    ],
)
def test_a_damaged_last_checkpoint_is_refused_with_the_others_as_the_way_out(
    damage: Any, what: str, colours: Path, run: Path
) -> None:
    last, best, copy = (run / "checkpoints" / name for name in ("last.pt", "best.pt", "copy.pt"))
    shutil.copy(best, copy)
    damage(last)
    config = small_config(colours, run, resume=run, max_steps=2)
    assert refusal(config) == f"{last}: {what}; continue from {best} or {copy} (--resume PATH)"
    flip_last(copy)
    assert refusal(config) == f"{last}: {what}; continue from {best} (--resume PATH)"
    assert train(small_config(colours, run, resume=best, max_steps=2)).step == 2
    assert load_checkpoint(last)["step"] == 2
    damage(last)
    best.unlink()
    assert refusal(config).startswith(f"{last}: {what}; no other checkpoint is beside it: ")


def test_the_command_reports_a_damaged_checkpoint_in_one_line(colours: Path, run: Path) -> None:
    flip_last(run / "checkpoints" / "last.pt")
    options = ["--out", str(run), "--resume", str(run), "--device", "cpu"]
    done = CliRunner().invoke(main, [str(colours), *options])
    assert done.exit_code == 1
    assert re.fullmatch(r"Error: .*last\.pt: the checkpoint is damaged: .*best\.pt \(--resume PATH\)\n", done.stderr)


def test_a_checkpoint_that_does_not_fit_is_refused_with_what_does_not(colours: Path, run: Path) -> None:
    last = run / "checkpoints" / "last.pt"
    state = load_checkpoint(last)
    config: dict[str, Any] = {"resume": "auto", "max_steps": 2}
    other = refusal(small_config(colours, run, **config, decay_norm_bias=False))
    assert other.startswith(f"{last} cannot be resumed so: its optimizer has other groups of parameters: ")
    save_checkpoint({**state, "model": {**state["model"], "fc.weight": torch.zeros(9, 1024)}}, last)
    assert re.match(
        rf"{last} cannot be resumed so: its weights do not fit the model: size mismatch for fc\.weight: ",
        refusal(small_config(colours, run, **config)),
    )
    del state["optimizer"], state["meter"]
    save_checkpoint(state, last)
    message = f"{last}: a checkpoint without meter, optimizer cannot be resumed"
    assert refusal(small_config(colours, run, **config)) == message


def test_weight_decay_and_momentum_of_a_resumed_run_are_those_it_is_given(
    colours: Path, trained: Path, tmp_path: Path
) -> None:
    ends = []
    for decay in (1e-4, 0.9):
        out = shutil.copytree(trained, tmp_path / str(decay))
        train(small_config(colours, out, resume="auto", weight_decay=decay, lr=1.0, warmup_epochs=0, max_steps=4))
        ends.append(losses(out))
    assert ends[0][2] == ends[1][2]
    assert ends[0][4] != ends[1][4]


def test_the_folder_of_a_run_that_has_only_its_best_checkpoint_can_be_resumed(colours: Path, run: Path) -> None:
    (run / "checkpoints" / "last.pt").unlink()
    for path in (run, run / "checkpoints"):
        assert train(small_config(colours, run, resume=path, max_steps=1)).checkpoint is not None
        (run / "checkpoints" / "last.pt").unlink(missing_ok=True)


@pytest.mark.parametrize("path", ["", "nowhere", "/dev/null", "\udcff"])
def test_a_resume_that_leads_to_no_checkpoint_is_refused_in_one_line(path: str, colours: Path, tmp_path: Path) -> None:
    options = ["--out", str(tmp_path / "out"), "--resume", path, "--device", "cpu"]
    done = CliRunner().invoke(main, [str(colours), *options])
    assert done.exit_code == 1
    assert re.fullmatch(r"Error: [^\n]+\n", done.stderr)
    assert not (tmp_path / "out").exists()


# One trainer at a time


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_trainer_is_refused_until_the_first_is_killed(colours: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [
        "--model",
        "squeezenet1_1",
        "--epochs",
        "100000",
        "--batch-size",
        "8",
        "--image-size",
        "32",
        "--threads",
        "1",
        "--device",
        "cpu",
        "-p",
        "1",
    ]
    options += ["--loader", "torch", "--checkpoint-every", "1"]
    config = small_config(colours, out, model="squeezenet1_1", epochs=100000, resume="auto", loader="torch")
    with running("-m", "fastrecord.train", colours, "--out", out, *options) as process:
        read_until(process, "[2/10]")
        told = f"{out}: process {process.pid} on {os.uname().nodename} trains there now: "
        assert refusal(config).startswith(told)
        assert refusal(dataclasses.replace(config, resume=None, overwrite=True)).startswith(told)
        # Its workers live for some seconds more, but do not hold the lock.
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        step = load_checkpoint(out / "checkpoints" / "last.pt")["step"]
        result = train(dataclasses.replace(config, max_steps=step + 1))
        assert result.step == step + 1


# Obstacles


@pytest.mark.parametrize("below", ["", "deep/er"])
@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_an_out_that_is_not_a_folder_is_refused_before_anything_is_done(
    kind: str, below: str, colours: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    if kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("gone")
    for work in (train, run_ladder):
        with pytest.raises(TrainError, match=rf"^--out .*: {path} is not a folder: choose another --out$"):
            work(small_config(colours, path / below, resume="auto"))
    assert os.listdir(tmp_path) == ["out"]


def test_metrics_that_have_no_room_end_the_run_with_their_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsFile(path, keep_steps=None) as file:
        file.write({"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
        try:
            with pytest.raises(OSError, match=r"metrics\.jsonl"):
                file.write({"step": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_metrics(path) == [{"step": 1}]


@pytest.mark.parametrize("damage", [b"[1]", b"\xff"])
def test_a_damaged_line_of_the_metrics_is_refused_with_its_number(damage: bytes, colours: Path, run: Path) -> None:
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + damage + b"\n")
    number = metrics.read_bytes().count(b"\n")
    message = f"{metrics}: line {number} is damaged: remove it, or the file, which the checkpoints do not need"
    assert refusal(small_config(colours, run, resume="auto", max_steps=2)) == message
    metrics.unlink()
    assert train(small_config(colours, run, resume="auto", max_steps=2)).step == 2


def test_a_run_that_has_nothing_left_to_train_says_so(
    colours: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    assert train(small_config(colours, run, resume="auto", max_steps=1)).step == 1
    assert "nothing is left to train: 0 of 2 epochs, 1 steps done" in caplog.messages


def closed_streams(command: str, colours: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the trainer by a shell; `command` redirects its streams."""
    options = (
        f"--out {out} --model squeezenet1_1 --max-steps 4 --batch-size 8 --image-size 32 --threads 1 --device cpu -p 1"
    )
    line = command.format(f"{sys.executable} -m fastrecord.train {colours} {options}")
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert [row["step"] for row in read_metrics(out / "metrics.jsonl")] == [1, 2, 3, 4]
    assert load_checkpoint(out / "checkpoints" / "last.pt")["step"] == 4
    return done


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_goes_on_when_its_output_is_closed_and_says_so_once(colours: Path, tmp_path: Path) -> None:
    closed_streams("{} <&- >&- 2>&-", colours, tmp_path / "none")
    done = closed_streams("{} | head -1", colours, tmp_path / "head")
    assert re.fullmatch(r"the log ends here \(.*\); the run continues, see metrics\.jsonl\n", done.stderr), done.stderr
