"""The trainer on the native loader: batches equal torch's, exact resuming, and its log."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import fastrecord as fr
from fastrecord.loader.stats import LoaderStats
from fastrecord.train import TrainConfig, TrainError, train
from fastrecord.train.__main__ import main
from fastrecord.train.batches.base import Batch
from fastrecord.train.batches.native import NativeBatches
from fastrecord.train.batches.open import open_batches, open_datasets
from fastrecord.train.batches.torch import TorchBatches
from fastrecord.train.config import Augment, LoaderKind
from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import TrainMeter, over_ranks, read_metrics
from tests.support.commands import flip, flip_in
from tests.support.pictures import save
from tests.support.training import (
    CLASSES,
    MODEL,
    losses,
    numbers_of,
    signalled,
    small_config,
    write_colours,
    write_numbered,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"), None)


def epoch_batches(config: TrainConfig, *, training: bool, epoch: int = 0, ranks: Ranks = ALONE) -> list[Batch]:
    train_set, val_set = open_datasets(config)
    dataset = train_set if training else val_set
    assert dataset is not None
    batches = open_batches(dataset, config, ranks, training=training)
    drawn = list(batches.epoch(epoch))
    batches.close()
    return drawn


def test_unfinished_files_and_grey_of_16_bits_are_taken_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.frec"
    grey = save(Image.fromarray(np.full((40, 40), 257 * 200, np.uint16)), "PNG")
    with fr.Writer(path, {"image": fr.image(), "label": "int64"}, metadata={"classes": ["ant"]}) as writer:
        writer.complete = False
        for _ in range(8):
            writer.append({"image": grey, "label": 0})
    config = small_config(path, tmp_path, sixteen_bit="scale", decoder="native")
    with pytest.raises(TrainError, match="allow_incomplete"):
        open_datasets(config)
    ((images, _),) = epoch_batches(dataclasses.replace(config, allow_incomplete=True), training=True)
    assert (images == 200).all()


def test_the_native_loader_is_the_default_and_torch_is_to_be_asked_for(colours: Path, tmp_path: Path) -> None:
    kinds: dict[LoaderKind, type] = {"native": NativeBatches, "torch": TorchBatches}
    assert TrainConfig(train="x").loader == "native"
    for loader, kind in kinds.items():
        config = small_config(colours, tmp_path, loader=loader)
        batches = open_batches(open_datasets(config)[0], config, ALONE, training=True)
        assert type(batches) is kind
        batches.close()


@pytest.mark.parametrize("augment", ["imagenet", "none"])
def test_evaluation_sees_the_same_images_from_both_loaders(augment: Augment, tmp_path: Path) -> None:
    path = write_colours(tmp_path / "train.frec", 21, seed=2)
    config = small_config(path, tmp_path, val=str(path), augment=augment, image_size=28)
    native = epoch_batches(config, training=False)
    other = epoch_batches(dataclasses.replace(config, loader="torch"), training=False)
    assert [len(labels) for _, labels in native] == [8, 8, 5]
    for (images, labels), (expected, expected_labels) in zip(native, other, strict=True):
        assert images.dtype == torch.uint8
        assert images.shape == expected.shape
        assert torch.equal(labels, expected_labels)
        assert (images.int() - expected.int()).abs().float().mean() <= 1.0


def test_training_sees_the_same_records_in_the_same_batches_from_both_loaders(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "train.frec", 300)
    config = small_config(path, tmp_path, image_size=8, batch_size=16, accumulate=2)
    native, other = (
        [numbers_of(images) for images, _ in epoch_batches(chosen, training=True, epoch=3)]
        for chosen in (config, dataclasses.replace(config, loader="torch", threads=0))
    )
    assert native == other
    assert [len(batch) for batch in native] == [16] * 20


def test_augmentation_depends_on_seed_and_epoch_but_not_on_threads(colours: Path, tmp_path: Path) -> None:
    def pixels(epoch: int, **options: Any) -> torch.Tensor:
        config = small_config(colours, tmp_path, augment="imagenet", batch_size=20, **options)
        return torch.cat([images for images, _ in epoch_batches(config, training=True, epoch=epoch)])

    before = torch.get_rng_state()
    here = pixels(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(here, pixels(1, threads=2))
    assert not torch.equal(here, pixels(2))
    assert not torch.equal(here, pixels(1, seed=1))


def test_the_passes_of_a_step_are_parts_of_one_batch_and_not_copies(colours: Path, tmp_path: Path) -> None:
    config = small_config(colours, tmp_path, batch_size=8, accumulate=2)
    whole = epoch_batches(dataclasses.replace(config, batch_size=16, accumulate=1), training=True)
    passes = epoch_batches(config, training=True)
    assert len(passes) == 2 * len(whole)
    for number, (images, labels) in enumerate(whole):
        (first, _), (second, _) = passes[2 * number : 2 * number + 2]
        assert torch.equal(torch.cat([first, second]), images)
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        assert torch.equal(torch.cat([part for _, part in passes[2 * number : 2 * number + 2]]), labels)


def test_a_shuffle_by_blocks_is_another_order_and_goes_on_in_mid_epoch(colours: Path, tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "train.frec", 300)
    config = small_config(path, tmp_path, image_size=8, batch_size=100)
    full, blocks = (
        [number for images, _ in epoch_batches(chosen, training=True) for number in numbers_of(images)]
        for chosen in (config, dataclasses.replace(config, shuffle="blocks"))
    )
    assert sorted(full) == sorted(blocks) == list(range(300))
    assert full != blocks
    options: dict[str, Any] = {"shuffle": "blocks", "augment": "imagenet", "epochs": 1}
    train(small_config(colours, tmp_path / "whole", **options))
    train(small_config(colours, tmp_path / "parts", **options, max_steps=4))
    with pytest.raises(TrainError, match="was made with shuffle 'blocks', not 'full'"):
        train(small_config(colours, tmp_path / "parts", resume="auto"))
    train(small_config(colours, tmp_path / "parts", **options, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_the_figures_of_two_loaders_add_up_over_ranks() -> None:
    one = LoaderStats(images=1, bytes_read=2**40 + 1, seconds=2.0, threads=2, decode_seconds=3.0, wait_seconds=1.0)
    both = over_ranks(one, [2.0 * value for value in dataclasses.astuple(one)], 2)
    assert (both.images, both.bytes_read, both.threads) == (2, 2**41 + 2, 4)
    assert both.images_per_second == 1.0
    assert both.decode_share == one.decode_share == 0.75
    assert both.wait_share == 0.5


def test_a_window_tells_what_the_loader_did_in_it_alone() -> None:
    done = [LoaderStats(images=10 * step, bytes_read=2**40 * step + 1, threads=2) for step in range(4)]
    meter = TrainMeter(ALONE, lambda: done[0])
    for expected in (10, 20):
        done.pop(0)
        meter.collect()
        assert meter.window.loader is not None
        assert meter.window.loader.images == expected
        assert meter.window.loader.bytes_read == 2**40 * expected // 10
    meter.start_window()
    done.pop(0)
    meter.collect()
    assert meter.window.loader is not None
    assert meter.window.loader.images == 10


def test_no_python_runs_for_a_record_in_training_and_in_evaluation(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    val = write_colours(tmp_path / "val.frec", 20, seed=1, classes=CLASSES[::-1])

    def refuse(*_: object) -> None:
        raise AssertionError("a record was read by Python")

    for name in ("__getitem__", "__getitems__", "_samples", "_transformed"):
        monkeypatch.setattr(fr.FastRecordDataset, name, refuse)
    config = small_config(colours, tmp_path / "out", val=str(val), max_steps=2)
    assert open_datasets(config)[1].target_transform is None  # type: ignore[union-attr]  # there is one
    result = train(config)
    assert result.val is not None
    assert result.val.count == 20


def test_a_run_killed_in_mid_epoch_goes_on_bit_for_bit(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    options: dict[str, Any] = {"augment": "imagenet", "lr": 0.5, "accumulate": 2, "batch_size": 4, "epochs": 1}
    options["threads"] = 2
    whole = train(small_config(colours, tmp_path / "whole", **options))
    with signalled("[7/10]", signal.SIGTERM):
        stopped = train(small_config(colours, tmp_path / "parts", **options))
    assert (stopped.signal, stopped.step) == (signal.SIGTERM, 7)
    result = train(small_config(colours, tmp_path / "parts", **{**options, "threads": 1}, resume="auto"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 10
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, result.module.state_dict()[name]), name


@pytest.mark.gpu
def test_on_a_gpu_batches_arrive_on_it_and_are_trained_on(colours: Path, held_out: Path, tmp_path: Path) -> None:
    ranks = Ranks(0, 1, 0, 1, torch.device("cuda", 0), None)
    config = small_config(colours, tmp_path, val=str(held_out), augment="imagenet", batch_size=16, device="cuda")
    here = epoch_batches(dataclasses.replace(config, device="cpu"), training=True)
    for (images, labels), (expected, expected_labels) in zip(
        epoch_batches(config, training=True, ranks=ranks), here, strict=True
    ):
        assert images.device == labels.device == ranks.device
        assert torch.equal(images.cpu(), expected)
        assert torch.equal(labels.cpu(), expected_labels)
    result = train(dataclasses.replace(config, amp="bf16", channels_last=True))
    assert result.val is not None
    assert result.val.count == 37
    assert np.isfinite(list(losses(tmp_path).values())).all()


# Log lines


def test_the_log_line_and_the_metrics_say_what_the_loader_did(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    train(small_config(colours, tmp_path, epochs=1, print_freq=4))
    share = r"\d+%"
    assert re.search(
        rf"LR \S+  Load \d+\.\d MB/s, read {share} decode {share} resize {share} idle {share}$",
        caplog.text,
        re.MULTILINE,
    )
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [4, 8, 10]
    for row in rows:
        shares = [row[f"{name}_share"] for name in ("read", "decode", "resize", "idle")]
        assert all(0 <= value <= 1 for value in shares)
        assert sum(shares) == pytest.approx(1)
        assert row["loader_images_per_second"] >= 0
        assert row["loader_mb_per_second"] >= 0
        assert row["skipped"] == 0
    assert rows[0]["decode_share"] > 0
    assert rows[0]["loader_mb_per_second"] > 0


def test_the_torch_loader_logs_no_figures_that_it_does_not_measure(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    train(small_config(colours, tmp_path, loader="torch", threads=0, max_steps=1))
    assert "Load" not in caplog.text
    assert "decode_share" not in read_metrics(tmp_path / "metrics.jsonl")[0]


def test_skipped_records_are_counted_named_and_listed_also_through_a_resume(
    colours: Path, held_out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastrecord.train")
    bad, bad_val = tmp_path / "bad.frec", tmp_path / "bad_val.frec"
    flip(colours, tmp_path / "one.frec", record=40)
    flip(tmp_path / "one.frec", bad, record=11)
    flip(held_out, bad_val, record=7)
    options: dict[str, Any] = {"val": str(bad_val), "epochs": 1}
    with pytest.raises(fr.errors.CorruptFileError, match=r"bad\.frec: record (40|11), .*'(blue/40|red/11)\.jpg'"):
        train(small_config(bad, tmp_path / "raise", **options))
    caplog.clear()
    options["on_error"] = "skip"
    result = train(small_config(bad, tmp_path / "whole", **options))
    assert result.val is not None
    assert (result.train.count, result.val.count) == (78, 36)
    named = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    files = [re.match(r"skipped: .*/(\w+)\.frec: record (\d+), ", line) for line in named]
    assert sorted(match.groups() for match in files if match) == [("bad", "11"), ("bad", "40"), ("bad_val", "7")]
    # Each part knows the records that earlier parts skipped.
    for step in (3, 7, 10):
        caplog.clear()
        train(small_config(bad, tmp_path / "parts", **options, resume="auto", max_steps=step))
    assert re.search(r"Skipped: \[0\] 2 records of training: '[a-z]+/\d+\.jpg', '[a-z]+/\d+\.jpg' \(", caplog.text)
    listed = {}
    for name in ("whole", "parts"):
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        assert sum(row["skipped"] for row in rows if row["event"] == "train") == 2
        last = [row for row in rows if row["event"] == "skipped" and row["step"] == 10]
        listed[name] = [(row["of"], row["epoch"], row["count"], row["records"]) for row in last]
    assert listed["parts"] == listed["whole"]
    (of, epoch, count, records), (val_of, _, val_count, (val_record,)) = listed["whole"]
    assert (of, epoch, count, val_of, val_count) == ("training", 0, 2, "evaluation", 1)
    assert {record["key"] for record in records} == {"blue/40.jpg", "red/11.jpg"}
    assert (val_record["path"], val_record["record"], val_record["key"]) == (str(bad_val), 7, "red/7.jpg")
    assert "the payload is damaged" in val_record["reason"]


def test_a_run_that_ends_by_an_error_lists_what_it_has_skipped_in_that_epoch(
    colours: Path, held_out: Path, tmp_path: Path
) -> None:
    flip(colours, tmp_path / "one.frec", record=40)
    flip(tmp_path / "one.frec", tmp_path / "bad.frec", record=11)
    flip(held_out, tmp_path / "bad_val.frec", record=7)
    config = small_config(tmp_path / "bad.frec", tmp_path / "out", epochs=1, on_error="skip", max_skipped=1)
    val = dataclasses.replace(config, train=str(colours), val=str(tmp_path / "bad_val.frec"), max_skipped=0)
    for of, chosen, keys in (("training", config, {"blue/40.jpg", "red/11.jpg"}), ("evaluation", val, {"red/7.jpg"})):
        with pytest.raises(fr.FastRecordError, match="--max-skipped"):
            train(dataclasses.replace(chosen, overwrite=True))
        (row,) = [row for row in read_metrics(tmp_path / "out" / "metrics.jsonl") if row["event"] == "skipped"]
        assert (row["of"], row["epoch"], row["count"]) == (of, 0, len(keys))
        assert {record["key"] for record in row["records"]} == keys
        assert row["step"] == 10 if of == "evaluation" else row["step"] <= 10
    # max_skipped=0 is a number; 0.0 is a share. The error names the way to find all bad records.
    for most in (0, 0.0):
        with pytest.raises(fr.FastRecordError, match=rf"^1 of the epoch's first \d+ .*limit={most} .*--deep"):
            train(dataclasses.replace(config, max_skipped=most, overwrite=True))
    # A resumed run first reports all of them, once.
    options = {"overwrite": True, "checkpoint_every": 1}
    with pytest.raises(fr.FastRecordError, match="--max-skipped"):
        train(dataclasses.replace(config, **options))  # type: ignore[arg-type]  # each fits its field
    train(dataclasses.replace(config, max_skipped=None, resume="auto"))
    rows = [row for row in read_metrics(tmp_path / "out" / "metrics.jsonl") if row["event"] == "skipped"]
    assert [(row["step"], row["count"]) for row in rows] == [(10, 2)]


def test_a_step_with_too_few_records_left_ends_the_run(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "bad.frec", 4)
    with fr.Reader(path) as reader:
        images = [bytes(reader[record]["image"]) for record in range(3)]
    data = path.read_bytes()
    for image in images:
        data = data.replace(image[-30:], bytes(30))
    path.write_bytes(data)
    config = small_config(path, tmp_path / "out", model="squeezenet1_1", batch_size=2, accumulate=2, on_error="skip")
    with pytest.raises(TrainError, match=r"only 1 of the 4 records of a step could be decoded"):
        train(config)


# Threads


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def test_no_thread_is_left_after_a_run_an_error_and_a_signal(colours: Path, held_out: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"val": str(held_out), "threads": 2, "epochs": 1}
    train(small_config(colours, tmp_path / "first", **options, max_steps=1))
    before, python = thread_count(), threading.active_count()
    bad = tmp_path / "bad.frec"
    flip(colours, bad, record=40)
    with pytest.raises(fr.errors.CorruptFileError):
        train(small_config(bad, tmp_path / "bad", **options))
    with signalled("[2/10]", signal.SIGTERM):
        assert train(small_config(colours, tmp_path / "stopped", **options)).signal == signal.SIGTERM
    assert (thread_count(), threading.active_count()) == (before, python)


@contextmanager
def own_logging() -> Iterator[None]:
    """Logging as in a new program, without pytest's handlers; restored afterwards."""
    root, logger = logging.getLogger(), logging.getLogger("fastrecord.train")
    before = root.handlers, root.level, logger.level
    root.handlers = []
    yield
    root.handlers = before[0]
    root.setLevel(before[1])
    logger.setLevel(before[2])


def test_names_in_a_file_steer_no_terminal_by_what_the_command_prints(colours: Path, tmp_path: Path) -> None:
    evil = "i\x1b[31mm"
    good, bad = tmp_path / "good.frec", tmp_path / "bad.frec"
    with (
        fr.Reader(colours) as reader,
        fr.Writer(good, fr.Schema({evil: fr.image(), "label": "int64"}), metadata={"classes": list(CLASSES)}) as writer,
    ):
        for record in range(16):
            image = bytes(reader[record]["image"])
            writer.append({evil: image, "label": record % len(CLASSES)})
            if record == 5:
                damaged = image
    flip_in(good, damaged, bad)
    options = "--epochs 1 -b 8 --image-size 32 --augment none --threads 1 --device cpu --on-error skip --max-skipped 0"
    arguments = [str(bad), "--model", MODEL, "--out", str(tmp_path / "out"), *options.split()]
    with own_logging():
        result = CliRunner().invoke(main, arguments)  # does not raise
    assert result.exit_code == 1, result.output
    where = f"{bad}: record 5, field i\\x1b[31mm: stored CRC"
    assert f"\nskipped: {where}" in result.stdout
    assert re.search(rf"^Error: .*{re.escape(where)}", result.stderr)
    assert all(line.isprintable() for line in result.output.split("\n"))
