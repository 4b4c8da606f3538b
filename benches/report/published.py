"""Published training runs, and the plan's errors on them.

For each machine one number, the efficiency, is fitted to its smaller runs. All else is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from fastrecord.inspect.benchmark import Report
from fastrecord.inspect.plan_options import Cluster, Data, Training
from fastrecord.inspect.prediction import Plan, plan
from fastrecord.inspect.units import time_text

_RATE, _TIME, _READ, _OPERATIONS = "images/s", "run time", "GB/s read", "reads/s"


@dataclass(frozen=True)
class Figure:
    """A published figure.

    Attributes:
        name: What was run.
        options: Fields of `Cluster`, `Training` and `Data`, added to the machine's.
        unit: "images/s", "run time" (in seconds), "GB/s read" or "reads/s".
        value: The figure.
        fitted: Whether the efficiency is fitted to it.
    """

    name: str
    options: dict[str, Any]
    unit: str
    value: float
    fitted: bool = False

    def text(self, value: float) -> str:
        """Return a value of the figure's unit as text."""
        if self.unit == _TIME:
            return time_text(value)
        return f"{value:.2f}" if self.unit == _READ else f"{value:,.0f}"

    def of(self, plan: Plan) -> float:
        """Return the plan's value for the figure."""
        return {
            _RATE: plan.images_per_second,
            _TIME: plan.run_seconds,
            _READ: plan.storage_read / 1e9,
            _OPERATIONS: plan.operations_read,
        }[self.unit]


@dataclass(frozen=True)
class Machine:
    """A machine with published runs. `options` are fields of `Cluster`, `Training` and `Data`."""

    name: str
    source: str
    options: dict[str, Any]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Check:
    """A published figure beside the plan's.

    Attributes:
        machine: The machine's name.
        efficiency: The number fitted to the machine.
        figure: The published figure.
        planned: The plan's value.
        error: (planned - published) / published.
    """

    machine: str
    efficiency: float
    figure: Figure
    planned: float
    error: float


def _scaling(rates: dict[int, float], fitted: int, **options: Any) -> tuple[Figure, ...]:
    gpus = {n: "1 GPU" if n == 1 else f"{n} GPUs" for n in rates}
    return tuple(Figure(gpus[n], {"gpus": n, **options}, _RATE, rate, n <= fitted) for n, rate in rates.items())


def _hal(gpus: int) -> dict[str, Any]:
    return {"gpus": gpus, "nodes": max(1, gpus // 4)}


# Images/s while training, and seconds of 90 epochs.
_HAL = {
    2: (1582.04, 74211.11),
    4: (3004.51, 39536.0),
    8: (5805.14, 20904.01),
    16: (11273.57, 10969.42),
    32: (19496.10, 6652.91),
    64: (33080.03, 4071.31),
}

MACHINES = (
    Machine(
        "HAL, 16 nodes x 4 V100",
        "Kindratenko et al., HAL: Computer System for Scalable Deep Learning, PEARC 2020; logs in "
        "richardkxu/distributed-pytorch (RESULTS.md, IO/), February 2020",
        {
            "gpu": "V100",
            "precision": "amp",
            "batch": 208,
            "epochs": 90,
            "val_images": 50_000,
            "image_bytes": 116_000,
            "storage": "4GB/s",
            "net": "100Gb/s",
            "cores": 40,
            "gradient_bits": 16,
            "pause": 7,
        },
        (
            *(
                Figure(f"{n} GPUs, 90 epochs", _hal(n), _TIME, seconds, fitted=n <= 16)
                for n, (_, seconds) in _HAL.items()
            ),
            Figure("64 GPUs, storage", _hal(64), _READ, 3.30),
            Figure("64 GPUs, storage", _hal(64), _OPERATIONS, 36_500),
            *(Figure(f"{n} GPUs, while training", _hal(n), _RATE, rate) for n, (rate, _) in _HAL.items()),
        ),
    ),
    Machine(
        "Tensorpack, 8 P100",
        "tensorpack/benchmarks, ResNet-MultiGPU/README.md, September 2017: replicated, data on the GPU",
        {"gpu": "P100", "precision": "fp32", "batch": 64},
        _scaling({1: 228, 2: 427, 4: 802, 8: 1612}, fitted=4),
    ),
    Machine(
        "Tensorpack, 8 V100",
        "tensorpack/benchmarks, ResNet-MultiGPU/README.md, May 2019: replicated, data on the GPU",
        {"gpu": "V100", "gpus": 8},
        (
            *(
                Figure(
                    f"fp16, batch {n}", {"precision": "amp", "batch": n, "gradient_bits": 16}, _RATE, rate, fitted=True
                )
                for n, rate in {64: 5224, 128: 5891}.items()
            ),
            Figure(
                "fp16 with XLA, batch 128", {"precision": "amp-xla", "batch": 128, "gradient_bits": 16}, _RATE, 9225
            ),
            Figure("fp32, batch 64", {"precision": "fp32", "batch": 64}, _RATE, 2844),
        ),
    ),
    Machine(
        "Google Compute Engine, 8 K80",
        "TensorFlow, docs_src/performance/benchmarks.md, May 2017, synthetic data",
        {"gpu": "K80", "precision": "fp32", "batch": 64},
        _scaling({2: 99.0, 4: 195, 8: 387}, fitted=4),
    ),
    Machine(
        "NVIDIA DGX A100, 8 A100",
        "NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5/README.md, container 21.03",
        {"gpu": "A100", "gpus": 8, "batch": 256},
        (
            Figure("TF32", {"precision": "fp32"}, _RATE, 7248, fitted=True),
            Figure("mixed precision, channels last", {"precision": "amp-nhwc"}, _RATE, 16_621),
        ),
    ),
)


def planned(*, report: Report | None = None, **options: Any) -> Plan:
    """Return the plan of a run; the options are fields of `Cluster`, `Training` and `Data`."""

    def made(kind: Any) -> Any:
        return kind(**{one.name: options[one.name] for one in fields(kind) if one.name in options})

    return plan(made(Cluster), made(Training), made(Data), report=report)


def fitted(ratios: Callable[[float], Iterable[float]]) -> float:
    """Return the efficiency, in steps of a thousandth, whose ratios to what was measured are nearest to 1.

    The squares of their logarithms are least. They have one valley.
    """

    def loss(thousandths: int) -> float:
        return sum(math.log(ratio) ** 2 for ratio in ratios(thousandths / 1000))

    low, high = 500, 1000
    while high - low > 2:
        third = max(1, (high - low) // 3)
        if loss(low + third) < loss(high - third):
            high -= third
        else:
            low += third
    return min(range(low, high + 1), key=loss) / 1000


def check() -> list[Check]:
    """Return all published figures beside the plan's."""
    checks = []
    for machine in MACHINES:

        def of(figure: Figure, efficiency: float, options: dict[str, Any] = machine.options) -> float:
            return figure.of(planned(**options, **figure.options, efficiency=efficiency))

        smaller = [figure for figure in machine.figures if figure.fitted]
        efficiency = fitted(lambda one, of=of, smaller=smaller: (of(each, one) / each.value for each in smaller))  # type: ignore[misc]
        for figure in machine.figures:
            value = of(figure, efficiency)
            checks.append(Check(machine.name, efficiency, figure, value, value / figure.value - 1))
    return checks
