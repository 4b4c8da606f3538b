"""Sampler states: resuming, refused states, and a DataLoader around the sampler."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

import fastrecord as fr
from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from tests.conftest import encode
from tests.sampler.test_sampler import global_batches, permuted, ranks, records, refuses


def resumed(state: dict[str, Any], n: int, batch_size: int, world_size: int) -> list[FastRecordBatchSampler]:
    samplers = ranks(n, batch_size, world_size)
    for sampler in samplers:
        sampler.load_state_dict(json.loads(json.dumps(state)))
    return samplers


def test_a_state_with_all_batches_done_is_the_start_of_the_next_epoch() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    list(sampler)
    assert sampler.state_dict() == sampler.state_dict(batches_done=7)
    assert sampler.state_dict()["epoch"] == 1
    assert sampler.state_dict()["batches_done"] == 0
    assert global_batches(resumed(sampler.state_dict(), 50, 8, 1)) == list(sampler)


def test_batches_done_counts_from_the_start_of_the_epoch_after_a_resume_too() -> None:
    whole = list(FastRecordBatchSampler(range(50), 8, shuffle=True))
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    (sampler,) = resumed(sampler.state_dict(batches_done=2), 50, 8, 1)
    assert list(itertools.islice(sampler, 3)) == whole[2:5]
    assert sampler.state_dict()["batches_done"] == 5
    (sampler,) = resumed(sampler.state_dict(batches_done=4), 50, 8, 1)
    assert list(sampler) == whole[4:]


def test_set_epoch_keeps_the_place_of_a_state_in_its_epoch_and_drops_it_in_another() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    sampler.set_epoch(3)
    state = sampler.state_dict(batches_done=5)
    for epoch, batches in ((3, 2), (4, 7)):
        (loaded,) = resumed(state, 50, 8, 1)
        loaded.set_epoch(epoch)
        rest = list(loaded)
        assert len(rest) == batches
        assert records(rest) == permuted(50, 0, epoch)[-len(records(rest)) :]


def test_ranks_stay_in_step_where_the_rest_of_an_exact_epoch_has_no_batch_for_some() -> None:
    state = ranks(9, 4, 2, drop_last="exact")[0].state_dict(batches_done=1)
    first, second = resumed(state, 9, 4, 2)
    assert first.state_dict() == second.state_dict() == state
    assert [len(list(first)), len(list(second))] == [1, 0]
    assert first.state_dict()["epoch"] == second.state_dict()["epoch"] == 1
    assert [len(list(first)), len(list(second))] == [2, 1]


def test_the_seed_and_a_default_tail_come_with_the_state() -> None:
    state = FastRecordBatchSampler(range(50), 4, shuffle=True, seed=9, rank=0, world_size=2).state_dict()
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    sampler.load_state_dict(state)
    assert (sampler.seed, sampler.state_dict()["drop_last"]) == (9, "pad")
    assert records(sampler)[:50] == permuted(50, 9, 0)


def altered(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**state, **changes}


class Files:
    """Data that name their files, like FastRecordDataset."""

    def __init__(self, *files: tuple[str, int, int]) -> None:
        self.snapshots = [
            {"path": f"/data/{number}.frec", "file_id": file_id, "commit": commit, "records": records, "footer_crc": 5}
            for number, (file_id, commit, records) in enumerate(files)
        ]

        self._records = sum(records for _, _, records in files)

    def __len__(self) -> int:
        return self._records


STATE = FastRecordBatchSampler(Files(("aa", 1, 30), ("bb", 4, 20)), 4, shuffle=True, rank=0, world_size=2).state_dict(
    batches_done=3
)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (altered(STATE, records=51), ValueError, "the state has 51 records, but the data have 50"),
        (altered(STATE, global_batch_size=12), ValueError, "of 12, here 2 ranks x batch_size 4 = 8: use batch_size=6"),
        (
            altered(STATE, global_batch_size=7),
            ValueError,
            "of 7, here 2 ranks .* use a number of ranks that divides it",
        ),
        (altered(STATE, shuffle=False), ValueError, "shuffle=False, this sampler shuffle=True"),
        (altered(STATE, drop_last="exact"), ValueError, "drop_last='exact', this sampler drop_last='pad'"),
        (altered(STATE, drop_last="none"), ValueError, "drop_last is True, False, .pad. or .exact., not .none."),
        (altered(STATE, batches_done=7), ValueError, "leaves no batch: it has 7 done, an epoch has 7"),
        (altered(STATE, batches_done=-1), ValueError, "batches_done is from 0 to"),
        (altered(STATE, epoch="3"), TypeError, "epoch is an int, not str"),
        (altered(STATE, version=4), ValueError, "version 4, but FastRecordBatchSampler reads 5"),
        (altered(STATE, snapshots={}), TypeError, "snapshots is a list of dicts"),
        (altered(STATE, draw="weights"), TypeError, "state: draw is a dict or None"),
        (altered(STATE, view=3), TypeError, "state: draw is a dict or None, and view"),
        (altered(STATE, samples=0), ValueError, "state: samples is from 1 to"),
        (
            {"version": 5, "seed": 0},
            ValueError,
            "the state has no epoch, batches_done, global_batch_size",
        ),
        ({}, ValueError, "version None"),
        ([], TypeError, "a sampler's state is a dict, not list"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    state: Any, error: type[Exception], message: str
) -> None:
    sampler = FastRecordBatchSampler(range(50), 4, shuffle=True, seed=1, rank=0, world_size=2, drop_last="pad")
    refuses(sampler, state, message, error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Files(("aa", 1, 30), ("bb", 5, 20)), r"file 1 of the data \(/data/1.frec\) is bb at commit 5 with 20 records"),
        (Files(("bb", 4, 20), ("aa", 1, 30)), "file 0 of the data .* but the state was saved with aa at commit 1"),
        (Files(("aa", 1, 50)), "the state has 2 files, but the data have 1"),
    ],
)
def test_a_state_of_other_files_is_refused(data: Files, message: str) -> None:
    sampler = FastRecordBatchSampler(data, 4, shuffle=True, rank=0, world_size=2)
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(STATE)


def test_a_state_of_a_file_is_refused_when_records_have_been_appended(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(packed, tmp_path / "train.frec"))
    state = FastRecordBatchSampler(fr.FastRecordDataset(path), 4, shuffle=True).state_dict(batches_done=1)
    sampler = FastRecordBatchSampler(fr.FastRecordDataset(path), 4, shuffle=True)
    sampler.load_state_dict(json.loads(json.dumps(state)))
    assert len(list(sampler)) == 2
    with fr.Writer(path, mode="a") as writer:
        writer.append({"image": encode(99), "label": 0, "key": "new"})
    with pytest.raises(
        ValueError, match=r"train\.frec.* at commit 2 with 13 records, .*but the state .* with 12 records"
    ):
        FastRecordBatchSampler(fr.FastRecordDataset(path), 4, shuffle=True).load_state_dict(state)


def test_data_that_do_not_name_their_files_are_compared_by_length() -> None:
    sampler = FastRecordBatchSampler(Subset(range(80), range(50)), 8, shuffle=True)  # type: ignore[arg-type]
    sampler.load_state_dict(STATE)
    assert len(list(sampler)) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_takes_its_batches_from_the_sampler(workers: int) -> None:
    data = list(range(100, 150))
    sampler = FastRecordBatchSampler(data, 8, shuffle=True)
    loader: DataLoader[int] = DataLoader(data, batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]
    assert len(loader) == 7
    for epoch in range(2):
        batches = [batch.tolist() for batch in loader]
        assert records(batches) == [100 + record for record in permuted(50, 0, epoch)]


def test_what_the_consumer_has_done_counts_however_far_the_workers_are_ahead() -> None:
    data = list(range(50))
    sampler = FastRecordBatchSampler(data, 8, shuffle=True)
    loader: DataLoader[int] = DataLoader(data, batch_sampler=sampler, num_workers=2, prefetch_factor=8)  # type: ignore[arg-type]
    batches: Iterator[Any] = iter(loader)
    whole = [next(batches).tolist(), next(batches).tolist()]
    assert sampler.epoch == 1  # the workers already have all batches
    state = sampler.state_dict(batches_done=2)
    whole += [batch.tolist() for batch in batches]
    (resumed_sampler,) = resumed(state, 50, 8, 1)
    assert list(resumed_sampler) == whole[2:]


def test_a_loader_that_computes_batches_ahead_says_itself_what_it_has_handed_out() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    whole = [list(sampler), list(sampler)]
    sampler.set_epoch(0)
    run = sampler._begin()
    spans = list(sampler._spans(run, 3))
    assert [len(span.sizes) for span in spans] == [3, 3, 1]
    assert [row for span in spans for row in span.indices.tolist()] == list(itertools.chain.from_iterable(whole[0]))
    run.done += 5
    assert (sampler.epoch, sampler.state_dict()["batches_done"]) == (0, 5)
    run.done += 2
    assert (sampler.epoch, sampler.state_dict()["batches_done"]) == (1, 0)
    again = sampler._begin()
    assert [span.indices.tolist() for span in sampler._spans(again)] == whole[1]
    assert (again.epoch, again.done) == (1, 0)
    run.done -= 4  # a finished epoch no longer counts
    assert (sampler.epoch, sampler.state_dict()["batches_done"]) == (1, 0)


def test_a_pickled_sampler_goes_on_at_the_same_place() -> None:
    sampler = FastRecordBatchSampler(range(50), 8, shuffle=True)
    sampler.load_state_dict(altered(sampler.state_dict(batches_done=3), epoch=2))
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


# --- many files ---


def many(count: int, *, changed: int | None = None) -> Files:
    return Files(*((f"{number:032x}", 1 + (number == changed), 3) for number in range(count)))


def test_the_state_of_very_many_files_stays_small() -> None:
    sampler = FastRecordBatchSampler(many(100_000), 8)
    state = sampler.state_dict(batches_done=5)
    assert len(json.dumps(state)) < 1000
    assert state["snapshots"].keys() == {"files", "sha256"}
    assert state["snapshots"]["files"] == 100_000
    again = FastRecordBatchSampler(many(100_000), 8)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict()["batches_done"] == 5


@pytest.mark.parametrize("count", [256, 257, 1000])
def test_states_of_many_files_refuse_others(count: int) -> None:
    state = json.loads(json.dumps(FastRecordBatchSampler(many(count), 8).state_dict()))
    assert isinstance(state["snapshots"], list) == (count <= 256)
    with pytest.raises(ValueError, match="of the data"):
        FastRecordBatchSampler(many(count, changed=count - 1), 8).load_state_dict(state)
    with pytest.raises(ValueError, match=f"the state has {count} files, but the data have {count + 1}"):
        FastRecordBatchSampler(many(count + 1), 8).load_state_dict(state)


def test_a_state_cannot_be_changed_through_what_was_returned() -> None:
    for data in (many(2), many(300)):
        sampler = FastRecordBatchSampler(data, 2)
        before = json.dumps(sampler.state_dict())
        sampler.state_dict()["snapshots"].clear()
        assert json.dumps(sampler.state_dict()) == before
