"""The experiment of killed and resumed runs detects differences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastrecord.train.checkpoint import save_checkpoint
from tests.torture.training.resume import GLOBAL_BATCH, STEPS, Run, compare


def written(folder: Path, *, steps: range = range(STEPS)) -> Run:
    """Return a run of some steps in one attempt on two ranks, from its files."""
    run = Run(folder, [])
    (folder / "out").mkdir(parents=True)
    half = GLOBAL_BATCH // 2
    for rank in range(2):
        lines = [
            {"step": step, "images": [[number, 7] for number in range(half * rank, half * (rank + 1))]}
            for step in steps
        ]
        Path(f"{folder / 'seen1'}.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [{"event": "train", "step": step} for step in range(1, STEPS + 1)]
    (folder / "out" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_checkpoint({"step": STEPS, "model": {"weight": torch.ones(3)}}, run.checkpoint)
    run._read(folder / "seen1", 2, steps[0])
    return run


def test_equal_runs_have_no_problem(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one"), written(tmp_path / "other")
    assert compare(one, other, weights=True) == []


def lose_a_step(run: Run) -> None:
    run.steps[4].clear()


def change_a_pixel(run: Run) -> None:
    run.steps[7][0][3][1] = 8


def repeat_a_line(run: Run) -> None:
    metrics = run.folder / "out" / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"event": "train", "step": 3}\n')


def change_a_weight(run: Run) -> None:
    save_checkpoint({"step": STEPS, "model": {"weight": torch.tensor([1, 1, 1.0000001])}}, run.checkpoint)


def damage_the_checkpoint(run: Run) -> None:
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-100])
    assert run.saved_step() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lose_a_step, "step 4: 12 images undisturbed, seen 0 times"),
        (change_a_pixel, "step 7: images "),
        (repeat_a_line, "metrics.jsonl has the steps "),
        (change_a_weight, "weights: 1 of 1 tensors differ, the first is weight"),
        (damage_the_checkpoint, "last.pt: not a checkpoint"),
    ],
)
def test_each_difference_is_reported(tmp_path: Path, change: Any, message: str) -> None:
    one, other = written(tmp_path / "one"), written(tmp_path / "other")
    change(one)
    (problem,) = compare(one, other, weights=True)
    assert message in problem


def test_an_attempt_that_does_not_begin_at_its_checkpoint_is_reported(tmp_path: Path) -> None:
    run = written(tmp_path / "one", steps=range(4, STEPS))
    run._read(tmp_path / "one" / "seen1", 2, 3)
    assert run.problems == ["attempt 0 began at step 4, the checkpoint is of 3"]
    # A rank that is killed before it logs a step leaves the step open.
    shutil.copy(tmp_path / "one" / "seen1.0.jsonl", tmp_path / "one" / "seen2.0.jsonl")
    (tmp_path / "one" / "seen2.1.jsonl").write_text('{"step": 4, "ima')
    before = {step: len(times) for step, times in run.steps.items()}
    run._read(tmp_path / "one" / "seen2", 2, 4)
    assert {step: len(times) for step, times in run.steps.items()} == before
