"""`train`: the run: epochs of steps, evaluation, checkpoints, and its end."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fastrecord import FastRecordError, __version__
from fastrecord.train.average import Average
from fastrecord.train.batches.base import Batch, Batches, derive_seed
from fastrecord.train.batches.open import open_batches, open_on_all_ranks
from fastrecord.train.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from fastrecord.train.config import TrainConfig, TrainError, one_line
from fastrecord.train.distributed import Ranks, start_ranks
from fastrecord.train.files import remove_leftovers
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.labels import class_names
from fastrecord.train.learner import Learner
from fastrecord.train.meters import (
    Metrics,
    MetricsFile,
    TrainMeter,
    correct_guesses,
    ema_line,
    loader_row,
    train_line,
    val_line,
)
from fastrecord.train.model import build_model
from fastrecord.train.plot import plot_metrics
from fastrecord.train.run_folder import check_folder, hold_folder
from fastrecord.train.schedule import LearningRate
from fastrecord.train.settings_file import changed, write_settings
from fastrecord.train.skips import Skips

_log = logging.getLogger("fastrecord.train")

# Losses are summed as integers of this resolution: the sum does not depend on the order, so not on
# the ranks.
_LOSS_UNIT = 2.0**-20
_LOSS_LIMIT = 2.0**20  # per image; keeps the sum over 8 million images within 64 bits
# Required entries of a checkpoint, and settings that a resumed run must share.
_NEEDED = (
    *("config", "classes", "step", "epoch", "done", "best_error1"),
    *("meter", "skips", "batches", "model", "optimizer", "scaler"),
)
_SHARED = ("model", "seed", "data", "shuffle", "repeated_augmentation")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        step: Optimizer steps taken since the start of the run.
        epoch: Whole epochs trained.
        train: Metrics of the last epoch trained, over all ranks.
        val: Metrics of the last evaluation; None if there was none.
        ema: The same of the average of the weights; None without one.
        best_error1: Lowest error of an evaluation, in percent, with an average of the weights that
            one's; None if there was none.
        checkpoint: The newest checkpoint; None if nothing was trained.
        signal: The signal that ended the run, or 0.
        module: The trained model, on this rank's device.
        ema_module: The model with the average of the weights, in evaluation mode; None without one.
    """

    step: int
    epoch: int
    train: Metrics
    val: Metrics | None
    ema: Metrics | None
    best_error1: float | None
    checkpoint: Path | None
    signal: int
    module: nn.Module
    ema_module: nn.Module | None


def train(config: TrainConfig, stop: StopSignal | None = None) -> Result:
    """Train a classifier; under torchrun, every process calls it with the same arguments.

    SIGINT, SIGTERM and SIGHUP end the run after the current step, with a checkpoint. The logger
    "fastrecord.train" of rank 0 reports progress.

    Args:
        config: The run.
        stop: Receives the signals; None: installs its own for the duration of this call.

    Raises:
        TrainError: the run cannot start or continue; raised on all ranks.
        FastRecordError: a record cannot be read or decoded.
        OSError: a file cannot be written.
    """
    with ExitStack() as stack:
        return _Run(config, *start(config, stop, stack), stack).run()


def start(config: TrainConfig, stop: StopSignal | None, stack: ExitStack) -> tuple[Ranks, StopSignal]:
    """Join the other ranks until `stack` is closed; signals act at once meanwhile.

    Raises:
        TrainError: as `start_ranks`.
    """
    signals = stack.enter_context(StopSignal()) if stop is None else stop
    with signals.suspended():
        ranks = stack.enter_context(start_ranks(config.device, parallel=config.parallel, timeout=config.timeout))
    if ranks.device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    return ranks, signals


def draw(batches: Iterator[Batch], count: int) -> tuple[list[Batch], Exception | None]:
    """Draw up to `count` batches; return them and the error that stopped it, if any.

    The error is returned because a rank must not raise it alone.
    """
    try:
        return list(itertools.islice(batches, count)), None
    except (FastRecordError, OSError, TrainError) as error:
        return [], error
    except RuntimeError as error:
        # Raised by a DataLoader when a worker died.
        failure = TrainError(one_line(error))
        failure.__cause__ = error
        return [], failure


def evaluate(
    learner: Learner, batches: Iterator[Batch], ranks: Ranks, signals: StopSignal, *others: nn.Module
) -> list[Metrics] | None:
    """Evaluate on the batches of all ranks, which may have different numbers of batches.

    The ranks exchange only one sum. The sums do not depend on how the images are divided among the
    ranks.

    Args:
        learner: The model; rank 0's running statistics are used on all ranks.
        batches: Batches of this rank.
        ranks: All ranks; every one must call this.
        signals: A signal ends the loop early.
        others: Further models, in evaluation mode, for the same batches.

    Returns:
        Metrics over all ranks, of the learner's model and of each other; the loss is the cross entropy
        without label smoothing. None if a signal came.

    Raises:
        TrainError, FastRecordError: a batch could not be read, on another rank or on this one.
    """
    for module in (learner.module, *others):
        ranks.copy_from_first(module.buffers())
    # Sums of each model: loss units, three counts of images, and the number of images whose loss is
    # not finite.
    totals = torch.zeros(1 + len(others), 5, dtype=torch.int64, device=ranks.device)
    failure: Exception | None = None
    learner.module.eval()
    while not signals.number:
        drawn, failure = draw(batches, 1)
        if not drawn:
            break
        images, labels = drawn[0]
        labels = labels.to(ranks.device, non_blocking=True)
        for total, other in zip(totals, (None, *others), strict=True):
            logits = learner.predict(images, other)
            losses = functional.cross_entropy(logits, labels, reduction="none").double()
            finite = losses.isfinite()
            units = losses.where(finite, losses.new_zeros(())).clamp(max=_LOSS_LIMIT) / _LOSS_UNIT
            correct1, correct5 = correct_guesses(logits, labels)
            count = torch.full_like(correct1, len(labels))
            total += torch.stack([units.round().long().sum(), correct1, correct5, count, (~finite).sum()])
    learner.module.train()
    if ranks.agree(signals.number, failure):
        return None
    return [
        Metrics(math.nan if broken else units * _LOSS_UNIT, *counts)
        for units, *counts, broken in ranks.sum(totals).tolist()
    ]


class _Run:
    """One run on one rank.

    `step` counts the optimizer steps of the whole run, `done` the steps of the current epoch,
    `epoch` the completed epochs.
    """

    def __init__(self, given: TrainConfig, ranks: Ranks, signals: StopSignal, stack: ExitStack) -> None:
        config = given.on_processes(ranks.world_size)
        self.config, self.ranks, self.signals = config, ranks, signals
        self.step = self.epoch = self.done = 0
        self.val: Metrics | None = None
        self.ema: Metrics | None = None
        self.best_error1: float | None = None
        self.checkpoint: Path | None = None
        ranks.first(lambda: check_folder(config.folder))
        train_set, val_set = open_on_all_ranks(config, ranks)
        self.classes = class_names(train_set)
        self.snapshots = train_set.snapshots
        self.batches: Batches = ranks.each(lambda: open_batches(train_set, config, ranks, training=True))
        stack.callback(self.batches.close)
        self.val_batches: Batches | None = None
        self.val_records = 0
        if val_set is not None:
            self.val_batches = ranks.each(lambda: open_batches(val_set, config, ranks, training=False))
            self.val_records = len(val_set)
            stack.callback(self.val_batches.close)
        self.steps_per_epoch = len(self.batches)
        global_batch_size = config.batch_size * config.accumulate * ranks.world_size
        self.learning_rate = LearningRate(config, global_batch_size, self.steps_per_epoch)
        torch.manual_seed(config.seed)
        self.learner = Learner(ranks.each(lambda: build_model(config, self.classes)), config, ranks)
        self.average: Average | None = None
        if config.ema_decay:
            warmup_steps = self.learning_rate.warmup_steps
            self.average = Average(
                self.learner.module, config, global_batch_size=global_batch_size, warmup_steps=warmup_steps
            )
        self.meter = TrainMeter(ranks, self.batches.stats)
        self.skips = Skips(ranks, self.batches, "training")
        found = ranks.first(lambda: _claim_folder(config, stack))
        if found is not None:
            self._resume(ranks.first(lambda: load_checkpoint(found)), found)
        self.metrics: MetricsFile | None = None
        ranks.first(lambda: self._open_metrics(stack, keep_steps=None if found is None else self.step))
        ranks.first(lambda: _write_config(given, ranks.world_size))
        self._say(f"settings: {', '.join(f'{key} {value}' for key, value in changed(given).items())}")
        self._say(
            f"{config.model}, {len(self.classes)} classes: {len(train_set)} records to train on, "
            f"{self.val_records} to evaluate on; "
            f"{ranks.world_size} process{'es' if ranks.world_size > 1 else ''} on {ranks.device.type}"
            f"{f', batches divided among {len(self.learner.gpus)} GPUs' if self.learner.gpus else ''}; "
            f"global batch {global_batch_size} = {config.batch_size} x {config.accumulate} x {ranks.world_size}; "
            f"{config.epochs} epochs of {self.steps_per_epoch} steps; peak learning rate {self.learning_rate.peak:.5g}"
        )
        if not train_set.classes:
            self._say(
                f"{train_set.root} names no classes: {len(self.classes)} are taken from its labels, 0 to "
                f"{len(self.classes) - 1}; fr.files.set_metadata(path, classes=[...]) names them"
            )
        if len(self.classes) == 1:
            self._say("all records are of one class: there is nothing to learn")
        if config.data != "real":
            self._say(f"--data {config.data}: every batch is the same noise; nothing is learnt, nothing is evaluated")
        if found is not None:
            self._say(f"resumed from {found}: epoch {self.epoch}, {self.done} of {self.steps_per_epoch} steps done")

    def run(self) -> Result:
        """Train until the last epoch or step, or until a signal comes."""
        signal = 0
        if self.epoch >= self.config.epochs or self._at_max_steps():
            self._say(f"nothing is left to train: {self.epoch} of {self.config.epochs} epochs, {self.step} steps done")
        while self.epoch < self.config.epochs and not self._at_max_steps() and not signal:
            signal = self._train_epoch() or self._evaluate_epoch()
        if self.ranks.is_first and not signal:
            plot_metrics(self.config.folder / "metrics.jsonl", self.config.folder / "training.png")
        return Result(
            step=self.step,
            epoch=self.epoch,
            train=self.meter.epoch,
            val=self.val,
            ema=self.ema,
            best_error1=self.best_error1,
            checkpoint=self.checkpoint,
            signal=signal,
            module=self.learner.module,
            ema_module=None if self.average is None else self.average.module,
        )

    def _train_epoch(self) -> int:
        """Train the rest of the current epoch; return the signal that stopped it, or 0."""
        if self.done == 0:
            self.meter.start_epoch()
            self.skips.start()
        self.meter.restart_clock()
        batches = self.meter.timed(self.batches.epoch(self.epoch)) if self.done < self.steps_per_epoch else iter(())
        while self.done < self.steps_per_epoch and not self._at_max_steps():
            drawn, failure = draw(batches, self.config.accumulate)
            # All ranks must stop at the same step, although a signal reaches them at different
            # times.
            with self._skips_told(self.skips, step=self.step + 1):
                signal = self.ranks.agree(self.signals.number, failure)
            if signal:
                if self.step:
                    self._save("last")
                return signal
            self._seed_step()
            learning_rate = self.learning_rate(self.step)
            self.learner.step(drawn, learning_rate=learning_rate, meter=self.meter)
            self.step += 1
            self.done += 1
            if self.average is not None:
                self.average.follow(self.learner.module, self.step)
            last = self.done == self.steps_per_epoch or self._at_max_steps()
            if self.done % self.config.print_freq == 0 or last:
                self._report(learning_rate)
            if self.config.checkpoint_every and self.step % self.config.checkpoint_every == 0 and not last:
                self._save("last")
            if self.done == self.steps_per_epoch:
                self.skips.collect()
                self._report_skips(self.skips)
        return 0

    def _evaluate_epoch(self) -> int:
        """Evaluate, and write the checkpoint that ends the epoch or the run.

        Returns the signal that came, or 0.
        """
        improved = False
        if self.val_batches is not None:
            start = time.perf_counter()
            skips = Skips(self.ranks, self.val_batches, "evaluation")
            others = () if self.average is None else (self.average.module,)
            with self._skips_told(skips, step=self.step):
                found = evaluate(self.learner, self.val_batches.epoch(0), self.ranks, self.signals, *others)
            if found is None:
                self._save("last")
                return self.ranks.agree(self.signals.number)
            seconds, metrics, judged = time.perf_counter() - start, found[0], found[-1]
            self._say(val_line(self.epoch, metrics, seconds, skipped=self.val_records - metrics.count))
            more: dict[str, float] = {}
            if self.average is not None:
                self.ema = judged
                self._say(ema_line(self.epoch, judged))
                more = {"ema_loss": judged.loss, "ema_error1": judged.error1, "ema_error5": judged.error5}
            counts = {"correct1": metrics.correct1, "correct5": metrics.correct5, "count": metrics.count}
            self._record("val", metrics, **counts, images_per_second=metrics.count / seconds, **more)
            skips.collect()
            self._report_skips(skips)
            self.val = metrics
            improved = self.best_error1 is None or judged.error1 < self.best_error1
            self.best_error1 = judged.error1 if improved else self.best_error1
        if self.done == self.steps_per_epoch:
            self.epoch, self.done = self.epoch + 1, 0
        # In this order: a run killed in between evaluates once more, and then replaces the best one
        # again.
        if improved:
            self._save("best")
        self._save("last")
        return 0

    @contextmanager
    def _skips_told(self, skips: Skips, *, step: int) -> Iterator[None]:
        """Report the skipped records if the block fails with an error that all ranks raise here.

        A run resumed from an earlier checkpoint than `step` reports all of them again.
        """
        try:
            yield
        except (TrainError, FastRecordError, OSError):
            skips.collect()
            with suppress(OSError):  # the original error matters more
                skips.report(self.metrics, epoch=self.epoch, step=step)
            raise

    def _at_max_steps(self) -> bool:
        return self.config.max_steps is not None and self.step >= self.config.max_steps

    def _seed_step(self) -> None:
        """Make dropout and similar draws a function of seed, step and rank, also after a resume."""
        seed = derive_seed(self.config.seed, self.step, self.ranks.rank)
        torch.default_generator.manual_seed(seed)
        if self.ranks.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        for gpu in self.learner.gpus[1:]:
            torch.cuda.default_generators[gpu].manual_seed(derive_seed(self.config.seed, self.step, gpu))

    def _collect(self) -> None:
        self.meter.collect()
        if not math.isfinite(self.meter.epoch.loss_sum):
            newest = f"the newest checkpoint is {self.checkpoint}"
            if self.checkpoint is None:
                newest = "no checkpoint is written yet"
            raise TrainError(
                f"the loss is no longer finite at epoch {self.epoch}, step {self.step} (looked at every "
                f"{self.config.print_freq} steps): try a lower --lr (the learning rate is "
                f"{self.learning_rate(self.step - 1):.5g} now), a longer --warmup-epochs"
                f"{'' if self.config.amp == 'off' else ', or --amp off'}; {newest}"
            )

    def _report(self, learning_rate: float) -> None:
        self._collect()
        window = self.meter.window
        self._say(train_line(self.epoch, self.done, self.steps_per_epoch, window, self.meter.epoch, learning_rate))
        self._record(
            "train",
            window.metrics,
            lr=learning_rate,
            images_per_second=window.images_per_second,
            data_wait=window.data_wait,
            step_seconds=window.seconds / window.steps,
            **loader_row(window.loader),
        )
        self.meter.start_window()

    def _report_skips(self, skips: Skips) -> None:
        self.ranks.first(lambda: skips.report(self.metrics, epoch=self.epoch, step=self.step))

    def _record(self, event: str, metrics: Metrics, **more: float) -> None:
        means = {"loss": metrics.loss, "error1": metrics.error1, "error5": metrics.error5}
        row = {"event": event, "epoch": self.epoch, "step": self.step, **means, **more}
        # A full disk ends all ranks, not only this one.
        self.ranks.first(lambda: self.metrics.write(row) if self.metrics is not None else None)

    def _say(self, line: str) -> None:
        if self.ranks.is_first:
            _log.info(line)

    def _save(self, name: str) -> None:
        self._collect()
        self.skips.collect()
        path = self.config.folder / "checkpoints" / f"{name}.pt"
        self.ranks.first(lambda: save_checkpoint(self._state(), path))
        if name == "last":
            self.checkpoint = path
        self.meter.restart_clock()

    def _state(self) -> dict[str, Any]:
        return {
            "config": {name: getattr(self.config, name) for name in _SHARED},
            "classes": list(self.classes),
            "snapshots": self.snapshots,
            "step": self.step,
            "epoch": self.epoch,
            "done": self.done,
            "best_error1": self.best_error1,
            "meter": self.meter.state_dict(),
            "skips": self.skips.state_dict(),
            "batches": self.batches.state_dict(epoch=self.epoch, steps_done=self.done),
            **self.learner.state_dict(),
            **({} if self.average is None else {"ema": self.average.module.state_dict()}),
        }

    def _resume(self, state: dict[str, Any], path: Path) -> None:
        absent = [name for name in _NEEDED if name not in state]
        if absent:
            raise TrainError(f"{path}: a checkpoint without {', '.join(absent)} cannot be resumed")
        then = {"repeated_augmentation": 1, **state["config"], "classes": state["classes"]}
        ours = {name: getattr(self.config, name) for name in _SHARED} | {"classes": list(self.classes)}
        if then["classes"] == [str(number) for number in range(len(self.classes))]:
            # Its files did not name classes.
            then["classes"] = ours["classes"]
        for name, value in ours.items():
            if then[name] != value:
                raise TrainError(
                    f"{path} was made with {name} {then[name]!r:.200}, not {value!r:.200}: it cannot be resumed so; "
                    "train into another folder (--out), or replace that run (--overwrite, without --resume)"
                )
        self.ranks.each(lambda: self.batches.load_state_dict(state["batches"], steps_done=state["done"]))
        try:
            self.learner.load_state_dict(state)
        except ValueError as error:
            # Raised on all ranks.
            raise TrainError(f"{path} cannot be resumed so: {error}") from error
        if self.average is not None:
            # A run that had none begins it with its weights.
            self.average.load_state_dict(state.get("ema", state["model"]))
        self.meter.load_state_dict(state["meter"])
        self.skips.load_state_dict(state["skips"])
        self.step, self.epoch, self.done = state["step"], state["epoch"], state["done"]
        self.best_error1, self.checkpoint = state["best_error1"], path

    def _open_metrics(self, stack: ExitStack, keep_steps: int | None) -> None:
        self.metrics = stack.enter_context(MetricsFile(self.config.folder / "metrics.jsonl", keep_steps=keep_steps))


def _write_config(config: TrainConfig, processes: int) -> None:
    """Write the settings of a run into its folder, as a file for `--config`."""
    count = f"{processes} process{'es' if processes > 1 else ''}"
    comment = (
        f"The settings of this run of fastrecord {__version__}, on {count} since its last start.\n"
        f"Repeat it: torchrun --nproc-per-node {processes} -m fastrecord.train --config THIS_FILE --out FOLDER"
    )
    # `resume` and `overwrite` are about the folder, not about the run.
    write_settings(config.folder / "config.toml", config, leave_out=("resume", "overwrite"), comment=comment)


def _claim_folder(config: TrainConfig, stack: ExitStack) -> Path | None:
    """Create the run's folder and return the checkpoint to start from; refuse to overwrite a run.

    The folder is locked until `stack` is closed.
    """
    folder = config.folder
    stack.enter_context(hold_folder(folder))
    found = find_checkpoint(config.resume, folder)
    newest = folder / "checkpoints" / "last.pt"
    if config.resume == "auto" and found not in (None, newest) and newest.exists():
        _log.warning(f"{newest} cannot be read or is damaged: the run goes back to {found}")
    if found is None:
        kept = [folder / "checkpoints" / "last.pt", folder / "checkpoints" / "best.pt", folder / "training.png"]
        there = [path for path in (folder / "metrics.jsonl", *kept) if path.exists()]
        # A run that ended before its first checkpoint starts anew.
        begun = config.resume == "auto" and not any(path.suffix == ".pt" for path in there)
        if there and not config.overwrite and not begun:
            raise TrainError(
                f"{folder} already holds a run ({there[0].name}): continue it (--resume auto), replace it "
                "(--overwrite), or choose another --out"
            )
        for path in there:
            path.unlink()
    (folder / "checkpoints").mkdir(exist_ok=True)
    remove_leftovers(folder)
    return found
