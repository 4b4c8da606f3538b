"""`run_ladder`: trains on data through one more layer at a time, to measure each layer's cost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import statistics
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastrecord import __version__
from fastrecord.train.batches.base import Batch, Batches
from fastrecord.train.batches.open import open_batches, open_on_all_ranks
from fastrecord.train.batches.torch import default_workers
from fastrecord.train.config import DataKind, TrainConfig
from fastrecord.train.distributed import Ranks, start_ranks
from fastrecord.train.engine import draw
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.labels import class_names
from fastrecord.train.learner import Learner
from fastrecord.train.meters import TrainMeter
from fastrecord.train.model import build_model
from fastrecord.train.run_folder import check_folder

_log = logging.getLogger("fastrecord.train")

_KINDS: tuple[DataKind, ...] = ("gpu", "cpu", "queue", "dataset", "real")
_STEPS = 50
_ROUNDS = 5
# Steps before the clock starts in each round: more than a loader prefetches.
_WARM_UP = 4
# If training on real data reaches this share of the speed on constant data, the model limits.
_CLOSE = 0.95

_COSTS: Mapping[DataKind, str] = {
    "cpu": "copying batches to the device",
    "queue": "handing batches from one Python thread to another",
    "dataset": "handing samples from worker processes to the trainer",
    "real": "reading and decoding records",
}


@dataclass(frozen=True, slots=True)
class Rung:
    """Measurements on one kind of data, over all ranks.

    Attributes:
        data: The kind of data.
        layer: Its description.
        images_per_second: Over all ranks.
        step_seconds: Time of an optimizer step: the median of the rounds' means.
        round_step_seconds: The mean of each round, on the slowest rank.
        data_wait: Share of the time spent waiting for batches, in [0, 1], on the rank that waited
            longest.
        above: The kind of data to which this one adds a layer; None for the first.
        layer_seconds: Cost of that layer per step, negative if the step was faster with it; None
            for the first.
    """

    data: DataKind
    layer: str
    images_per_second: float
    step_seconds: float
    round_step_seconds: tuple[float, ...]
    data_wait: float
    above: DataKind | None
    layer_seconds: float | None


@dataclass(frozen=True, slots=True)
class Ladder:
    """All measurements, and their interpretation.

    Attributes:
        rungs: One for each kind of data.
        limit: "model" or "data": what limits the training on real data. "unclear" if the difference
            is within the spread of the rounds on device data.
        headroom: Speed on data that is already on the device, divided by the speed on real data.
        verdict: The same in a sentence.
    """

    rungs: tuple[Rung, ...]
    limit: str
    headroom: float
    verdict: str


def run_ladder(config: TrainConfig, stop: StopSignal | None = None) -> Ladder | None:
    """Train one model on each kind of data in turn, and measure the steps.

    Under torchrun, every process calls it. The kinds take turns in rounds, so that noise on the
    machine affects all alike. The learning rate is 0, nothing is evaluated, and the only output is
    `ladder.json` in `config.folder`.

    Args:
        config: The run. `max_steps` is the number of steps measured on each kind of data, 50 by
            default; `data` is not used.
        stop: Receives the signals; None: installs its own for the duration of this call.

    Returns:
        The measurements. None if a signal came, which ends the run after the current step; nothing
        is written then.

    Raises:
        TrainError: it cannot start or continue; raised on all ranks.
        FastRecordError: a record cannot be read or decoded.
        OSError: the file cannot be written.
    """
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignal()) if stop is None else stop
        with signals.suspended():
            ranks = stack.enter_context(start_ranks(config.device, timeout=config.timeout))
        return _Measurement(config.on_processes(ranks.world_size), ranks, signals).run()


def judge(rungs: Sequence[Rung]) -> Ladder:
    """Determine the limit from the times of the rungs, "gpu" first and "real" last."""
    steps = {rung.data: rung.step_seconds for rung in rungs}
    headroom = steps["real"] / steps["gpu"]
    if headroom <= 1 / _CLOSE:
        verdict = f"the model: real data keep {1 / headroom:.0%} of the speed that data on the device have"
        return Ladder(tuple(rungs), "model", headroom, verdict)
    free = next(rung.round_step_seconds for rung in rungs if rung.data == "gpu")
    if steps["real"] <= max(free):
        spread = f"{1e3 * min(free):.4g} to {1e3 * max(free):.4g} ms"
        verdict = (
            f"unclear: the model's own steps took {spread} from round to round, those on real data "
            f"{1e3 * steps['real']:.4g}, {rungs[-1].data_wait:.0%} of that waiting for batches; measure on a quieter "
            "machine, or more steps (--max-steps)"
        )
        return Ladder(tuple(rungs), "unclear", headroom, verdict)
    # The layers below the real data, in order.
    above = {rung.data: rung for rung in rungs}
    layers = [above["real"]]
    while layers[-1].above is not None and layers[-1].above != "gpu":
        layers.append(above[layers[-1].above])
    dearest = max(layers, key=lambda rung: rung.layer_seconds or 0.0)
    verdict = (
        f"the data path: the model could take {headroom:.2f}x as many images; what costs most is {_COSTS[dearest.data]}"
    )
    return Ladder(tuple(rungs), "data", headroom, verdict)


def table(ladder: Ladder) -> list[str]:
    """Return the lines of a table of the rungs, and of the verdict."""
    width = max(len(rung.layer) for rung in ladder.rungs)
    times = f"{'images/s':>9}  {'ms/step':>9}  {'from - to':>19}  {'wait':>5}"
    lines = [f"{'data':7}  {'what it is':{width}}  {times}  what the layer costs"]
    for rung in ladder.rungs:
        rounds = [1e3 * seconds for seconds in rung.round_step_seconds]
        cost = "" if rung.layer_seconds is None else f"{1e3 * rung.layer_seconds:+.2f} ms over {rung.above}"
        lines.append(
            f"{rung.data:7}  {rung.layer:{width}}  {rung.images_per_second:9.1f}  {1e3 * rung.step_seconds:9.2f}  "
            f"{min(rounds):8.2f} - {max(rounds):8.2f}  "
            f"{rung.data_wait:5.0%}  {cost}".rstrip()
        )
    return [*lines, f"What limits: {ladder.verdict}"]


class _SignalError(Exception):
    """This rank or another received a signal."""


class _Measurement:
    """One ladder on one rank."""

    def __init__(self, config: TrainConfig, ranks: Ranks, signals: StopSignal) -> None:
        self.config, self.ranks, self.signals = dataclasses.replace(config, data="real", val=None), ranks, signals
        ranks.first(lambda: check_folder(config.folder))
        self.dataset, _ = open_on_all_ranks(self.config, ranks)
        torch.manual_seed(config.seed)
        if ranks.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        module = ranks.each(lambda: build_model(config, class_names(self.dataset)))
        self.learner = Learner(module, config, ranks)
        self.meter = TrainMeter(ranks)
        self.steps = config.max_steps or _STEPS
        self.waited = 0.0

    def run(self) -> Ladder | None:
        """Measure, log the table and write the file."""
        rounds = max(1, min(_ROUNDS, self.steps // _WARM_UP))
        self._say(
            f"ladder: {self.config.model}, {self.config.batch_size} x {self.config.accumulate} x "
            f"{self.ranks.world_size} images of {self.config.image_size} pixels a step on {self.ranks.device.type}; "
            f"{self.steps} steps on each kind of data, in {rounds} round{'s' if rounds > 1 else ''}"
        )
        times: dict[DataKind, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
        try:
            # One-time compiling, tuning and allocating is done before the first round begins.
            self._measure("gpu", steps=1)
            for number in range(rounds):
                steps = self.steps // rounds + (number < self.steps % rounds)
                # Each kind begins once, so that none always runs after the same other kind.
                for kind in _KINDS[number:] + _KINDS[:number]:
                    times[kind].append(self._measure(kind, steps=steps))
                told = ", ".join(f"{kind} {1e3 * times[kind][-1][0]:.2f}" for kind in _KINDS)
                self._say(f"round {number + 1} of {rounds}, ms a step: {told}")
        except _SignalError:
            return None
        ladder = judge(self._rungs(times))
        self.ranks.first(lambda: self._write(ladder))
        for line in table(ladder):
            self._say(line)
        return ladder

    def _measure(self, kind: DataKind, *, steps: int) -> tuple[float, float]:
        """Train on a kind of data.

        Returns seconds a step, on the slowest rank, and the largest share of it spent waiting.
        """
        config = dataclasses.replace(self.config, data=kind)
        with ExitStack() as stack:
            batches = self.ranks.each(lambda: open_batches(self.dataset, config, self.ranks, training=True))
            stack.callback(batches.close)
            drawn = stack.enter_context(closing(_endless(batches)))
            for _ in range(max(_WARM_UP, self._workers(kind))):
                self._step(drawn)
            self._wait_for_device()
            self.waited, start = 0.0, time.perf_counter()
            for _ in range(steps):
                self._step(drawn)
            self._wait_for_device()
            seconds = time.perf_counter() - start
        each = torch.zeros(2, self.ranks.world_size, dtype=torch.float64, device=self.ranks.device)
        each[:, self.ranks.rank] = torch.tensor([seconds / steps, self.waited / seconds], dtype=torch.float64)
        slowest, longest = self.ranks.sum(each).amax(1).tolist()
        return slowest, longest

    def _step(self, drawn: Iterator[Batch]) -> None:
        start = time.perf_counter()
        batches, failure = draw(drawn, self.config.accumulate)
        self.waited += time.perf_counter() - start
        if self.ranks.agree(self.signals.number, failure):
            raise _SignalError
        self.learner.step(batches, learning_rate=0.0, meter=self.meter)

    def _wait_for_device(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def _workers(self, kind: DataKind) -> int:
        """Return the number of workers: a DataLoader delivers that many batches close together."""
        if kind == "dataset" or (kind == "real" and self.config.loader == "torch"):
            return default_workers(self.ranks) if self.config.threads is None else self.config.threads
        return 0

    def _rungs(self, times: Mapping[DataKind, Sequence[tuple[float, float]]]) -> list[Rung]:
        images = self.config.batch_size * self.config.accumulate * self.ranks.world_size
        steps = {kind: statistics.median(seconds for seconds, _ in times[kind]) for kind in _KINDS}
        # The native loader's threads write whole batches, without a Python thread or workers in
        # between.
        native = self.config.loader == "native"
        above: dict[DataKind, DataKind] = {"cpu": "gpu", "queue": "cpu", "dataset": "queue"}
        above["real"] = "cpu" if native else "dataset"
        return [
            Rung(
                data=kind,
                layer=self._layer(kind),
                images_per_second=images / steps[kind],
                step_seconds=steps[kind],
                round_step_seconds=tuple(seconds for seconds, _ in times[kind]),
                data_wait=statistics.median(wait for _, wait in times[kind]),
                above=above.get(kind),
                layer_seconds=steps[kind] - steps[above[kind]] if kind in above else None,
            )
            for kind in _KINDS
        ]

    def _layer(self, kind: DataKind) -> str:
        where = self.ranks.device.type
        if kind == "gpu":
            return "constant, on the device" + (" (here: the CPU)" if where == "cpu" else "")
        if kind == "cpu":
            return "constant, copied from pinned memory" if where == "cuda" else "constant, copied in memory"
        if kind == "queue":
            return "the same, through a Python thread's queue"
        workers = self._workers(kind)
        if kind == "dataset":
            return f"constant, through a DataLoader, workers: {workers}"
        return "real, native loader" if self.config.loader == "native" else f"real, DataLoader, workers: {workers}"

    def _write(self, ladder: Ladder) -> None:
        config, device = self.config, self.ranks.device
        about = {
            name: getattr(config, name)
            for name in ("model", "image_size", "batch_size", "accumulate", "augment", "loader", "threads", "amp")
        }
        about |= {"channels_last": config.channels_last, "compile": config.compile, "steps": self.steps}
        about |= {"processes": self.ranks.world_size, "device": device.type}
        about["device_name"] = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        about |= {"fastrecord": __version__, "torch": torch.__version__}
        _write_json(config.folder / "ladder.json", {**about, **dataclasses.asdict(ladder)})

    def _say(self, line: str) -> None:
        if self.ranks.is_first:
            _log.info(line)


def _endless(batches: Batches) -> Generator[Batch]:
    for epoch in itertools.count():
        yield from batches.epoch(epoch)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    _log.info(f"ladder: {path}")
