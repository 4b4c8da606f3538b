"""Constant data instead of records, and the ladder that measures the cost of each layer."""

from __future__ import annotations

import json
import logging
import multiprocessing
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from click.testing import CliRunner

import fastrecord as fr
from fastrecord.train import Rung, TrainError, run_ladder, train
from fastrecord.train.__main__ import main
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.config import DataKind
from fastrecord.train.distributed import Ranks
from fastrecord.train.ladder import RungKind, judge, table
from fastrecord.train.meters import read_metrics
from fastrecord.train.model import build_model
from tests.support.commands import flip
from tests.support.training import losses, signalled, small_config

pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)
CONSTANT: tuple[DataKind, ...] = ("gpu", "cpu", "dataset")
KINDS: tuple[DataKind, ...] = (*CONSTANT, "real")
RUNGS: tuple[RungKind, ...] = get_args(RungKind)
OPTIONS = shlex.split("--ladder --model squeezenet1_1 --batch-size 8 --image-size 32 --threads 1 --device cpu")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "fastrecord.train")
    return caplog


# Constant data


@pytest.mark.parametrize("kind", CONSTANT)
def test_constant_data_have_the_shapes_and_the_number_of_the_real_ones(
    kind: DataKind, colours: Path, tmp_path: Path
) -> None:
    made = {}
    for data in (kind, "real"):
        config = small_config(colours, tmp_path, data=data, batch_size=8, accumulate=2)
        batches = open_batches(open_datasets(config)[0], config, ALONE, training=True)
        drawn = list(batches.epoch(0))
        if data != "real":
            # All are held, so that no memory is reused.
            assert len({images.data_ptr() for images, _ in drawn}) == (1 if data == "gpu" else len(drawn))
        made[data] = [(images.shape, images.dtype, labels.shape, labels.dtype) for images, labels in drawn]
        assert len(batches) == 5
        if data != "real":
            assert all(torch.equal(images, drawn[0][0]) for images, _ in drawn)
            assert all(torch.equal(labels, drawn[0][1]) for _, labels in drawn)
            assert 0 <= int(drawn[0][1].min()) <= int(drawn[0][1].max()) < 4
            assert len(list(batches.epoch(1))) == 10
        batches.close()
    assert made[kind] == made["real"]
    assert len(made[kind]) == 10


@pytest.mark.parametrize("kind", CONSTANT)
def test_a_run_on_constant_data_trains_stops_and_goes_on(
    kind: DataKind, colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    # The damaged record is not read.
    bad = tmp_path / "bad.frec"
    flip(colours, bad, record=40)
    # Evaluation is off as well.
    options: dict[str, Any] = {"data": kind, "val": "none.frec", "epochs": 1, "batch_size": 16}
    whole = train(small_config(bad, tmp_path / "whole", **options))
    assert (whole.step, whole.epoch, whole.val) == (5, 1, None)
    assert f"--data {kind}: every batch is the same noise" in log.text
    assert "decode_share" not in read_metrics(tmp_path / "whole" / "metrics.jsonl")[0]
    train(small_config(bad, tmp_path / "parts", **options, max_steps=2))
    train(small_config(bad, tmp_path / "parts", **options, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    with pytest.raises(TrainError, match=f"was made with data '{kind}', not 'real'"):
        train(small_config(bad, tmp_path / "other", resume=tmp_path / "parts"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_ends_a_run_on_each_kind_of_data_and_leaves_no_thread_and_no_process(
    kind: DataKind, colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    with signalled("[2/10]", signal.SIGTERM):
        result = train(small_config(colours, tmp_path, data=kind))
    assert (result.signal, result.step) == (signal.SIGTERM, 2)
    assert "[3/10]" not in log.text
    end = time.monotonic() + 60
    while threading.active_count() > before:  # a DataLoader's threads end later
        assert time.monotonic() < end, threading.enumerate()
    assert multiprocessing.active_children() == []


# The ladder


def test_the_ladder_measures_every_rung_and_writes_nothing_but_its_file(
    colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    ladder = run_ladder(small_config(colours, out, loader="torch", max_steps=8, val="none.frec"))
    assert ladder is not None
    assert [rung.data for rung in ladder.rungs] == list(RUNGS)
    assert ladder.left_out == {}
    for rung in ladder.rungs:
        assert len(rung.round_step_seconds) == 2
        assert rung.step_seconds == pytest.approx(sum(rung.round_step_seconds) / 2)
        assert rung.images_per_second == pytest.approx(8 / rung.step_seconds)
        assert 0 <= rung.data_wait <= 1
    steps = {rung.data: rung.step_seconds for rung in ladder.rungs}
    above = [rung.above for rung in ladder.rungs]
    assert above == [None, "gpu", "cpu", "cpu", "dataset"]
    for rung in ladder.rungs[1:]:
        assert rung.above is not None
        assert rung.layer_seconds == pytest.approx(steps[rung.data] - steps[rung.above])
    assert ladder.headroom == pytest.approx(steps["torch"] / steps["gpu"])

    assert [path.name for path in out.iterdir()] == ["ladder.json"]
    written = json.loads((out / "ladder.json").read_text())
    assert [rung["data"] for rung in written["rungs"]] == list(RUNGS)
    assert written["rungs"][3]["step_seconds"] == steps["native"]
    assert written["rungs"][0]["layer"] == "constant, on the device (here: the CPU)"
    assert (written["limit"], written["verdict"]) == (ladder.limit, ladder.verdict)
    assert (written["loader"], written["device"], written["steps"]) == ("torch", "cpu", 8)

    lines = log.messages[-6:]
    assert [line.split()[0] for line in lines[:5]] == list(RUNGS)
    assert "ms over cpu (" in lines[2]
    assert lines[5] == f"What limits: {ladder.verdict}"
    assert multiprocessing.active_children() == []


@pytest.mark.gpu
def test_on_a_gpu_the_ladder_copies_from_pinned_memory(colours: Path, tmp_path: Path) -> None:
    ranks = Ranks(0, 1, 0, 1, torch.device("cuda", 0), None)
    for kind in CONSTANT:
        config = small_config(colours, tmp_path, data=kind, device="cuda")
        batches = open_batches(open_datasets(config)[0], config, ranks, training=True)
        images, labels = next(iter(batches.epoch(0)))
        assert (images.is_cuda, labels.is_cuda) == (kind == "gpu", kind == "gpu")
        assert images.is_pinned() == (kind != "gpu")
        batches.close()
    ladder = run_ladder(small_config(colours, tmp_path / "out", device="cuda", max_steps=8))
    assert ladder is not None
    assert ladder.rungs[0].layer == "constant, on the device"
    assert ladder.rungs[1].layer == "constant, copied from pinned memory"


def test_a_rung_that_cannot_run_is_listed_with_its_reason(
    colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    ladder = run_ladder(small_config(colours, tmp_path, max_steps=1, on_error="skip"))
    assert ladder is not None
    assert [rung.data for rung in ladder.rungs] == ["gpu", "cpu", "dataset", "native"]
    assert list(ladder.left_out) == ["torch"]
    assert "torch    not measured: on_error is 'skip': it must be 'raise' with loader torch" in log.text
    assert json.loads((tmp_path / "ladder.json").read_text())["left_out"] == ladder.left_out

    ladder = run_ladder(small_config(colours, tmp_path, max_steps=1, loader="torch", threads=0))
    assert ladder is not None
    assert ladder.rungs[-1].data == "torch"
    assert list(ladder.left_out) == ["native"]


def rung(data: RungKind, above: RungKind | None, *milliseconds: float, over: float = 0.0) -> Rung:
    seconds = tuple(value / 1e3 for value in milliseconds)
    middle = sorted(seconds)[len(seconds) // 2]
    return Rung(data, "words", 1 / middle, middle, seconds, 0.5, above, None if above is None else over / 1e3)


def test_the_verdict_names_what_limits_and_the_layer_that_costs_most() -> None:
    ladder = judge(
        [
            rung("gpu", None, 99, 100, 101),
            rung("cpu", "gpu", 110, over=10),
            rung("dataset", "cpu", 300, over=190),
            rung("native", "cpu", 140, over=30),
            rung("torch", "dataset", 400, over=100),
        ],
        "native",
    )
    assert ladder.limit == "data"
    assert ladder.headroom == pytest.approx(1.4)
    # The native loader has no workers.
    assert ladder.verdict == (
        "the data path: the model could take 1.40x as many images; what costs most is reading and decoding records"
    )
    slow_copy = judge(
        [rung("gpu", None, 100), rung("cpu", "gpu", 180, over=80), rung("torch", "cpu", 190, over=10)], "torch"
    )
    assert slow_copy.verdict.endswith("1.90x as many images; what costs most is copying batches to the device")
    model = judge(
        [rung("gpu", None, 100), rung("cpu", "gpu", 101, over=1), rung("native", "cpu", 102, over=1)], "native"
    )
    assert model.limit == "model"
    assert model.verdict == "the model: real data keep 98% of the speed that data on the device have"


def test_the_verdict_is_unclear_where_the_rounds_differ_more_than_the_data() -> None:
    rungs = [rung("gpu", None, 90, 100, 130), rung("cpu", "gpu", 100, 100, 100), rung("native", "cpu", 115, 120, 125)]
    noisy = judge(rungs, "native")
    assert noisy.limit == "unclear"
    assert "took 90 to 130 ms from round to round, those on real data 120, 50% of that waiting" in noisy.verdict
    assert table(noisy)[-1] == f"What limits: {noisy.verdict}"
    assert table(noisy)[-2].endswith("+0.00 ms over cpu (+15.00 to +25.00)")


def test_the_ladder_leaves_the_weights_as_they_are(colours: Path, tmp_path: Path, monkeypatch: Any) -> None:
    kept: list[torch.nn.Module] = []

    def build(*arguments: Any) -> torch.nn.Module:
        kept.append(build_model(*arguments))
        before.update({name: value.detach().clone() for name, value in kept[0].named_parameters()})
        return kept[0]

    before: dict[str, torch.Tensor] = {}
    monkeypatch.setattr("fastrecord.train.ladder.build_model", build)
    assert run_ladder(small_config(colours, tmp_path, max_steps=1)) is not None
    assert len(kept) == 1
    for name, value in kept[0].named_parameters():
        assert torch.equal(value, before[name]), name


def test_a_signal_ends_the_ladder_with_130_and_nothing_is_written(colours: Path, tmp_path: Path) -> None:
    before = {*threading.enumerate()}  # those of earlier tests may end meanwhile
    with signalled("round 1 of 2", signal.SIGINT):
        done = CliRunner().invoke(main, [str(colours), *OPTIONS, "--max-steps", "8", "--out", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert "stopped by SIGINT: the ladder is not complete" in done.stderr
    assert not (tmp_path / "out").exists()
    assert {*threading.enumerate()} <= before
    assert multiprocessing.active_children() == []


def test_a_damaged_record_ends_the_ladder_with_its_name(colours: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.frec"
    flip(colours, bad, record=40)
    with pytest.raises(fr.errors.CorruptFileError, match=r"bad\.frec: record 40, .*'blue/40\.jpg'"):
        run_ladder(small_config(bad, tmp_path / "out", max_steps=20))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [("--data", "cpu"), ("--resume", "auto"), ("--overwrite",)])
def test_options_that_the_ladder_does_not_use_are_refused(option: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["train.frec", "--ladder", *option])
    assert done.exit_code == 2
    assert "leave out --data, --resume and --overwrite" in done.stderr


def test_the_command_climbs_the_ladder(colours: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    done = CliRunner().invoke(main, [str(colours), *OPTIONS, "--max-steps", "2", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "What limits: " in log.text
    assert (tmp_path / "out" / "ladder.json").exists()
