"""A loader whose cache knows the future: it downloads what was planned, within its limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.loader.steered import can_steer
from fastrecord.store.ahead import Ahead
from fastrecord.store.cache import Cache
from tests.store.conftest import Data
from tests.support.stores import Fault, Server

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
    fr.write_manifest(folder)
    return Data(folder, running_server.put_folder("steered", folder))


def _dataset(server: Server, stored: Data, cache: Path, limit: int = _LIMIT) -> fr.FastRecordDataset:
    return fr.FastRecordDataset(
        stored.url, fields=("data",), cache=cache, cache_size=limit, store_options=server.options
    )


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
    plan = dataset.plan_cache(_sampler(dataset, shuffle), cache_size=_LIMIT - _KEPT, epochs=_EPOCHS)
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
        dataset.plan_cache(_sampler(dataset, False), cache_size=300_000)
    batches = iter(fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, False)))
    for start in (0, 6, 12):
        assert _records(next(batches)) == list(range(start, start + 6))


def test_a_rank_whose_last_batch_wraps_around_waits_for_its_own_steps(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    wait = Ahead.wait

    def noted(self: Ahead, step: int) -> None:
        steps.append(step)
        wait(self, step)

    monkeypatch.setattr(Ahead, "wait", noted)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    # Of the last global batch only position 456 is in the epoch, and it is another rank's.
    dataset = _dataset(server, stored, tmp_path / "cache").subset(range(457))
    sampler = fr.FastRecordBatchSampler(dataset, 6, rank=3, world_size=4)
    assert len(_epoch(fr.FastRecordLoader(dataset, batch_sampler=sampler))) == 20 * 6
    assert steps == 10 * [0] + 10 * [1]


def test_a_store_that_fails_ends_the_epoch(server: Server, stored: Data, tmp_path: Path) -> None:
    options = {**server.options, "retry_config": {"max_retries": 0}}
    dataset = fr.FastRecordDataset(
        stored.url, fields=("data",), cache=tmp_path / "cache", cache_size=_LIMIT, store_options=options
    )
    loader = fr.FastRecordLoader(dataset, batch_sampler=_sampler(dataset, True))
    batches = iter(loader)
    next(batches)
    server.faults.append(Fault("404", 10_000))
    with pytest.raises(FileNotFoundError, match=r"train-0000"):
        list(batches)


@pytest.mark.parametrize(("started", "steered"), [(None, False), ("2", False), ("1", True)])
def test_one_rank_alone_on_its_node_follows_a_plan(
    server: Server, stored: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str | None, steered: bool
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if started is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", started)
    dataset = _dataset(server, stored, tmp_path / "cache")
    assert can_steer(dataset, fr.FastRecordBatchSampler(dataset, 6, rank=1, world_size=2)) is steered
