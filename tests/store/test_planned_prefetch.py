"""A loader whose cache knows the future: it downloads what was planned, within its limit."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from fastrecord.inspect.cache_plan import plan_cache
from fastrecord.loader.prefetch import can_plan
from fastrecord.store import ranks
from fastrecord.store.cache import Cache
from fastrecord.store.plan_executor import PlanExecutor
from tests.store.conftest import Data, data_of
from tests.support.machines.stores import Fault, Request, Server

SCHEMA = fr.Schema({"data": fr.bytes_(), "other": fr.bytes_()})
_TOTAL = 480
# More than the gaps between values that come with them; multiples of 8, so there is no padding.
_SIZES = 8 * np.random.default_rng(0).integers(513, 1000, _TOTAL)
# What opening reads of three shards, and a quarter of the values.
_KEPT = 3 * (4096 + 65_536)
_LIMIT = _KEPT + int(_SIZES.sum()) // 4
_EPOCHS = 3


def payload(record: int) -> bytes:
    return record.to_bytes(8, "little") + np.random.default_rng(record).bytes(int(_SIZES[record]) - 8)


@pytest.fixture(scope="module")
def stored(running_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("steered") / "train"
    folder.mkdir()
    for shard in range(3):
        first, stop = shard * _TOTAL // 3, (shard + 1) * _TOTAL // 3
        with fr.Writer(folder / f"train-{shard:05}-of-00003.frec", SCHEMA) as writer:
            for record in range(first, stop):
                # The end of a file comes when it is opened: no value of "data" lies in it.
                writer.append({"data": payload(record), "other": bytes(70_000 if record == stop - 1 else 0)})
    fr.files.write_manifest(folder)
    return Data(folder, running_server.put_folder("steered", folder))


def _dataset(server: Server, stored: Data, cache: Path, limit: int = _LIMIT) -> fr.FastRecordDataset:
    return data_of(stored.url, server, cache, limit)


def _sampler(dataset: fr.FastRecordDataset, shuffle: bool | fr.Blocks) -> fr.FastRecordBatchSampler:
    return fr.FastRecordBatchSampler(dataset, 6, shuffle=shuffle, seed=3, rank=0, world_size=1)


def _records(batch: dict[str, list[bytes]]) -> list[int]:
    """Return the numbers of the records of a batch; compare each with what was written."""
    numbers = [int.from_bytes(bytes(data[:8]), "little") for data in batch["data"]]
    assert [bytes(data) for data in batch["data"]] == [payload(number) for number in numbers]
    return numbers


def _epoch(loader: fr.FastRecordLoader) -> list[int]:
    """Read an epoch, and compare each record."""
    return [number for batch in loader for number in _records(batch)]


@pytest.mark.parametrize("shuffle", [True, fr.Blocks(records=4, window=4)])
def test_epochs_download_what_was_planned(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool | fr.Blocks
) -> None:
    def no_other_rule(*_: object) -> None:
        raise AssertionError("what was used least recently was given up")

    monkeypatch.setattr(Cache, "_make_room", no_other_rule)
    dataset = _dataset(server, stored, tmp_path / "cache")
    # The plan is for values; heads take the rest of the cache, and come now.
    plan = plan_cache(_sampler(dataset, shuffle), dataset, cache_size=_LIMIT - _KEPT, epochs=_EPOCHS)
    loader = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, shuffle))
    came = [0]
    for _ in range(_EPOCHS):
        assert sorted(_epoch(loader)) == list(range(_TOTAL))
        assert dataset.selection.shards.sources[0].cache.used <= _LIMIT
        came.append(loader.stats().bytes_downloaded)
    assert tuple(np.diff(came)) == plan.bytes
    assert sum(plan.bytes) <= 1.02 * sum(plan.best_bytes)
    assert came[-1] + loader.stats().bytes_from_cache == _EPOCHS * int(_SIZES.sum())


def test_a_resumed_epoch_goes_on_with_what_is_in_the_cache(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = _dataset(server, stored, tmp_path / "cache")
    loader = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, True))
    seen: list[int] = []
    for number, batch in enumerate(loader):
        seen += _records(batch)
        if number == 7:
            break
    state = loader.state_dict()
    again = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, True))
    again.load_state_dict(state)
    assert sorted(seen + _epoch(again)) == list(range(_TOTAL))
    assert again.stats().bytes_from_cache > 0


def test_a_cache_that_is_too_small_for_a_plan_is_used_without(server: Server, stored: Data, tmp_path: Path) -> None:
    dataset = _dataset(server, stored, tmp_path / "cache", _KEPT + 300_000)
    with pytest.raises(ValueError, match="too small"):
        plan_cache(_sampler(dataset, False), dataset, cache_size=300_000)
    batches = iter(fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, False)))
    for start in (0, 6, 12):
        assert _records(next(batches)) == list(range(start, start + 6))


def test_a_rank_whose_last_batch_wraps_around_waits_for_its_own_steps(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    wait = PlanExecutor.wait

    def noted(self: PlanExecutor, step: int) -> None:
        steps.append(step)
        wait(self, step)

    monkeypatch.setattr(PlanExecutor, "wait", noted)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    # Of the last global batch only position 456 is in the epoch, and it is another rank's.
    dataset = _dataset(server, stored, tmp_path / "cache").subset(range(457))
    sampler = fr.FastRecordBatchSampler(dataset, 6, rank=3, world_size=4)
    assert len(_epoch(fr.FastRecordLoader(dataset, batch_sampler=sampler))) == 20 * 6
    assert steps == 10 * [0] + 10 * [1]


def test_a_store_that_fails_ends_the_epoch(server: Server, stored: Data, tmp_path: Path) -> None:
    options = {**server.options, "retry_seconds": 0.1}
    dataset = fr.FastRecordDataset(
        stored.url, fields=("data",), store=fr.Store(options, cache=tmp_path / "cache", cache_size=_LIMIT)
    )
    loader = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, True))
    batches = iter(loader)
    next(batches)
    server.faults.append(Fault("404", 10_000))
    with pytest.raises(FileNotFoundError, match=r"train-0000"):
        list(batches)


@pytest.mark.parametrize(
    ("started", "world_size", "more", "planned"),
    [
        (None, 1, {}, True),
        (None, 2, {}, False),  # perhaps on one node
        (None, 4, {"affinity": "shard", "nodes": 2}, True),
        ("1", 2, {}, True),
        ("2", 2, {}, True),
        ("2", 3, {}, False),
        ("2", 1, {}, False),  # each rank of the node loads all by itself
        ("2", 4, {"affinity": "shard", "nodes": 4}, False),
    ],
)
def test_ranks_follow_a_plan_where_it_is_known_which_ones_share_a_node(
    server: Server,
    stored: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: str | None,
    world_size: int,
    more: dict[str, Any],
    planned: bool,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if started is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", started)
    dataset = _dataset(server, stored, tmp_path / "cache")
    sampler = fr.FastRecordBatchSampler(dataset, 6, rank=world_size - 1, world_size=world_size, **more)
    assert can_plan(dataset, sampler) is planned


def _values(server: Server) -> list[Request]:
    """Return the requests for values, and whatever lies beside them."""
    return [one for one in server.requests if one.path.endswith(".frec") and one.stretch is not None and one.stretch[0]]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_cache_with_room_for_all_shards_has_them_brought_in_large_runs(
    server: Server, stored: Data, tmp_path: Path, threads: int
) -> None:
    size = sum(path.stat().st_size for path in stored.folder.glob("*.frec"))
    dataset = _dataset(server, stored, tmp_path / "cache", size)
    sampler = _sampler(dataset, True)
    assert not can_plan(dataset, sampler)
    loader = fr.FastRecordLoader(dataset, batch_sampler=sampler, threads=threads)
    for _ in range(2):
        assert sorted(_epoch(loader)) == list(range(_TOTAL))
    assert len(_values(server)) < _TOTAL // 20
    _assert_each_byte_once(server.requests)
    assert _dataset(server, stored, tmp_path / "cache", size - 1).selection.shards.fit_caches is False


def test_an_epoch_of_few_records_brings_these_alone(server: Server, stored: Data, tmp_path: Path) -> None:
    records = list(range(3, _TOTAL, 16))
    dataset = data_of(stored.url, server, tmp_path / "cache").subset(records)
    loader = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, True))
    assert sorted(_epoch(loader)) == records
    assert dataset.selection.shards.sources[0].traffic()[0] == _KEPT + int(_SIZES[records].sum())


def _global_batches(ranks: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


def _in_threads(work: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        errors = [future.exception() for future in [pool.submit(work, number) for number in range(count)]]
    # One that fails breaks the barrier at which the others wait.
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error


@pytest.mark.parametrize(
    ("ranks", "nodes", "shuffle", "affinity"),
    [
        (2, 1, True, False),
        (4, 1, fr.Blocks(records=4, window=4), False),
        (4, 2, fr.Blocks(records=4, window=8), True),
        (8, 4, True, True),
        (8, 4, True, False),
    ],
)
def test_all_ranks_of_a_node_download_what_was_planned_for_it(
    server: Server,
    stored: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    nodes: int,
    shuffle: bool | fr.Blocks,
    affinity: bool,
) -> None:
    def no_other_rule(*_: object) -> None:
        raise AssertionError("what was used least recently was given up")

    monkeypatch.setattr(Cache, "_make_room", no_other_rule)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks // nodes))
    more: dict[str, Any] = {"affinity": "shard", "nodes": nodes} if affinity else {}
    epochs = 2
    datasets = [_dataset(server, stored, tmp_path / f"node-{node}") for node in range(nodes)]
    samplers = [
        fr.FastRecordBatchSampler(
            datasets[0], 24 // ranks, shuffle=shuffle, seed=3, rank=rank, world_size=ranks, **more
        )
        for rank in range(ranks)
    ]
    plan = plan_cache(samplers[0], datasets[0], cache_size=_LIMIT - _KEPT, epochs=epochs, nodes=nodes)
    assert min(map(min, plan.bytes_per_node)) > 0
    seen: list[list[list[int]]] = [[] for _ in range(ranks)]
    asked: list[list[Request]] = []
    barrier = threading.Barrier(ranks, lambda: asked.append(list(server.requests)), timeout=60)

    def run(rank: int) -> None:
        loader = fr.FastRecordLoader(datasets[rank * nodes // ranks], batch_sampler=samplers[rank], threads=1)
        try:
            for _ in range(epochs):
                seen[rank] += [_records(batch) for batch in loader]
                barrier.wait()
        except BaseException:
            barrier.abort()
            raise

    _in_threads(run, ranks)
    for node, dataset in enumerate(datasets):
        source = dataset.selection.shards.sources[0]
        assert source.traffic()[0] - _KEPT == sum(plan.bytes_per_node[node])
        assert source.cache.used <= _LIMIT
        assert not list((tmp_path / f"node-{node}").glob("*.ranks"))
    local = fr.FastRecordDataset(stored.folder, fields=("data",))
    alone = fr.FastRecordBatchSampler(local, 24, shuffle=shuffle, seed=3, rank=0, world_size=1, drop_last="pad")
    loader = fr.FastRecordLoader(local, batch_sampler=alone)
    expected = [sorted(_records(batch)) for _ in range(epochs) for batch in loader]
    assert _global_batches(seen) == expected
    if nodes == 1:
        for before, after in itertools.pairwise([[], *asked]):
            _assert_each_byte_once(after[len(before) :])


def _assert_each_byte_once(requests: list[Request]) -> None:
    """Check that no requests for values overlap."""
    by_path: dict[str, list[tuple[int, int]]] = {}
    for request in requests:
        if request.stretch is not None and request.stretch[0] and request.path.endswith(".frec"):
            by_path.setdefault(request.path, []).append(request.stretch)
    for stretches in by_path.values():
        for (_, stop), (start, _) in itertools.pairwise(sorted(stretches)):
            assert stop <= start


def _be_a_rank(told: Connection, server: Server, stored: Data, cache: Path, rank: int, epochs: int, stop: int) -> None:
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)  # OpenMP's threads are the parent's
    dataset = _dataset(server, stored, cache)
    sampler = fr.FastRecordBatchSampler(dataset, 12, seed=3, rank=rank, world_size=2)
    loader = fr.FastRecordLoader(dataset, batch_sampler=sampler, threads=1)
    for _ in range(epochs):
        for number, _ in enumerate(loader):
            if number == stop:
                told.send("waiting")
                time.sleep(600)
        assert number + 1 == len(loader)
    told.send(dataset.selection.shards.sources[0].traffic()[0])


@contextmanager
def _started(
    server: Server, stored: Data, cache: Path, rank: int, epochs: int, stop: int = -1
) -> Iterator[tuple[Any, Connection]]:
    """Start a process that is a rank; yield it, and what it sends: "waiting" at a batch, or what it has downloaded."""
    context = get_context("fork")
    told, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_be_a_rank, args=(theirs, server, stored, cache, rank, epochs, stop))
    process.start()
    theirs.close()
    try:
        yield process, told
    finally:
        process.kill()
        process.join()


def test_two_processes_download_what_was_planned_for_their_node(server: Server, stored: Data, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with _started(server, stored, cache, 0, 2) as (_, first), _started(server, stored, cache, 1, 2) as (_, second):
        came = first.recv() + second.recv()
    dataset = _dataset(server, stored, tmp_path / "other")
    sampler = fr.FastRecordBatchSampler(dataset, 12, seed=3, rank=0, world_size=2)
    plan = plan_cache(sampler, dataset, cache_size=_LIMIT - _KEPT, epochs=2)
    assert came == sum(plan.bytes) + _KEPT


@pytest.mark.parametrize("stopping", [{0}, {1}, {0, 1}])
def test_ranks_that_stop_early_hold_up_no_others(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: set[int]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dataset = _dataset(server, stored, tmp_path / "cache")
    seen: list[list[list[int]]] = [[], []]

    def run(rank: int) -> None:
        sampler = fr.FastRecordBatchSampler(dataset, 12, rank=rank, world_size=2)
        loader = fr.FastRecordLoader(dataset, batch_sampler=sampler, threads=1)
        for number, batch in enumerate(loader):
            _records(batch)
            if number == 5 and rank in stopping:
                break
        # If both stop, the epoch begins again.
        loader.set_epoch(0 if len(stopping) == 2 else 1)
        seen[rank] = [_records(batch) for batch in loader]

    _in_threads(run, 2)
    assert sorted(itertools.chain(*_global_batches(seen))) == list(range(_TOTAL))
    assert not list((tmp_path / "cache").glob("*.ranks"))


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_whose_process_has_ended_between_two_epochs_is_not_waited_for(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dataset = _dataset(server, stored, tmp_path / "cache")
    sampler = fr.FastRecordBatchSampler(dataset, 12, seed=3, rank=1 - killed, world_size=2)
    loader = fr.FastRecordLoader(dataset, batch_sampler=sampler, threads=1)
    with _started(server, stored, tmp_path / "cache", killed, 1) as (other, told):
        seen = [_records(batch) for batch in loader]
        assert told.recv() > 0
        other.join()
    monkeypatch.setattr(ranks, "PATIENCE", 1e9)
    seen += [_records(batch) for batch in loader]
    assert len(seen) == 2 * len(loader)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_goes_on_when_another_one_is_killed(server: Server, stored: Data, tmp_path: Path, killed: int) -> None:
    cache = tmp_path / "cache"
    with (
        _started(server, stored, cache, killed, 1, stop=4) as (other, waits),
        _started(server, stored, cache, 1 - killed, 1) as (_, told),
    ):
        assert waits.recv() == "waiting"
        other.kill()
        other.join()
        assert told.recv() > 0
    # The next start follows a plan from the beginning.
    dataset = _dataset(server, stored, tmp_path / "cache")
    assert dataset.selection.shards.sources[0].cache.used <= _LIMIT
    assert not list((tmp_path / "cache").glob("*.ranks"))


def test_a_rank_that_leaves_while_another_one_looks_for_it_is_waited_for_in_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_free = str(tmp_path), ranks.Ranks._is_free
    leader = ranks.Ranks.join(folder, "first", 0, 2)
    other = ranks.Ranks.join(folder, "first", 1, 2)
    assert other is not None

    def free_by_now(self: ranks.Ranks, rank: int) -> bool:
        nonlocal leader
        assert leader is not None
        leader.leave()
        leader = None  # its lock ends with its mapping
        return is_free(self, rank)

    monkeypatch.setattr(ranks.Ranks, "_is_free", free_by_now)
    assert other.has(0)
    monkeypatch.undo()
    other.leave()
    later = ranks.Ranks.join(folder, "second", 1, 2)
    assert later is not None
    assert not later.has(0)
    later.leave()
