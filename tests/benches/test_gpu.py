"""The experiment `gpu`: tried out on the CPU with a tiny model, and without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benches.experiments import gpu
from benches.experiments.gpu import BEST, STORED, Files, GpuTests, Ladder, Part, Size
from benches.harness import Row
from tests.benches import made

TINY = Size(
    device="cpu",
    model="squeezenet1_1",
    words="A tiny model",
    pixels=32,
    batch=2,
    records=4,
    steps=1,
    rounds=2,
    ladder_steps=2,
    tests=("tests/inspect/test_units.py", "-k", "fast"),  # imports no torch
)


def rows_of(folder: Path, size: Size | None, *chosen: Part) -> list[Row]:
    """Run the experiment and return its rows."""
    return made.rows_of(folder, "gpu", lambda bench: gpu.run(bench, size, chosen or None), full=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_that_does_not_need_cuda_itself_runs_on_the_cpu(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTRECORD_BENCH_IMAGES", str(image_folder / "owl"))
    (tmp_path / "data").mkdir()
    files = Files(TINY)
    parts: list[Part] = [files, GpuTests(TINY), Ladder(TINY, "launched", launched=True)]
    rows = rows_of(tmp_path, TINY, *parts)
    absent = {(row.case, row.missing) for row in rows if row.missing}
    assert absent == {(files._memory("device"), "it was not reached")}, absent
    found = {(row.case, row.contender) for row in rows}
    for part in parts:
        for expected in part.expected():
            assert any(case == expected.case and expected.contender in ("", name) for case, name in found), expected
    (kept,) = (row for row in rows if row.contender == BEST and row.unit == "%" and "bf16" in row.case)
    assert len(kept.values) == 2
    assert kept.settings["batch"] == 2
    (passed,) = (row for row in rows if row.contender == "passed")
    assert (list(passed.values), "1 passed" in passed.settings["line"]) == ([1], True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_without_a_gpu_every_row_says_so(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, None)
    assert {row.missing for row in rows} == {"no CUDA device"}
    assert set(STORED) <= {row.contender for row in rows}
    assert len(rows) == len({(row.case, row.contender) for row in rows})
    assert not (tmp_path / "data").exists()


def test_a_part_that_fails_leaves_the_others_and_names_its_reason(tmp_path: Path) -> None:
    class Broken(Part):
        def expected(self) -> list[gpu.Expected]:
            return [gpu.Expected("a case", "one", "s"), gpu.Expected("a case", "two", "s")]

        def measure(self, course: gpu.Course) -> None:
            course.row("a case", "one", "s", [1.0])
            raise RuntimeError("first line\nno memory")

    size = Size(device="cpu", records=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "pack", lambda *_: {})
        rows = rows_of(tmp_path, size, Broken(size), Broken(size))
    assert [(row.contender, row.missing) for row in rows if row.missing] == [("two", "no memory")] * 2


def test_the_title_names_the_size_and_the_precision() -> None:
    assert Size().title("off", compiled=True) == "ResNet-50, 224 pixels, float32, compiled"
