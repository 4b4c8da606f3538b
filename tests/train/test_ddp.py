"""The trainer in two processes under torchrun, with gloo on the CPU."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastrecord as fr
from fastrecord.train import TrainError, run_ladder, train
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.checkpoint import load_checkpoint
from fastrecord.train.distributed import Ranks, start_ranks
from fastrecord.train.engine import evaluate
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.learner import Learner
from fastrecord.train.meters import Metrics, TrainMeter, read_metrics
from fastrecord.train.model import build_classifier
from tests.support.commands import flip
from tests.support.training import MODEL, losses, read_rest, read_until, running, small_config, write_colours

# Two more processes import torch and train: minutes on busy cores.
pytestmark = [pytest.mark.ddp, pytest.mark.timeout(600)]

ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run_config(folder: Path, **options: Any) -> Any:
    return small_config(folder / "train.frec", folder / "out", val=str(folder / "val.frec"), **options)


def take_steps(ranks: Ranks, *, batch_size: int, accumulate: int) -> tuple[torch.Tensor, Metrics]:
    """Train a module without normalisation three steps on 24 images, shared as a sampler does."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (72, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 5, (72,), generator=generator)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    config = small_config(Path("none"), Path("none"), batch_size=batch_size, accumulate=accumulate)
    learner = Learner(copy.deepcopy(module), config, ranks)
    meter = TrainMeter(ranks)
    for step in range(3):
        mine = torch.arange(24 * step + ranks.rank, 24 * (step + 1), ranks.world_size).view(accumulate, batch_size)
        learner.step([(images[part], labels[part]) for part in mine], learning_rate=0.1, meter=meter)
    meter.collect()
    return torch.cat([value.detach().flatten() for value in learner.module.parameters()]), meter.epoch


def failures(ranks: Ranks) -> list[str]:
    """Let a rank fail in each kind of exchange; return this rank's errors."""

    def only_on(rank: int) -> int:
        if ranks.rank == rank:
            raise FileNotFoundError(2, "gone", "some.frec")
        return ranks.rank

    def agree() -> int:
        return ranks.agree(0, fr.errors.CorruptFileError("record 7") if ranks.rank == 1 else None)

    told = []
    for exchange in (agree, lambda: ranks.each(lambda: only_on(1)), lambda: ranks.first(lambda: only_on(0))):
        try:
            exchange()
        except (TrainError, fr.FastRecordError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def ending(folder: Path, **options: Any) -> str:
    """Train on a file with a damaged record; return this rank's error."""
    try:
        out = options.pop("out", folder / "bad")
        train(small_config(folder / "bad.frec", out, epochs=1, overwrite=True, **options))
    except (TrainError, fr.FastRecordError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def work(folder: Path) -> None:
    """The work of each rank: take fixed steps, train for an epoch, and save the result."""
    with start_ranks("cpu") as ranks:
        told = failures(ranks)
        weights, metrics = take_steps(ranks, batch_size=4, accumulate=3)
        ended = [
            ending(folder, on_error="raise"),
            ending(folder, on_error="skip", max_skipped=0, out=folder / "bounded"),
            ending(folder, on_error="skip"),
        ]
        result = train(run_config(folder, epochs=1, checkpoint_every=2, ema_decay=0.99, ema_steps=1))
        assert result.ema_module is not None
        values = [*result.module.state_dict().values(), *result.ema_module.state_dict().values()]
        ladder = run_ladder(run_config(folder, max_steps=2))
        report = {
            "world_size": ranks.world_size,
            "largest": ranks.agree(2 + 13 * ranks.rank),
            "weights": weights.tolist(),
            "counts": [metrics.loss, metrics.correct1, metrics.count],
            "digest": hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest(),
            "ladder": [rung.step_seconds for rung in ladder.rungs] if ladder else [],
            "val": [[one.correct1, one.count, one.loss] for one in (result.val, result.ema) if one is not None],
        }
        (folder / f"rank{ranks.rank}.json").write_text(json.dumps({"report": report, "told": told, "ended": ended}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files and the output of `work` on two ranks."""
    folder = tmp_path_factory.mktemp("ddp")
    write_colours(folder / "train.frec", 76, seed=0)
    flip(folder / "train.frec", folder / "bad.frec", record=40)
    # Shares of 19 and 18 images: three batches of eight on both ranks, the last ones unequal.
    write_colours(folder / "val.frec", 37, seed=1)
    with running(*TORCHRUN, "-m", "tests.train.test_ddp", folder) as process:
        status, output = read_rest(process)
    assert status == 0, output
    return folder


def report(folder: Path, rank: int) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text())["report"]
    return read


def test_both_ranks_end_with_identical_weights_and_metrics(trained: Path) -> None:
    first, second = report(trained, 0), report(trained, 1)
    assert first == second
    assert first["world_size"] == 2
    assert first["largest"] == 15


def test_a_failure_on_one_rank_is_raised_on_both(trained: Path) -> None:
    first, second = (json.loads((trained / f"rank{rank}.json").read_text())["told"] for rank in range(2))
    assert first[0] == "TrainError: rank 1: record 7"
    assert second[0] == "CorruptFileError: record 7"
    assert first[1] == second[1] == "TrainError: rank 1: [Errno 2] gone: 'some.frec'"
    assert first[2] == second[2] == "TrainError: [Errno 2] gone: 'some.frec'"


def test_a_bad_record_on_one_rank_ends_both_with_its_name_or_is_skipped(trained: Path) -> None:
    both = [json.loads((trained / f"rank{rank}.json").read_text())["ended"] for rank in range(2)]
    # The order decides which rank has the record.
    (raised, other), (bounded, told) = (
        sorted((said[number] for said in both), key=lambda said: said.startswith("TrainError")) for number in (0, 1)
    )
    assert re.match(r"CorruptFileError: .*bad\.frec: record 40, key 'blue/40\.jpg', .*damaged", raised)
    assert re.match(r"(TrainError: rank 1: |TrainError: ).*bad\.frec: record 40, key 'blue/40\.jpg', .*", other)
    assert re.match(r"FastRecordError: 1 of the epoch's first \d+ records .*limit=0 .*'blue/40\.jpg'", bounded)
    assert re.match(r"TrainError: .*1 of the epoch's first \d+ records .*limit=0 .*'blue/40\.jpg'", told)
    (row,) = [row for row in read_metrics(trained / "bounded" / "metrics.jsonl") if row["event"] == "skipped"]
    assert (row["count"], [record["key"] for record in row["records"]]) == (1, ["blue/40.jpg"])
    assert [said[2] for said in both] == ["", ""]
    (row,) = [row for row in read_metrics(trained / "bad" / "metrics.jsonl") if row["event"] == "skipped"]
    # The first records pad the last global batch, which may repeat the record.
    assert (row["of"], row["step"], row["count"]) == ("training", 5, len(row["records"]))
    assert {record["key"] for record in row["records"]} == {"blue/40.jpg"}


def test_two_ranks_climb_the_same_ladder_and_the_first_writes_for_both(trained: Path) -> None:
    # Equal lists: see the first test.
    written = json.loads((trained / "out" / "ladder.json").read_text())
    assert written["processes"] == 2
    assert [rung["step_seconds"] for rung in written["rungs"]] == report(trained, 0)["ladder"]
    for rung in written["rungs"]:
        assert rung["images_per_second"] == pytest.approx(16 / rung["step_seconds"])


def test_two_ranks_take_the_same_steps_as_one_with_the_whole_batch(trained: Path) -> None:
    weights, metrics = take_steps(ALONE, batch_size=24, accumulate=1)
    two = report(trained, 0)
    torch.testing.assert_close(torch.tensor(two["weights"]), weights, rtol=1e-4, atol=1e-5)
    assert two["counts"][0] == pytest.approx(metrics.loss)
    assert two["counts"][1:] == [metrics.correct1, 72]


def test_only_the_first_rank_writes_and_it_counts_the_images_of_both(trained: Path) -> None:
    rows = read_metrics(trained / "out" / "metrics.jsonl")
    # 76 records in global batches of 16, the last one padded.
    assert [(row["event"], row["epoch"], row["step"]) for row in rows] == [
        *(("train", 0, step) for step in range(1, 6)),
        ("val", 0, 5),
    ]
    for row in rows[:5]:
        assert row["images_per_second"] == pytest.approx(16 / row["step_seconds"])
        assert 0 <= row["data_wait"] <= 1
    assert load_checkpoint(trained / "out" / "checkpoints" / "last.pt")["meter"]["epoch"][3] == 80


def test_evaluation_over_uneven_ranks_equals_one_rank_exactly(trained: Path) -> None:
    config = run_config(trained)
    _, val_set = open_datasets(config)
    assert val_set is not None
    learner, average = (
        Learner(build_classifier(MODEL, classes=4, image_size=32), config, ALONE) for _ in ("module", "average")
    )
    state = load_checkpoint(trained / "out" / "checkpoints" / "best.pt")
    learner.load_state_dict(state)
    average.module.load_state_dict(state["ema"])
    batches = open_batches(val_set, config, ALONE, training=False)
    alone = evaluate(learner, batches.epoch(0), ALONE, StopSignal(), average.module.eval())
    assert alone is not None
    assert alone[0].loss != alone[1].loss
    for found, expected in zip(report(trained, 0)["val"], alone, strict=True):
        assert found[:2] == [expected.correct1, 37]
        assert found[2] == pytest.approx(expected.loss, abs=1e-5)


def test_an_interrupted_pair_of_ranks_saves_once_and_goes_on_alone(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments: list[str | Path] = [
        trained / "train.frec",
        "--val",
        trained / "val.frec",
        "--out",
        out,
        "--model",
        MODEL,
        "--threads",
        "1",
    ]
    options = ["--epochs", "9", "--batch-size", "8", "--image-size", "32", "--augment", "none", "--print-freq", "1"]
    with running(*TORCHRUN, "-m", "fastrecord.train", *arguments, *options, "--device", "cpu") as process:
        read_until(process, "Epoch: [0][2/5]")
        # As a terminal does. torchrun passes it on to each rank and its data workers.
        os.killpg(process.pid, signal.SIGINT)
        status, output = read_rest(process)
    assert status != 0
    assert output.count("stopped by SIGINT after step") == 1
    # torchrun's own traceback, but no rank's.
    assert "fastrecord/train" not in "".join(line for line in output.splitlines() if line.lstrip().startswith("File"))
    state = load_checkpoint(out / "checkpoints" / "last.pt")
    step = state["step"]
    assert step >= 2
    config = small_config(
        trained / "train.frec", out, epochs=9, batch_size=16, resume="auto", max_steps=step + 3, threads=1
    )
    result = train(config)
    assert result.step == step + 3
    assert list(losses(out)) == list(range(1, step + 4))


if __name__ == "__main__":
    work(Path(sys.argv[1]))
