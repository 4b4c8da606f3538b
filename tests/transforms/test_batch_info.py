"""The random numbers for a batch's transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastrecord.transforms.batch_info import BatchInfo


def info(positions: Any, seed: int = 42, epoch: int = 7) -> BatchInfo:
    positions = np.asarray(positions, np.int64)
    return BatchInfo(seed, epoch, positions, positions[::-1].copy())


def test_the_numbers_never_change() -> None:
    assert info([3, 0]).uniform(2).tolist() == [
        [0.307240084118948, 0.3691564507843528],
        [0.21627726824064453, 0.7891888901008218],
    ]
    assert info([3]).uniform(1, stream=1).tolist() == [[0.890851101213209]]


def test_numbers_belong_to_a_position_not_to_a_batch() -> None:
    whole = info(range(100)).uniform(4)
    parts = [info(range(start, start + 20)).uniform(4) for start in range(0, 100, 20)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(info([7, 3, 7]).uniform(2), whole[[7, 3, 7], :2])
    assert whole.dtype == np.float64
    assert whole.shape == (100, 4)


def test_seeds_epochs_positions_and_streams_have_numbers_of_their_own() -> None:
    numbers = [
        info(range(50), seed, epoch).uniform(3, stream=stream)
        for seed in (0, 1)
        for epoch in (0, 1)
        for stream in (0, 1, 2**64 - 1)
    ]
    assert np.unique(np.concatenate(numbers)).size == 12 * 50 * 3
    assert all(((x >= 0) & (x < 1)).all() for x in numbers)


def test_a_batch_without_records_and_one_without_draws_have_no_numbers() -> None:
    assert info([]).uniform(3).shape == (0, 3)
    assert info([1, 2]).uniform(0).shape == (2, 0)
    assert len(info([1, 2])) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 0, [0], [0]), ValueError, r"seed is from 0 to 18446744073709551615, not -1"),
        ((0, 2**64, [0], [0]), ValueError, "epoch is from 0"),
        ((0, 0, [0.5], [0]), TypeError, "positions is an int64 array, not float64"),
        ((0, 0, [0], [0, 1]), ValueError, r"one number for each record: rows is \(2,\)"),
        ((0, 0, [[0]], [0]), ValueError, r"one number for each record: positions is \(1, 1\)"),
    ],
)
def test_what_is_no_batch_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    seed, epoch, *arrays = arguments
    with pytest.raises(error, match=message):
        BatchInfo(seed, epoch, *map(np.array, arrays))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rows is an int64 array, not list"):
        BatchInfo(0, 0, np.array([0]), [0])  # type: ignore[arg-type]


def test_draws_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="a record draws at most 65536 numbers, not 100000"):
        info([1]).uniform(100_000)
    with pytest.raises(ValueError, match="positions are at least 0"):
        info([1, -1]).uniform(1)
    with pytest.raises(OverflowError):
        info([1]).uniform(-1)
