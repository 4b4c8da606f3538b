"""The experiment `bottleneck`, with a tiny model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benches.experiments import bottleneck
from benches.experiments.bottleneck import Setting, steps_within
from tests.benches.made import rows_of


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_rung_is_a_row_and_a_ladder_that_fails_does_not_stop_the_others(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTRECORD_BENCH_IMAGES", str(image_folder / "cat"))
    works = Setting("A tiny model", "squeezenet1_1", 32, 2, ("--short-side", "40"), (0.1, 0.1))
    refused = Setting("No model", "squeezenet1_1", 8, 2, (), (0.1, 0.1))
    left_for_full = Setting("Another model", "alexnet", 64, 2, (), (0.1, 0.1), full=True)
    run = partial(bottleneck.run, settings=(refused, works, left_for_full), records=8)
    found = rows_of(tmp_path, "bottleneck", run, full=False)
    (failed,) = (row for row in found if row.case.startswith("No model"))
    assert failed.missing
    steps = [row for row in found if row.case == f"{works.case}: a step on data of each kind"]
    measured = [row for row in steps if not row.missing]
    assert measured[0].contender == "constant, on the device (here: the CPU)"
    assert {row.unit for row in measured} == {"ms/step"}
    assert all(row.settings["above"] for row in measured[1:])
    assert any("native" in row.contender for row in measured)
    assert any(row.contender.startswith("real, DataLoader") for row in steps) or len(steps) == 4
    (kept, *_) = (row for row in found if "of the speed on constant data" in row.case)
    assert kept.settings["limit"] in ("model", "data", "unclear")
    assert kept.settings["verdict"]
    (share,) = (row for row in found if "of all CPU time" in row.case)
    assert share.values[0] > 0
    (parallel,) = (row for row in found if row.contender == "nn.DataParallel")
    assert "GPU" in parallel.missing
    assert not any(row.case.startswith("Another model") for row in found)


def test_the_steps_fit_the_time() -> None:
    # 5 rungs of 4 warm-up steps and 4 that count, of 0.1 s.
    assert steps_within(4.0, step=0.1, data=0.0) == 4
    assert steps_within(12.1, step=0.1, data=0.0) == 12
    assert steps_within(0.1, step=10, data=0.0) == 4
    assert steps_within(1000, step=0.001, data=0.0) == 150
    slow, fast = (steps_within(60, step=0.1, data=data) for data in (1.0, 0.0))
    assert slow < fast
