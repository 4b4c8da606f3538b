"""The recipe experiment: what its runs have in common, and how its numbers are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from benches.experiments.recipe import FORMS, GLOBAL_BATCH, RECIPE, Job, reading, run_all
from fastrecord.train import TrainConfig


def options(job: Job) -> dict[str, str]:
    words = job.command(Path("data"))
    begin = words.index("--config")
    return dict(zip(words[begin::2], words[begin + 1 :: 2], strict=True))


def test_all_runs_have_one_global_batch_of_passes_of_one_size() -> None:
    for ranks in (1, 2, 4):
        given = options(Job(ranks, "original", 2, passes=4, epochs=5))
        assert int(given["--accumulate"]) * ranks == 4
        assert (given["--batch-size"], given["--seed"], given["--epochs"]) == ("16", "2", "5")
    recipe = TrainConfig.from_toml(RECIPE)
    assert recipe.batch_size * recipe.accumulate * 2 == GLOBAL_BATCH == 64


def test_a_form_is_trained_on_and_evaluated() -> None:
    for form, name in zip(FORMS, ("original", "crop-index", "short-side"), strict=True):
        job = Job(1, form, 0, passes=2, epochs=5)
        assert options(job)["--val"] == f"data/val-{name}.frec"
        assert f"data/train-{name}.frec" in job.command(Path("data"))


def test_a_difference_has_an_interval_that_follows_from_the_seeds_spread() -> None:
    same = reading([90.0, 91.0, 92.0], [90.0, 91.0, 92.0])
    assert (same["mean"], same["deviation"], same["difference"]) == (91.0, 1.0, 0.0)
    assert same["interval"] == pytest.approx(2.776 * (2 / 3) ** 0.5)
    assert reading([90.0, 91.0, 92.0], [88.0, 88.0, 88.0])["difference"] == -3.0


def test_a_failed_run_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    """Neither job has a file to train on."""
    jobs = [Job(1, "original", seed, passes=1, epochs=1) for seed in (0, 1)]
    found = dict(run_all(jobs, tmp_path))
    assert set(found) == set(jobs)
    assert all("train-original.frec" in why for why in found.values())
