"""`run_ladder`: trains on data through one more layer at a time, to measure each layer's cost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import statistics
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from fastrecord import FastRecordDataset, __version__
from fastrecord.train.batches.base import Batch, Batches
from fastrecord.train.batches.open import open_batches, open_on_all_ranks
from fastrecord.train.batches.torch import default_workers
from fastrecord.train.config import TrainConfig
from fastrecord.train.distributed import Ranks
from fastrecord.train.engine import draw, start
from fastrecord.train.files import replace_file
from fastrecord.train.interrupt import StopSignal
from fastrecord.train.labels import class_names
from fastrecord.train.learner import Learner
from fastrecord.train.meters import TrainMeter
from fastrecord.train.model import build_model
from fastrecord.train.run_folder import check_folder

_log = logging.getLogger("fastrecord.train")

# Constant batches, each kind with one more layer; then the records, by either loader.
RungKind = Literal["gpu", "cpu", "dataset", "native", "torch"]

# The rung that each one adds a layer to. The native loader's threads write whole batches, without
# workers in between.
_ABOVE: Mapping[RungKind, RungKind] = {"cpu": "gpu", "dataset": "cpu", "native": "cpu", "torch": "dataset"}
_STEPS = 50
# Steps before the clock starts in each round: more than a loader prefetches.
WARM_UP = 4
# If training on real data reaches this share of the speed on constant data, the model limits.
_CLOSE = 0.95

_COSTS: Mapping[RungKind, str] = {
    "cpu": "copying batches to the device",
    "dataset": "handing samples from worker processes to the trainer",
    "native": "reading and decoding records",
    "torch": "reading and decoding records",
}


@dataclass(frozen=True, slots=True)
class Rung:
    """Measurements on one kind of data, over all ranks.

    Attributes:
        data: The kind of data: a kind of TrainConfig.data, or for real data the loader.
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

    data: RungKind
    layer: str
    images_per_second: float
    step_seconds: float
    round_step_seconds: tuple[float, ...]
    data_wait: float
    above: RungKind | None
    layer_seconds: float | None


@dataclass(frozen=True, slots=True)
class Ladder:
    """All measurements, and their interpretation.

    Attributes:
        rungs: One for each kind of data that could be measured.
        limit: "model" or "data": what limits the training on real data by `TrainConfig.loader`.
            "unclear" if the difference is within the spread of the rounds on device data.
        headroom: Speed on data that is already on the device, divided by the speed on real data.
        verdict: The same in a sentence.
        left_out: The kinds that could not be measured, with the reason.
    """

    rungs: tuple[Rung, ...]
    limit: str
    headroom: float
    verdict: str
    left_out: Mapping[RungKind, str] = field(default_factory=dict)


def run_ladder(config: TrainConfig, stop: StopSignal | None = None) -> Ladder | None:
    """Train one model on each kind of data in turn, and measure the steps.

    Under torchrun, every process calls it. The kinds take turns in rounds, so that noise on the
    machine affects all alike. The learning rate is 0, nothing is evaluated, and the only output is
    `ladder.json` in `config.folder`.

    Args:
        config: The run. `max_steps` is the number of steps measured on each kind of data, 50 by
            default; `data` is not used. `loader` is the one that the verdict is about; both are
            measured.
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
        ranks, signals = start(config, stop, stack)
        return _Measurement(config.on_processes(ranks.world_size), ranks, signals).run()


def rounds_of(steps: int) -> int:
    """Return in how many rounds the steps on each kind of data are measured.

    Rounds are short where there are steps enough for many: kinds that run close together in time
    are slowed alike, and the median of many rounds depends less on one.
    """
    return max(1, min(5, steps // WARM_UP), min(15, steps // 10))


def judge(measured: Sequence[Rung], loader: RungKind, left_out: Mapping[RungKind, str] | None = None) -> Ladder:
    """Determine what limits training by a loader, from the times of the rungs.

    Args:
        measured: All rungs that were measured: "gpu", `loader`, and the rungs between them.
        loader: The rung of the real data: "native" or "torch".
        left_out: As in Ladder.
    """

    def found(limit: str, verdict: str) -> Ladder:
        return Ladder(tuple(measured), limit, headroom, verdict, dict(left_out or {}))

    rungs = {rung.data: rung for rung in measured}
    real, free = rungs[loader], rungs["gpu"]
    headroom = real.step_seconds / free.step_seconds
    if headroom <= 1 / _CLOSE:
        return found("model", f"the model: real data keep {1 / headroom:.0%} of the speed that data on the device have")
    rounds = free.round_step_seconds
    if real.step_seconds <= max(rounds):
        spread = f"{1e3 * min(rounds):.4g} to {1e3 * max(rounds):.4g} ms"
        return found(
            "unclear",
            f"unclear: the model's own steps took {spread} from round to round, those on real data "
            f"{1e3 * real.step_seconds:.4g}, {real.data_wait:.0%} of that waiting for batches; measure on a quieter "
            "machine, or more steps (--max-steps)",
        )
    # The layers below the real data, in order.
    layers = [real]
    while layers[-1].above is not None and layers[-1].above != "gpu":
        layers.append(rungs[layers[-1].above])
    dearest = max(layers, key=lambda rung: rung.layer_seconds or 0.0)
    cost = f"what costs most is {_COSTS[dearest.data]}"
    return found("data", f"the data path: the model could take {headroom:.2f}x as many images; {cost}")


def table(ladder: Ladder) -> list[str]:
    """Return the lines of a table of the rungs, and of the verdict."""
    width = max(len(rung.layer) for rung in ladder.rungs)
    times = f"{'images/s':>9}  {'ms/step':>9}  {'from - to':>19}  {'wait':>5}"
    lines = [f"{'data':7}  {'what it is':{width}}  {times}  what the layer costs"]
    measured = {rung.data: rung for rung in ladder.rungs}
    for rung in ladder.rungs:
        rounds = [1e3 * seconds for seconds in rung.round_step_seconds]
        cost = ""
        if rung.above is not None and rung.layer_seconds is not None:
            below = measured[rung.above].round_step_seconds
            costs = [value - 1e3 * seconds for value, seconds in zip(rounds, below, strict=True)]
            cost = f"{1e3 * rung.layer_seconds:+.2f} ms over {rung.above} ({min(costs):+.2f} to {max(costs):+.2f})"
        lines.append(
            f"{rung.data:7}  {rung.layer:{width}}  {rung.images_per_second:9.1f}  {1e3 * rung.step_seconds:9.2f}  "
            f"{min(rounds):8.2f} - {max(rounds):8.2f}  "
            f"{rung.data_wait:5.0%}  {cost}".rstrip()
        )
    lines += [f"{kind:7}  not measured: {reason}" for kind, reason in ladder.left_out.items()]
    return [*lines, f"What limits: {ladder.verdict}"]


class _SignalError(Exception):
    """This rank or another received a signal."""


class _Measurement:
    """One ladder on one rank."""

    def __init__(self, config: TrainConfig, ranks: Ranks, signals: StopSignal) -> None:
        self.config = dataclasses.replace(config, data="real", val=None, image_size=config.sizes[-1])
        self.ranks, self.signals = ranks, signals
        ranks.first(lambda: check_folder(config.folder))
        self.left_out: dict[RungKind, str] = {}
        self.configs = {kind: made for kind in get_args(RungKind) if (made := self._config_of(kind)) is not None}
        self.datasets: dict[str, FastRecordDataset] = {}
        for loader in dict.fromkeys(made.loader for made in self.configs.values()):
            self.datasets[loader], _ = open_on_all_ranks(dataclasses.replace(self.config, loader=loader), ranks)
        torch.manual_seed(config.seed)
        module = ranks.each(lambda: build_model(config, class_names(self.datasets[config.loader])))
        self.learner = Learner(module, config, ranks)
        self.meter = TrainMeter(ranks)
        self.steps = config.max_steps or _STEPS
        self.waited = 0.0

    def _config_of(self, kind: RungKind) -> TrainConfig | None:
        """Return the configuration of a rung; None if its loader refuses an option of the run."""
        if kind != "native" and kind != "torch":
            return dataclasses.replace(self.config, data=kind, on_error="raise")
        try:
            # The other loader may not have an option that the run's own loader has.
            return dataclasses.replace(self.config, loader=kind)
        except ValueError as error:
            self.left_out[kind] = str(error)
            return None

    def run(self) -> Ladder | None:
        """Measure, log the table and write the files."""
        kinds = tuple(self.configs)
        rounds = rounds_of(self.steps)
        self._say(
            f"ladder: {self.config.model}, {self.config.batch_size} x {self.config.accumulate} x "
            f"{self.ranks.world_size} images of {self.config.image_size} pixels a step on {self.ranks.device.type}; "
            f"{self.steps} steps on each kind of data, in {rounds} round{'s' if rounds > 1 else ''}"
        )
        times: dict[RungKind, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        try:
            # One-time compiling, tuning and allocating is done before the first round begins.
            self._measure("gpu", steps=1)
            for number in range(rounds):
                steps = self.steps // rounds + (number < self.steps % rounds)
                # Another kind begins each round, so that none always runs in the same place.
                shift = number % len(kinds)
                for kind in kinds[shift:] + kinds[:shift]:
                    times[kind].append(self._measure(kind, steps=steps))
                told = ", ".join(f"{kind} {1e3 * times[kind][-1][0]:.2f}" for kind in kinds)
                self._say(f"round {number + 1} of {rounds}, ms a step: {told}")
        except _SignalError:
            return None
        ladder = judge(self._rungs(times), self.config.loader, self.left_out)
        self.ranks.first(lambda: self._write(ladder))
        for line in table(ladder):
            self._say(line)
        return ladder

    def _measure(self, kind: RungKind, *, steps: int) -> tuple[float, float]:
        """Train on a kind of data.

        Returns seconds a step, on the slowest rank, and the largest share of it spent waiting.
        """
        config = self.configs[kind]
        dataset = self.datasets[config.loader]
        with ExitStack() as stack:
            batches = self.ranks.each(lambda: open_batches(dataset, config, self.ranks, training=True))
            stack.callback(batches.close)
            drawn = stack.enter_context(closing(endless(batches)))
            for _ in range(max(WARM_UP, self._workers(kind))):
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

    def _workers(self, kind: RungKind) -> int:
        """Return the number of workers: a DataLoader delivers that many batches close together."""
        if kind in ("dataset", "torch"):
            return default_workers(self.ranks) if self.config.threads is None else self.config.threads
        return 0

    def _rungs(self, times: Mapping[RungKind, Sequence[tuple[float, float]]]) -> list[Rung]:
        images = self.config.batch_size * self.config.accumulate * self.ranks.world_size
        steps = {kind: statistics.median(seconds for seconds, _ in times[kind]) for kind in times}
        return [
            Rung(
                data=kind,
                layer=self._layer(kind),
                images_per_second=images / steps[kind],
                step_seconds=steps[kind],
                round_step_seconds=tuple(seconds for seconds, _ in times[kind]),
                data_wait=statistics.median(wait for _, wait in times[kind]),
                above=_ABOVE.get(kind),
                layer_seconds=steps[kind] - steps[_ABOVE[kind]] if kind in _ABOVE else None,
            )
            for kind in times
        ]

    def _layer(self, kind: RungKind) -> str:
        where, workers = self.ranks.device.type, f"DataLoader, workers: {self._workers(kind)}"
        copied = "pinned memory" if where == "cuda" else ""
        return {
            "gpu": "constant, on the device" + (" (here: the CPU)" if where == "cpu" else ""),
            "cpu": f"constant, copied from {copied}" if copied else "constant, copied in memory",
            "dataset": f"constant, through a {workers}",
            "native": "real, native loader",
            "torch": f"real, {workers}",
        }[kind]

    def _write(self, ladder: Ladder) -> None:
        config, device = self.config, self.ranks.device
        names = "model image_size batch_size accumulate augment random_erasing mixup cutmix repeated_augmentation"
        more = "loader threads amp parallel channels_last compile"
        about = {name: getattr(config, name) for name in (*names.split(), *more.split())} | {"steps": self.steps}
        about |= {"processes": self.ranks.world_size, "device": device.type}
        about["device_name"] = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        about |= {"fastrecord": __version__, "torch": torch.__version__}
        config.folder.mkdir(parents=True, exist_ok=True)
        path = config.folder / "ladder.json"
        replace_file(path, json.dumps({**about, **dataclasses.asdict(ladder)}, indent=2).encode() + b"\n")
        _log.info(f"ladder: {path}")

    def _say(self, line: str) -> None:
        if self.ranks.is_first:
            _log.info(line)


def endless(batches: Batches) -> Generator[Batch]:
    """Yield the batches of epoch after epoch."""
    for epoch in itertools.count():
        yield from batches.epoch(epoch)
