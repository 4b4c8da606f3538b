"""The trainer on one process: the order of its batches, stopping and resuming."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.__main__ import main
from fastrecord.train.batches.base import Batches, derive_seed
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from fastrecord.train.distributed import Ranks
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.meters import MetricsFile, read_metrics
from tests.support.child import run_child
from tests.support.commands import flip
from tests.support.training import (
    MODEL,
    losses,
    numbers_of,
    read_rest,
    read_until,
    running,
    signalled,
    small_config,
    write_colours,
    write_numbered,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("numbered") / "train.frec", 300)


# Order and augmentation


def epoch_numbers(batches: Batches, epoch: int, limit: int | None = None) -> list[list[int]]:
    return [numbers_of(images) for images, _ in itertools.islice(batches.epoch(epoch), limit)]


def on_ranks(config: TrainConfig, count: int, epoch: int, *, training: bool = True, state: Any = None) -> Any:
    """Return the record numbers of each rank's batches."""
    dataset, _ = open_datasets(config)
    found = []
    for rank in range(count):
        ranks = Ranks(rank, count, rank, count, torch.device("cpu"), None)
        batches = open_batches(dataset, config, ranks, training=training)
        if state is not None:
            batches.load_state_dict(state, steps_done=4)
        found.append(epoch_numbers(batches, epoch))
    return found


def test_ranks_and_passes_share_the_global_batches_of_one_rank_also_from_a_state(
    numbered: Path, tmp_path: Path
) -> None:
    alone = small_config(numbered, tmp_path, image_size=8, batch_size=32)
    batches = open_batches(open_datasets(alone)[0], alone, ALONE, training=True)
    expected = [sorted(batch) for batch in epoch_numbers(batches, 3)]
    assert len(expected) == 10
    assert sorted(set(itertools.chain(*expected))) == list(range(300))
    one, two = on_ranks(dataclasses.replace(alone, batch_size=8, accumulate=2), 2, 3)
    assert [sorted(itertools.chain(*one[i : i + 2], *two[i : i + 2])) for i in range(0, 20, 2)] == expected
    state = json.loads(json.dumps(batches.state_dict(epoch=3, steps_done=4)))
    one, two = on_ranks(dataclasses.replace(alone, batch_size=16), 2, 3, state=state)
    assert [sorted(first + second) for first, second in zip(one, two, strict=True)] == expected[4:]


def test_evaluation_shares_every_record_once_among_ranks_of_uneven_length(numbered: Path, tmp_path: Path) -> None:
    config = small_config(numbered, tmp_path, image_size=8, batch_size=11)
    ranks = on_ranks(config, 4, 0, training=False)
    assert sorted(itertools.chain.from_iterable(batch for rank in ranks for batch in rank)) == list(range(300))


def test_seeds_of_different_keys_are_unrelated_and_the_same_everywhere() -> None:
    assert derive_seed(0, 1) != derive_seed(1, 0) != derive_seed(1, 0, 0)
    assert derive_seed(1, 2, 3) == 6520558355739401531


# Stopping and resuming


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_interrupting_the_process_group_saves_a_checkpoint_and_exits_with_130(colours: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--model", "shufflenet_v2_x0_5", "--batch-size", "8", "--image-size", "32", "--threads", "1"]
    with running("-m", "fastrecord.train", colours, "--out", out, "--print-freq", "1", *options) as process:
        read_until(process, "[2/10]")
        # As a terminal does: the data workers get it too.
        os.killpg(process.pid, signal.SIGINT)
        status, output = read_rest(process)
    assert status == 130
    assert "stopped by SIGINT after step" in output
    assert "Traceback" not in output
    state = load_checkpoint(out / "checkpoints" / "last.pt")
    assert state["step"] == max(losses(out)) >= 2


@pytest.mark.parametrize("loader", ["native", "torch"])
def test_a_run_stopped_during_evaluation_goes_on_with_that_evaluation(
    colours: Path, held_out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, loader: str
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    options: dict[str, Any] = {"val": str(held_out), "batch_size": 16, "augment": "imagenet", "loader": loader}
    train(small_config(colours, tmp_path / "whole", **options))
    with signalled("[5/5]", signal.SIGTERM):
        stopped = train(small_config(colours, tmp_path / "parts", **options))
    assert (stopped.signal, stopped.epoch, stopped.step, stopped.val) == (signal.SIGTERM, 0, 5, None)
    train(small_config(colours, tmp_path / "parts", **options, resume="auto"))
    timeless = [
        [{key: row[key] for key in ("event", "epoch", "step", "loss", "error1")} for row in read_metrics(file)]
        for file in (tmp_path / "whole" / "metrics.jsonl", tmp_path / "parts" / "metrics.jsonl")
    ]
    assert timeless[0] == timeless[1]
    assert [row["event"] for row in timeless[0]].count("val") == 2


def test_a_damaged_record_ends_the_command_with_one_line_that_names_it(colours: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.frec"
    flip(colours, damaged, record=40)
    options = ["--out", tmp_path / "out", "--model", MODEL, "--batch-size", 8, "--image-size", 32, "--threads", 1]
    done = CliRunner().invoke(main, [str(argument) for argument in (damaged, *options)])
    assert done.exit_code == 1
    told = r"^Error: /.*damaged\.frec: record 40, key 'blue/40\.jpg', .* \[FR302\]$"
    assert re.search(told, done.stderr, re.MULTILINE)


def test_a_second_interrupt_ends_a_run_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        # A second copy from the launcher, directly after the first.
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        monkeypatch.setattr("fastrecord.train.interrupt._ONE_WISH", -1.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_before_the_first_step_ends_the_run_without_a_checkpoint(colours: Path, tmp_path: Path) -> None:
    handlers = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        result = train(small_config(colours, tmp_path), stop)
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    assert result.signal == signal.SIGTERM
    assert (result.step, result.checkpoint) == (0, None)


def test_a_checkpoint_of_another_run_is_refused(colours: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    train(small_config(colours, first, max_steps=1))
    out = tmp_path / "second"
    with pytest.raises(TrainError, match="seed 0, not 1"):
        train(small_config(colours, out, resume=first, seed=1))
    with pytest.raises(TrainError, match="model 'shufflenet_v2_x0_5', not 'squeezenet1_1'"):
        train(small_config(colours, out, resume=first, model="squeezenet1_1"))
    with pytest.raises(TrainError, match=r"a global batch of 8, this run one of 12: use --batch-size 4 with 2 pass"):
        train(small_config(colours, out, resume=first, batch_size=6, accumulate=2))
    with pytest.raises(TrainError, match=r"global batch of 8, this run one of 9: no --batch-size makes 8 of 3 equal"):
        train(small_config(colours, out, resume=first, batch_size=3, accumulate=3))
    assert train(small_config(colours, out, resume=first, batch_size=4, global_batch=8, max_steps=2)).step == 2
    # For a repetition on another number of processes.
    assert TrainConfig.from_toml(out / "config.toml").global_batch == 8
    other = write_colours(tmp_path / "other.frec", 80, seed=3)
    with pytest.raises(TrainError, match=r"other\.frec"):
        train(small_config(other, out, resume=first))


def test_resume_finds_the_checkpoint_of_a_run_by_its_folder(tmp_path: Path) -> None:
    newest = tmp_path / "checkpoints" / "last.pt"
    assert find_checkpoint("auto", tmp_path) is None
    with pytest.raises(TrainError, match="no checkpoint there"):
        find_checkpoint(tmp_path, tmp_path)
    save_checkpoint({}, newest)
    for resume in ("auto", tmp_path, tmp_path / "checkpoints", newest, str(newest)):
        assert find_checkpoint(resume, tmp_path) == newest


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before_whole(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint({"step": 1}, path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"the checkpoint was not written: '.*last\.pt'"):
            save_checkpoint({"step": 2, "weights": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_checkpoint(path)["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


KILLED = """
import torch
from pathlib import Path
from fastrecord.train import checkpoint, files

class Disk:
    def __init__(self, place): self.place = place
    def __getattr__(self, name): return getattr(os, name)
    def die(self): os.kill(os.getpid(), signal.SIGKILL)
    def fsync(self, descriptor):
        if self.place in (0.0, 0.5, 1.0):
            os.ftruncate(descriptor, int(os.fstat(descriptor).st_size * self.place))
            self.die()
        os.fsync(descriptor)
    def replace(self, source, target):
        if self.place == "synced": self.die()
        os.replace(source, target)
        if self.place == "renamed": self.die()

path = Path("out/checkpoints/last.pt")
for step, place in enumerate([0.0, 0.5, 1.0, "synced", "renamed"]):
    checkpoint.save_checkpoint({"step": step, "weights": torch.zeros(1000)}, path)
    child = os.fork()
    if child == 0:
        files.os = Disk(place)
        checkpoint.save_checkpoint({"step": 100 + step, "weights": torch.ones(1000)}, path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    found = checkpoint.load_checkpoint(path)
    assert found["weights"].eq(float(found["step"] >= 100)).all()
    print(place, found["step"], sorted(file.name for file in path.parent.iterdir()))
    files.remove_leftovers(Path("out"))
    assert [file.name for file in path.parent.iterdir()] == ["last.pt"]
"""


def test_a_run_killed_at_any_place_of_writing_a_checkpoint_leaves_a_whole_one(tmp_path: Path) -> None:
    both = "['.last.pt.tmp', 'last.pt']"
    assert run_child(KILLED, tmp_path, timeout=100).splitlines() == [
        f"0.0 0 {both}",
        f"0.5 1 {both}",
        f"1.0 2 {both}",
        f"synced 3 {both}",
        "renamed 104 ['last.pt']",
    ]


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_anew_by_resume_auto(
    colours: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert train(small_config(colours, out), stop).checkpoint is None
    (out / "checkpoints" / ".last.pt.tmp").write_bytes(b"half of one")
    with pytest.raises(TrainError, match="already holds a run"):
        train(small_config(colours, out))
    assert train(small_config(colours, out, resume="auto", max_steps=2)).step == 2
    assert sorted(file.name for file in (out / "checkpoints").iterdir()) == ["last.pt"]
    assert list(losses(out)) == [1, 2]


def test_a_run_killed_between_its_best_and_its_last_checkpoint_keeps_the_best_and_goes_on(
    colours: Path, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    config = small_config(colours, out, val=str(held_out), epochs=2, resume="auto")

    def killed_at(path: Path) -> None:
        raise KeyboardInterrupt(path.name)

    def save(state: dict[str, Any], path: Path) -> None:
        if path.name == "last.pt":
            killed_at(path)
        save_checkpoint(state, path)

    with monkeypatch.context() as patched:
        patched.setattr("fastrecord.train.engine.save_checkpoint", save)
        with pytest.raises(KeyboardInterrupt, match=r"last\.pt"):
            train(config)
    best = load_checkpoint(out / "checkpoints" / "best.pt")
    assert (best["step"], best["epoch"], best["done"]) == (10, 1, 0)
    # It is the only checkpoint, so the run resumes from it.
    assert train(dataclasses.replace(config, max_steps=12)).step == 12
    assert list(losses(out)) == list(range(1, 13))
    last = load_checkpoint(out / "checkpoints" / "last.pt")
    assert last["best_error1"] == load_checkpoint(out / "checkpoints" / "best.pt")["best_error1"]


def test_resume_auto_goes_back_to_the_newest_sound_checkpoint(
    colours: Path, held_out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "out" / "checkpoints"
    options: dict[str, Any] = {"val": str(held_out), "batch_size": 16}
    train(small_config(colours, tmp_path / "whole", **options))
    train(small_config(colours, out, **options, max_steps=7))
    best, last = (load_checkpoint(checkpoints / name)["step"] for name in ("best.pt", "last.pt"))
    assert last == 7
    damaged = bytearray((checkpoints / "last.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    for content in (damaged, damaged[:1000], b""):
        (checkpoints / "last.pt").write_bytes(content)
        assert find_checkpoint("auto", out) == checkpoints / "best.pt"
    caplog.set_level(logging.INFO, "fastrecord.train")
    train(small_config(colours, out, **options, resume="auto"))
    assert f"last.pt cannot be read or is damaged: the run goes back to {checkpoints / 'best.pt'}" in caplog.text
    assert f"resumed from {checkpoints / 'best.pt'}: epoch {best // 5}, " in caplog.text
    assert losses(out) == losses(tmp_path / "whole")
    for name in ("last.pt", "best.pt"):
        (checkpoints / name).write_bytes(damaged)
    with pytest.raises(TrainError, match=r"last\.pt: the checkpoint is damaged.*no other checkpoint is beside it"):
        train(small_config(colours, out, **options, resume="auto"))


def test_resume_auto_refuses_another_models_checkpoint_and_leaves_it(colours: Path, tmp_path: Path) -> None:
    newest = train(small_config(colours, tmp_path, max_steps=1)).checkpoint
    assert newest is not None
    content = newest.read_bytes()
    with pytest.raises(TrainError, match=r"with model '.*', not 'squeezenet1_1': .* \(--out\), .*\(--overwrite, "):
        train(small_config(colours, tmp_path, model="squeezenet1_1", resume="auto"))
    assert newest.read_bytes() == content
    assert list(losses(tmp_path)) == [1]


@pytest.mark.parametrize(
    ("processes", "size", "passes"), [(1, 32, 3), (2, 24, 2), (3, 32, 1), (4, 24, 1), (8, 12, 1), (96, 1, 1)]
)
def test_a_global_batch_is_divided_among_any_number_of_processes(processes: int, size: int, passes: int) -> None:
    config = TrainConfig(train="train.frec", global_batch=96, batch_size=32).on_processes(processes)
    assert (config.batch_size, config.accumulate, config.global_batch) == (size, passes, None)
    assert config.on_processes(7) is config


def test_a_global_batch_that_processes_cannot_share_is_refused() -> None:
    config = TrainConfig(train="train.frec", global_batch=96)
    with pytest.raises(
        TrainError, match=r"5 processes cannot have equal shares of a global batch of 96: use .* 95 or 100"
    ):
        config.on_processes(5)
    with pytest.raises(TrainError, match=r"global batch of 96: use --global-batch 97, or"):
        config.on_processes(97)
    with pytest.raises(ValueError, match="give global_batch or accumulate, not both"):
        dataclasses.replace(config, accumulate=2)


def test_a_signal_acts_at_once_while_a_process_waits_for_the_others() -> None:
    def own(_number: int, _frame: Any) -> None: ...

    before = signal.signal(signal.SIGHUP, own)
    try:
        with StopSignal() as stop:
            with stop.suspended():
                assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is signal.SIG_DFL
                assert signal.getsignal(signal.SIGHUP) is own
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.number == signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, before)


def test_metrics_after_the_checkpoint_are_dropped_when_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, keep_steps=None) as file:
        for step in range(1, 6):
            file.write({"step": step})
    with path.open("a") as torn:
        torn.write('{"step": 6, "lo')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]
    with MetricsFile(path, keep_steps=3) as file:
        file.write({"step": 4, "loss": 1.0})
    assert read_metrics(path) == [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4, "loss": 1.0}]
