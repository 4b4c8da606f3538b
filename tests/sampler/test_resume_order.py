"""Stopped and resumed runs, also on other rank counts, see an uninterrupted run's records."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from tests.support import resuming
from tests.support.resuming import Case, Files, in_turn, problem, tail_problem


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("numbers"))


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.data())
def test_a_run_that_is_stopped_anywhere_goes_on_as_if_undisturbed(files: Files, data: st.DataObject) -> None:
    case = Case.drawn(lambda low, high: data.draw(st.integers(low, high)))
    assert problem(case, files) is None, case


CASE = Case((20, 45), "all", 6, ((2, 3), (3, 9), (1, 0)), {"seed": 1, "drop_last": "pad", "shuffle": True}, None, 0)


def test_the_check_sees_what_is_missed_repeated_and_out_of_place(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem(CASE, files) is None
    epoch = resuming.whole_epochs(CASE, files.open(CASE))[0]
    assert tail_problem(CASE, 65, epoch) is None
    assert tail_problem(CASE, 65, epoch[:-1]) == "60 records, not 66"
    assert tail_problem(CASE, 65, [epoch[0], epoch[0], *epoch[2:]]) is not None
    exact = dataclasses.replace(CASE, options={**CASE.options, "drop_last": "exact"})
    assert tail_problem(exact, 65, epoch) == "66 records, not 65"
    # A sampler that moves by one batch, once.
    load = FastRecordBatchSampler.load_state_dict

    def late(self: FastRecordBatchSampler, state: dict[str, object]) -> None:
        load(self, {**state, "batches_done": int(str(state["batches_done"])) + 1})

    monkeypatch.setattr(FastRecordBatchSampler, "load_state_dict", late)
    assert str(problem(CASE, files)).startswith("batch 3 is [")


def test_parts_of_ranks_come_in_turn() -> None:
    assert in_turn([[0, 3, 6], [1, 4], [2, 5]]) == [0, 1, 2, 3, 4, 5, 6]
