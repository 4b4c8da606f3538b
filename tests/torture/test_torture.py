"""The short version of each long experiment: `python -m tests.torture` runs the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import page
from tests.torture.experiment import Experiment, Outcome, measured
from tests.torture.experiments import EXPERIMENTS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e.in_tests], ids=lambda experiment: experiment.name)
def test_nothing_is_lost_crashed_or_leaked(experiment: Experiment) -> None:
    outcome = experiment(experiment.short)
    assert outcome.failures == []
    assert outcome.count >= experiment.short


def test_the_long_ones_are_longer_and_each_has_a_name_of_its_own() -> None:
    assert all(experiment.long >= experiment.short > 0 for experiment in EXPERIMENTS)
    assert len({experiment.name for experiment in EXPERIMENTS}) == len(EXPERIMENTS)


def test_the_table_says_what_failed(tmp_path: Path) -> None:
    here = tmp_path / "page.md"
    here.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    broken = Experiment("broken", 3, "bits", 1, 2, lambda count: Outcome(count, ["bit 5 was not seen"]), "tests/x.py")
    good = Experiment("good", 1, "states", 1, 2, lambda count: Outcome(count, detail="seed 7"), "tests/y.py")
    page.write(here, [measured(broken, 2), measured(good, 20_000)])
    text = here.read_text()
    assert "| 1 | good | 20,000 states | 0 s | nothing lost, crashed or leaked: seed 7 | `tests/y.py` |" in text
    assert text.index("good") < text.index("| 3 | broken | 2 bits | 0 s | **1 failed** |")
    assert "old" not in text
    assert text.endswith(f"{page.END}\nafter\n")
