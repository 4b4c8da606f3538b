"""The planner's errors on published runs, and that docs/plan.md states them as they are."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from fastrecord.inspect.prediction import plan_training
from fastrecord.inspect.published import MACHINES, Check, Figure, check, fit

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return check()


def test_every_published_figure_is_planned_within_15_percent(checks: list[Check]) -> None:
    assert not [one for one in checks if abs(one.error) > 0.15]


@pytest.mark.parametrize(
    ("machine", "figure", "unit", "value", "fitted"),
    [
        ("HAL", "2 GPUs, 90 epochs", "run time", 20 * 3600 + 36 * 60 + 51, True),
        ("HAL", "64 GPUs, 90 epochs", "run time", 3600 + 7 * 60 + 51, False),
        ("HAL", "64 GPUs, storage", "GB/s read", 3.30, False),
        ("HAL", "64 GPUs, storage", "reads/s", 36_500, False),
        ("Tensorpack, 8 P100", "1 GPU", "images/s", 228, True),
        ("Tensorpack, 8 P100", "2 GPUs", "images/s", 427, True),
        ("Tensorpack, 8 P100", "4 GPUs", "images/s", 802, True),
        ("Tensorpack, 8 P100", "8 GPUs", "images/s", 1612, False),
        ("Tensorpack, 8 V100", "fp16, batch 128", "images/s", 5891, True),
        ("Tensorpack, 8 V100", "fp16 with XLA, batch 128", "images/s", 9225, False),
    ],
)
def test_a_figure_is_planned_within_15_percent(
    checks: list[Check], machine: str, figure: str, unit: str, value: float, fitted: bool
) -> None:
    (one,) = [
        one
        for one in checks
        if one.machine.startswith(machine) and (one.figure.name, one.figure.unit) == (figure, unit)
    ]
    assert one.figure.value == pytest.approx(value, abs=0.5)
    assert one.figure.fitted == fitted
    assert abs(one.error) <= 0.15


def test_one_number_is_fitted_to_each_machine_from_its_smaller_runs(checks: list[Check]) -> None:
    for machine in MACHINES:
        assert len({one.efficiency for one in checks if one.machine == machine.name}) == 1
        largest = max(figure.options.get("gpus", 8) for figure in machine.figures)
        fitted = {figure.options.get("gpus", 8) for figure in machine.figures if figure.fitted}
        assert fitted
        assert any(not figure.fitted for figure in machine.figures)
        assert len(machine.figures) == 2 or max(fitted) < largest or "gpus" in machine.options


def test_the_fit_finds_an_efficiency_that_made_the_figures() -> None:
    machine = MACHINES[1]
    made = []
    for figure in machine.figures:
        plan = plan_training(**machine.options, **figure.options, efficiency=0.93)
        made.append(Figure(figure.name, figure.options, figure.unit, figure.of(plan), fitted=True))
    assert fit(replace(machine, figures=tuple(made))) == pytest.approx(0.93)


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    written = runpy.run_path(str(ROOT / "scripts/plan_tables.py"))["with_tables"](page)
    assert written == page, "run scripts/plan_tables.py"
