"""`fr.mix`: draws have the shares, no record repeats early, and every rank and resumed run agrees."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastrecord as fr
from fastrecord import FastRecordBatchSampler, _core
from tests.sampler.test_sampler import mix as stir
from tests.sampler.test_sampler import walk
from tests.sampler.test_weighted import GOLDEN, key

WORD = (1 << 64) - 1


def mixed(sizes: list[int], shares: list[int], seed: int, epoch: int, position: int) -> int:
    """The draw of docs/order.md."""
    base = [key(i, seed, epoch, sum(sizes), sum(shares)) for i in range(1, 9)]
    block, place = divmod(position, 64)
    before, after, rest = 64 * block, 64 * block + 64, sum(shares)
    order: list[tuple[int, int]] = []
    for source, share in enumerate(shares):
        if share:
            first, stop = ((2 * draws * share + rest) // (2 * rest) for draws in (before, after))
            order += [(source, first)] * (stop - first)
            before, after, rest = before - first, after - stop, rest - share
    block_key = stir(stir(base[0]) + block & WORD)
    for last in range(63, 0, -1):
        at = stir(block_key + last * GOLDEN & WORD) * (last + 1) >> 64
        order[last], order[at] = order[at], order[last]
    chosen, first = order[place]
    passes, number = divmod(first + order[:place].count(order[place]), sizes[chosen])
    keys = [stir(stir(stir(b + 1 & WORD) + chosen & WORD) + passes & WORD) for b in base]
    return sum(sizes[:chosen]) + walk(sizes[chosen], keys, number)


def write(path: Path, count: int, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    with fr.Writer(path, fr.Schema({"value": "int64", "label": "int64"})) as writer:
        writer.metadata = {"classes": list(classes)}
        for number in range(count):
            writer.append({"value": number, "label": number % 2})
    return path


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"{name}.frec", count) for name, count in (("a", 30), ("b", 500), ("c", 7))]


def drawn(sampler: FastRecordBatchSampler, epoch: int = 0) -> list[int]:
    return [row for batch in range(len(sampler)) for row in sampler.indices(batch, epoch=epoch).tolist()]


@given(
    parts=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40)), min_size=1, max_size=6).filter(
        lambda parts: any(turns for _, turns in parts)
    ),
    seed=st.integers(0, WORD),
    epoch=st.integers(0, WORD),
    position=st.integers(0, (1 << 62)),
)
def test_the_core_draws_as_is_written(parts: list[tuple[int, int]], seed: int, epoch: int, position: int) -> None:
    sizes, turns = [size for size, _ in parts], [turns for _, turns in parts]
    ends, ticks = (np.cumsum(numbers).astype(np.uint64) for numbers in (sizes, turns))
    (found,) = _core.draw_mixed(ends, ticks, seed, epoch, np.array([position])).tolist()
    assert found == mixed(sizes, turns, seed, epoch, position)


def test_of_every_64_draws_each_source_has_its_share(sources: list[Path]) -> None:
    a, b, c = sources
    data = fr.mix({a: 0.7, b: 0.2, c: 0.1})
    sampler = FastRecordBatchSampler(data, 64, seed=3, num_samples=6400)
    assert len(data) == 537
    assert data.mixture is not None
    assert data.mixture.shares == (7, 9, 10)
    for epoch in range(2):
        counts = np.zeros(3)
        for batch in range(len(sampler)):
            rows = sampler.indices(batch, epoch=epoch)
            counts += np.bincount(np.searchsorted([30, 530, 537], rows, side="right"), minlength=3)
            assert np.abs(counts - 64 * (batch + 1) * np.array([0.7, 0.2, 0.1])).max() <= 1


@pytest.mark.parametrize("shares", [(1, 1, 1), (0.5, 0.3, 0.2), (2, 0, 1), (0.123456789, 0.3, 1e-9), (1e-5, 3, 5)])
def test_shares_hold_to_rounding(sources: list[Path], shares: tuple[float, ...]) -> None:
    data = fr.mix(dict(zip(sources, shares, strict=True)))
    assert data.mixture is not None
    whole = np.diff(data.mixture.shares, prepend=0)
    expected = np.array(shares) / sum(shares)
    assert whole.sum() <= 65_536
    assert np.abs(whole / whole.sum() - expected).max() <= 1 / 65_536
    rows = drawn(FastRecordBatchSampler(data, 64, num_samples=6400))
    counts = np.bincount(np.searchsorted([30, 530, 537], rows, side="right"), minlength=3)
    assert np.abs(counts - 6400 * expected).max() <= 1.1


def test_no_record_repeats_before_its_source_is_used_up(sources: list[Path]) -> None:
    a, b, c = sources
    data = fr.mix({a: 1, b: 3, c: 1})
    for epoch in range(2):
        rows = drawn(FastRecordBatchSampler(data, 16, num_samples=1500, seed=1), epoch)
        for start, stop in ((0, 30), (30, 530), (530, 537)):
            own = [row for row in rows if start <= row < stop]
            for first in range(0, len(own), stop - start):
                once = own[first : first + stop - start]
                assert len(set(once)) == len(once)
            counts = Counter(own).values()
            assert max(counts) - (min(counts) if len(set(own)) == stop - start else 0) <= 1
    assert drawn(FastRecordBatchSampler(data, 16, seed=1), 0) != drawn(FastRecordBatchSampler(data, 16, seed=1), 1)


def test_it_resumes_in_the_middle_of_an_epoch_on_another_number_of_ranks(sources: list[Path]) -> None:
    data = fr.mix(dict(zip(sources, (0.5, 0.25, 0.25), strict=True)))
    sampler = FastRecordBatchSampler(data, 8, seed=4, num_samples=400)
    batches = iter(sampler)
    for _ in range(7):
        next(batches)
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = list(batches)
    again = pickle.loads(pickle.dumps(data))
    resumed = FastRecordBatchSampler(again, 8, num_samples=400)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    ranks = [FastRecordBatchSampler(again, 4, num_samples=400, rank=r, world_size=2, drop_last="exact") for r in (0, 1)]
    for rank in ranks:
        rank.load_state_dict(state)
    both = zip(*map(list, ranks), strict=True)
    assert [sorted(first + second) for first, second in both] == [sorted(batch) for batch in rest]
    other = FastRecordBatchSampler(fr.mix(dict.fromkeys(sources, 1)), 8, num_samples=400)
    with pytest.raises(ValueError, match="other mix than this sampler has"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="saved with mix, this sampler neither"):
        FastRecordBatchSampler(fr.concat(*map(fr.FastRecordDataset, sources)), 8).load_state_dict(state)


def test_the_loader_and_torch_take_its_records(sources: list[Path]) -> None:
    a, b, _ = sources
    data = fr.mix({a: 0.5, b: 0.5}, fields=("value",))
    sampler = FastRecordBatchSampler(data, 20, seed=2)
    expected = [row if row < 30 else row - 30 for row in drawn(sampler)]
    loader = fr.FastRecordLoader(data, batch_sampler=sampler)
    assert [value for batch in loader for value in batch["value"].tolist()] == expected
    assert sum(row < 30 for row in drawn(sampler)[:128]) == 64
    in_order = fr.FastRecordLoader(data, 50, shuffle=False)
    values = [value for batch in in_order for value in batch["value"].tolist()]
    assert values == [*range(30), *range(500)]


def test_sources_may_be_views_and_folders(sources: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("x", "y"):
        write(folder / f"{name}.frec", 5)
    fr.files.write_manifest(folder)
    even = fr.FastRecordDataset(sources[1]).filter("label", "==", 0)
    data = fr.mix({even: 1, str(folder): 1})
    assert len(data) == 260
    rows = np.array(drawn(FastRecordBatchSampler(data, 10, num_samples=512)))
    assert set(data.targets[rows[rows < 250]].tolist()) == {0}
    counts = Counter(rows[rows >= 250].tolist())
    assert (set(counts), counts.total()) == (set(range(250, 260)), 256)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_views_of_it_have_no_shares(sources: list[Path]) -> None:
    data = fr.mix(dict.fromkeys(sources, 1))
    assert data.mixture is not None
    assert data.select_fields(["value"]).mixture is not None
    view = data.subset(range(100))
    assert view.mixture is None
    assert sorted(drawn(FastRecordBatchSampler(view, 10))) == list(range(100))


@pytest.mark.parametrize(
    ("shares", "error", "message"),
    [
        ({}, TypeError, "shares are a dict"),
        ([0.5], TypeError, "shares are a dict"),
        ({"a": "1"}, TypeError, "the share of a is a number"),
        ({"a": True}, TypeError, "the share of a is a number"),
        ({"a": -1}, ValueError, "at least 0, and finite"),
        ({"a": float("nan")}, ValueError, "at least 0, and finite"),
        ({"a": 0, "b": 0.0}, ValueError, "the shares are all 0"),
    ],
    ids=str,
)
def test_shares_that_mean_nothing_are_refused(shares: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fr.mix(shares)


def test_sources_that_do_not_fit_are_refused(sources: list[Path], tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "other.frec", fr.Schema({"other": "int64"})) as writer:
        writer.append({"other": 1})
    with pytest.raises(ValueError, match=r"differ in fields"):
        fr.mix({sources[0]: 1, tmp_path / "other.frec": 1})
    empty = write(tmp_path / "empty.frec", 0)
    with pytest.raises(ValueError, match=r"empty\.frec: it has a share of 1, but no records"):
        fr.mix({sources[0]: 1, empty: 1})
    assert len(fr.mix({sources[0]: 1, empty: 0})) == 30
    data = fr.mix(dict.fromkeys(sources, 1))
    with pytest.raises(ValueError, match="mixes draw records at random"):
        FastRecordBatchSampler(data, 4, shuffle="blocks")
