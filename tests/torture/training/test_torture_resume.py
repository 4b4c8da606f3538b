"""The experiment of killed and resumed runs reports each difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastrecord.train.checkpoint import save_checkpoint
from tests.torture.training.resume import GLOBAL_BATCH, STEPS, Run, compare


def written(folder: Path) -> Run:
    """Return a run without a problem."""
    run = Run(folder, [])
    (folder / "out").mkdir(parents=True)
    run.steps.update({step: [[[number, 7] for number in range(GLOBAL_BATCH)]] for step in range(STEPS)})
    rows = [{"event": "train", "step": step} for step in range(1, STEPS + 1)]
    (folder / "out" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save(run, 1)
    return run


def save(run: Run, weight: float) -> None:
    save_checkpoint({"step": STEPS, "model": {"weight": torch.tensor([1, weight])}}, run.checkpoint)


def repeat_a_line(run: Run) -> None:
    with (run.folder / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 3}\n')


def damage_the_checkpoint(run: Run) -> None:
    run.checkpoint.write_bytes(run.checkpoint.read_bytes()[:-100])
    assert run.saved_step() == 0


CHANGES: dict[str, Callable[[Run], object]] = {
    "step 4: 12 images undisturbed, seen 0 times": lambda run: run.steps[4].clear(),
    "step 7: images ": lambda run: run.steps[7][0][3].__setitem__(1, 8),
    "metrics.jsonl has the steps ": repeat_a_line,
    "weights: 1 of 1 tensors differ, the first is weight": lambda run: save(run, 1.0000001),
    "last.pt: not a checkpoint": damage_the_checkpoint,
    "left over: ": lambda run: (run.folder / "out" / ".half").touch(),
}


@pytest.mark.parametrize("message", CHANGES)
def test_each_difference_is_reported(tmp_path: Path, message: str) -> None:
    run, undisturbed = written(tmp_path / "run"), written(tmp_path / "undisturbed")
    assert compare(run, undisturbed, weights=True) == []
    CHANGES[message](run)
    (problem,) = compare(run, undisturbed, weights=True)
    assert message in problem


def test_an_attempt_that_does_not_begin_at_its_checkpoint_is_reported_and_half_a_step_does_not_count(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, [])
    for rank, half in enumerate(("", '{"step": 5, "ima')):
        (tmp_path / f"seen.{rank}.jsonl").write_text('{"step": 4, "images": [[1, 7]]}\n' + half)
    run._read(tmp_path / "seen", 2, 4)
    assert (run.problems, dict(run.steps)) == ([], {4: [[[1, 7], [1, 7]]]})
    run._read(tmp_path / "seen", 2, 3)
    assert run.problems == ["attempt 0 began at step 4, the checkpoint is of 3"]
