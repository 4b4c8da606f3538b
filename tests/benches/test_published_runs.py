"""The planner's errors on published runs, and that docs/plan.md states them as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from benches.report.published import MACHINES, Check, check, fitted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    return check()


def test_every_published_figure_is_planned_within_15_percent(checks: list[Check]) -> None:
    assert not [one for one in checks if abs(one.error) > 0.15]


def test_one_number_is_fitted_to_each_machine_from_its_smaller_runs(checks: list[Check]) -> None:
    for machine in MACHINES:
        assert len({one.efficiency for one in checks if one.machine == machine.name}) == 1
        largest = max(figure.options.get("gpus", 8) for figure in machine.figures)
        fitted = {figure.options.get("gpus", 8) for figure in machine.figures if figure.fitted}
        assert fitted
        assert any(not figure.fitted for figure in machine.figures)
        assert len(machine.figures) == 2 or max(fitted) < largest or "gpus" in machine.options


def test_the_fit_finds_the_efficiency_that_made_the_rates() -> None:
    assert fitted(lambda one: [one**4 / 0.93**4, one / 0.93]) == 0.93


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    written = runpy.run_path(str(ROOT / "scripts/plan_tables.py"))["with_tables"](page)
    assert written == page, "run python -m scripts.plan_tables"
