"""Draws with replacement: by weight, and by alternating classes."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import Subset

import fastrecord as fr
from fastrecord import FastRecordBatchSampler, _core
from tests.conftest import write_images
from tests.sampler.test_sampler import mix, refuses, walk

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
WEIGHTS = [1.0, 2.0, 0.0, 4.0]
COUNTS = [1, 2, 5]
CLASSES = [2, 0, 2, 1, 2, 2, 1, 2]  # the counts of COUNTS


# --- the draws of docs/order.md ---


def key(number: int, *words: int) -> int:
    made = mix(number * GOLDEN & WORD)
    for word in words:
        made = mix(made + word & WORD)
    return made


def weighted(weights: list[float], seed: int, epoch: int, position: int) -> int:
    base = key(9, seed, epoch, len(weights))
    unit = (mix(base + (position + 1) * GOLDEN & WORD) >> 11) / (1 << 53)
    total = 0.0
    sums = [total := total + weight for weight in weights]
    target = min(unit * total, math.nextafter(total, 0))
    return next(record for record, reached in enumerate(sums) if reached > target)


def balanced(counts: list[int], seed: int, epoch: int, position: int) -> int:
    base = [key(i, seed, epoch, sum(counts), len(counts)) for i in range(1, 9)]
    turn, place = divmod(position, len(counts))
    chosen = walk(len(counts), [mix(mix(b) + turn & WORD) for b in base], place)
    again, number = divmod(turn, counts[chosen])
    keys = [mix(mix(mix(b + 1 & WORD) + chosen & WORD) + again & WORD) for b in base]
    return sum(counts[:chosen]) + walk(counts[chosen], keys, number)


def drawn(sampler: FastRecordBatchSampler, epoch: int = 0) -> list[int]:
    """Return the records of an epoch, in order."""
    return [row for batch in range(len(sampler)) for row in sampler.indices(batch, epoch=epoch).tolist()]


def by_weight(weights: Any, batch_size: int = 5, **options: Any) -> FastRecordBatchSampler:
    return FastRecordBatchSampler(range(len(weights)), batch_size, weights=weights, **options)


def by_class(classes: Any, batch_size: int = 5, **options: Any) -> FastRecordBatchSampler:
    return FastRecordBatchSampler(range(len(classes)), batch_size, balance=classes, **options)


@given(
    weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(any),
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    seed=st.integers(0, WORD),
    epoch=st.integers(0, WORD),
    position=st.integers(0, (1 << 63) - 2),
)
def test_the_core_draws_as_is_written(
    weights: list[float], counts: list[int], seed: int, epoch: int, position: int
) -> None:
    positions = np.array([position])
    sums = np.cumsum(np.array(weights))
    assert _core.draw_weighted(sums, seed, epoch, positions)[0] == weighted(weights, seed, epoch, position)
    ends = np.cumsum(counts).astype(np.uint64)
    assert _core.draw_balanced(ends, seed, epoch, positions)[0] == balanced(counts, seed, epoch, position)


@pytest.mark.parametrize("least", [5e-324, 1e-310, 2.3e-308])
def test_weights_may_be_the_smallest_numbers_there_are(least: float) -> None:
    assert set(drawn(by_weight([0.0, least, 0.0], num_samples=200))) == {1}
    assert set(drawn(by_weight([least, 0.0, least], num_samples=200))) == {0, 2}


# --- frequencies ---


def deviation(counts: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the chi-square statistic in standard deviations from its mean."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1))


@pytest.mark.parametrize("kind", ["uniform", "two", "steep", "random"])
def test_records_come_as_often_as_their_weights_say(kind: str) -> None:
    n = 500
    weights = {
        "uniform": np.ones(n),
        "two": np.where(np.arange(n) % 5 == 0, 9.0, 1.0),
        "steep": 1 / np.arange(1, n + 1),
        "random": np.random.default_rng(3).exponential(size=n) + 0.01,
    }[kind]
    counts = np.zeros(n, np.int64)
    sampler = by_weight(weights, 1000, num_samples=200_000)
    for epoch in range(2):
        counts += np.bincount(drawn(sampler, epoch), minlength=n)
    expected = 400_000 * weights / weights.sum()
    assert abs(deviation(counts, expected)) < 4


def test_each_class_comes_once_in_a_round() -> None:
    classes = np.random.default_rng(1).choice(7, 300, p=[0.5, 0.2, 0.1, 0.1, 0.06, 0.02, 0.02])
    rows = np.array(drawn(by_class(classes, 10, num_samples=7 * 200 + 3)))
    for start in range(0, 1400, 7):
        assert sorted(classes[rows[start : start + 7]].tolist()) == list(range(7))
    counts = np.bincount(classes[rows], minlength=7)
    assert counts.max() - counts.min() == 1


def test_no_record_comes_twice_before_all_of_its_class_have_been() -> None:
    classes = ["a"] * 3 + ["b"] * 50 + ["c"] * 11
    rows = drawn(by_class(classes, 8, num_samples=3 * 120))
    for name, count in Counter(classes).items():
        own = [row for row in rows if classes[row] == name]
        assert len(own) == 120
        orders = [tuple(own[start : start + count]) for start in range(0, 120 - 120 % count, count)]
        assert all(len(set(order)) == count for order in orders)
        assert len(set(orders)) > 1, "each time in another order"


def test_epochs_of_a_large_class_show_other_records_of_it() -> None:
    classes = [0] * 10 + [1] * 1000
    sampler = by_class(classes, 20, num_samples=200)
    seen = [{row for row in drawn(sampler, epoch) if classes[row]} for epoch in range(5)]
    assert [len(rows) for rows in seen] == [100] * 5
    assert len(set.union(*seen)) > 350


# --- like any order of the sampler ---


def test_any_batch_is_computed_without_those_before_it() -> None:
    sampler = by_weight(np.arange(1, 1001), 64, num_samples=1 << 50)
    last = len(sampler) - 1
    assert len(sampler) == 1 << 44
    expected = [weighted(list(range(1, 1001)), 0, 2, position) for position in sampler.positions(last).tolist()]
    assert sampler.indices(last, epoch=2).tolist() == expected


def test_an_epoch_has_num_samples_positions() -> None:
    sampler = by_weight([1, 2, 3], 4, num_samples=10)
    assert (len(sampler), sampler.num_samples) == (3, 10)
    assert [len(batch) for batch in sampler] == [4, 4, 2]
    assert (by_weight([1, 2, 3]).num_samples, FastRecordBatchSampler(range(3), 2, shuffle=True).num_samples) == (3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1, 2, 3, 5]}, "the state was saved with other weights than this sampler has"),
        ({"shuffle": True}, "the state was saved with weights, this sampler neither weights nor balance"),
        ({"balance": [0, 1, 0, 1]}, "the state was saved with weights, this sampler balance"),
        ({"weights": [1, 2, 3, 4], "num_samples": 9}, "the state has num_samples=4, this sampler 9"),
    ],
)
def test_a_state_of_other_draws_is_refused_and_changes_nothing(options: dict[str, Any], message: str) -> None:
    state = by_weight([1, 2, 3, 4], 2, seed=5).state_dict(batches_done=1)
    refuses(FastRecordBatchSampler(range(4), 2, **options), state, message)


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.float16, torch.tensor, lambda w: np.repeat(w, 2)[::2]])
def test_weights_come_in_any_array_of_numbers(kind: Any) -> None:
    assert drawn(by_weight(kind([1, 2, 0, 4]), num_samples=12)) == [3, 3, 1, 0, 1, 0, 3, 3, 3, 3, 3, 3]


def test_weights_are_taken_when_the_sampler_is_made() -> None:
    weights = np.array(WEIGHTS)
    sampler = by_weight(weights)
    before = drawn(sampler)
    weights[:] = [0, 0, 1, 0]
    assert drawn(sampler) == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": [1, 2, 3]}, ValueError, r"weights are an array \(4,\), one for each record, not of shape \(3,\)"),
        ({"weights": [[1, 2, 3, 4]]}, ValueError, r"not of shape \(1, 4\)"),
        ({"weights": [1, -2, 3, 4]}, ValueError, "at least 0 and finite, but record 1 has -2.0"),
        ({"weights": [1, 2, math.nan, 4]}, ValueError, "at least 0 and finite, but record 2 has nan"),
        ({"weights": [1, 2, 3, math.inf]}, ValueError, "at least 0 and finite, but record 3 has inf"),
        ({"weights": [0, 0, 0, 0]}, ValueError, "weights have a finite sum above 0, not 0.0"),
        ({"weights": [1e308] * 4}, ValueError, "weights have a finite sum above 0, not inf"),
        ({"weights": ["1"] * 4}, TypeError, "weights are an array of numbers, not of dtype"),
        ({"weights": [1j] * 4}, TypeError, "weights are an array of numbers"),
        ({"balance": [0, 1]}, ValueError, r"balance is an array \(4,\), the class of each record, not of shape \(2,\)"),
        ({"balance": "label"}, TypeError, "balance='label' names a field, and range has none"),
        ({"balance": [0, 1, 0, 1], "weights": [1] * 4}, ValueError, "two ways to draw records: give one"),
        ({"balance": [0, 1, 0, 1], "shuffle": False}, ValueError, "leave out shuffle=False"),
        ({"weights": [1] * 4, "shuffle": "blocks"}, ValueError, "leave out shuffle='blocks'"),
        ({"num_samples": 3, "shuffle": True}, ValueError, "give weights or balance too"),
        ({"weights": [1] * 4, "num_samples": 0}, ValueError, "num_samples is at least 1|num_samples is from 1"),
        ({"weights": [1] * 4, "num_samples": 2.0}, TypeError, "num_samples is an int, not float"),
        ({"weights": [1] * 4, "num_samples": 1, "drop_last": True}, ValueError, "an epoch has 1 records"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FastRecordBatchSampler(range(4), 2, **options)


def test_the_core_refuses_what_it_can_not_draw_from() -> None:
    positions = np.arange(3)
    for sums in ([], [0.0, 0.0], [1.0, math.inf], [1.0, math.nan]):
        with pytest.raises(ValueError, match="ascend, to a finite number above 0"):
            _core.draw_weighted(np.array(sums, np.float64), 0, 0, positions)
    for ends in ([], [0], [0, 3], [2, 2], [3, 2]):
        with pytest.raises(ValueError, match="each class has at least one record"):
            _core.draw_balanced(np.array(ends, np.uint64), 0, 0, positions)
    with pytest.raises(IndexError):
        _core.draw_weighted(np.ones(1), 0, 0, np.array([-1]))
    with pytest.raises(ValueError, match="one piece of memory"):
        _core.draw_weighted(np.ones(4)[::2], 0, 0, positions)


# --- of data sets ---


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> fr.FastRecordDataset:
    """30 records, of classes with 20, 7 and 3."""
    labels = [0] * 20 + [1] * 7 + [2] * 3
    path: Path = write_images(tmp_path_factory.mktemp("weighted") / "a.frec", labels, ["ant", "bee", "cat"])
    return fr.FastRecordDataset(path)


def test_balance_takes_a_field_of_a_data_set_and_of_its_views(data: fr.FastRecordDataset) -> None:
    for view in (data, data.subset(slice(None, 5, -1)), data.filter("label", "!=", "bee")):
        sampler = FastRecordBatchSampler(view, 6, balance="label")
        classes = len(np.unique(view.targets))
        counts = Counter(view.targets[drawn(sampler)].tolist())
        assert len(counts) == classes
        assert max(counts.values()) - min(counts.values()) <= 1
    by_key = FastRecordBatchSampler(data, 6, balance="key")
    assert sorted(drawn(by_key)) == list(range(30))
    with pytest.raises(fr.errors.SchemaError, match="no field 'nothing'"):
        FastRecordBatchSampler(data, 6, balance="nothing")
    with pytest.raises(TypeError, match="names a field, and Subset has none: give the class of each record"):
        FastRecordBatchSampler(Subset(data, [1, 2]), 2, balance="label")


def test_class_weights_make_every_class_equally_likely(data: fr.FastRecordDataset) -> None:
    weights = fr.inspect.class_weights(data)
    assert weights.mean() == pytest.approx(1)
    assert [weights[data.targets == label].sum() for label in range(3)] == pytest.approx([10, 10, 10])
    labels = data.targets[drawn(FastRecordBatchSampler(data, 100, weights=weights, num_samples=30_000))]
    assert abs(deviation(np.bincount(labels), np.full(3, 10_000.0))) < 4
    assert fr.inspect.class_weights(data, "key").tolist() == [1.0] * 30
    assert len(fr.inspect.class_weights(data.subset([0, 1, 29]))) == 3
