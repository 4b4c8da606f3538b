"""What is computed on threads, ahead of a caller that takes it in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fastrecord.store.threads import in_order


def test_results_come_in_order_though_several_are_computed_at_once() -> None:
    together = threading.Barrier(4)

    def slow(number: int) -> int:
        together.wait(60)  # alone, it would wait for ever
        return number

    assert list(in_order(slow, range(12), 4, "test")) == list(range(12))


def test_only_a_few_items_are_taken_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(str, items(), 2, "test")
    assert next(results) == "0"
    assert taken == [0, 1, 2, 3]
    assert next(results) == "1"
    assert len(taken) == 5


def test_an_error_is_raised_in_the_place_of_its_result() -> None:
    results = in_order(lambda number: 1 // number, [1, 0, 1], 2, "test")
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
