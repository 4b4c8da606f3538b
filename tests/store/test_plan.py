"""A cache that knows the future: best for units of one size, near the best for others, never too full."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastrecord._core import permute
from fastrecord.store.plan import Plan, Visits, least_limit, plan_nodes, requests_of, steps_ahead

Uses = list[tuple[int, int, int]]  # unit, first step, last step


class Listed:
    """Epochs that are listed, and come again after the last of them."""

    def __init__(self, epochs: Sequence[Uses], steps: int, units: int) -> None:
        self._epochs, self.steps, self.units = epochs, steps, units

    def visits(self, epoch: int) -> Visits:
        uses = sorted(set(self._epochs[epoch % len(self._epochs)]), key=lambda use: (use[1], use[0]))
        columns = np.array(uses, np.int64).reshape(-1, 3).T
        return Visits(*columns)


class Shuffled:
    """Every unit once an epoch, some in each step, in the order of a sampler."""

    def __init__(self, units: int, batch: int) -> None:
        self.units, self._batch, self.steps = units, batch, -(-units // batch)

    def visits(self, epoch: int) -> Visits:
        positions = np.arange(self.units)
        units, steps = permute(self.units, 0, epoch, positions), positions // self._batch
        order = np.lexsort((units, steps))
        return Visits(units[order], steps[order], steps[order])


def required(order: Listed | Shuffled, epochs: int, ahead: int) -> list[set[int]]:
    """Return what must be here in each step of some epochs, and of the one after; nothing stays after its epoch."""
    needed: list[set[int]] = [set() for _ in range((epochs + 1) * order.steps)]
    for epoch in range(epochs + 1):
        visits = order.visits(epoch)
        base = epoch * order.steps
        for unit, first, last in zip(visits.units.tolist(), visits.first.tolist(), visits.last.tolist(), strict=True):
            for step in range(base + first, base + min(last + ahead + 1, order.steps)):
                needed[step].add(unit)
    return needed[: epochs * order.steps]


def best(needed: Sequence[set[int]], sizes: NDArray[np.int64], limit: int) -> int:
    """Return the fewest bytes that any cache downloads, by trying every content of it."""
    costs = {frozenset[int](): 0}
    for units in needed:
        after: dict[frozenset[int], int] = {}
        for content, cost in costs.items():
            total = cost + sum(int(sizes[unit]) for unit in units - content)
            others = sorted(content - units)
            found: list[frozenset[int]] = []
            for kept in itertools.chain.from_iterable(
                itertools.combinations(others, count) for count in range(len(others), -1, -1)
            ):
                chosen = frozenset(units | set(kept))
                # To keep less is never better.
                if not any(chosen < more for more in found) and sum(int(sizes[u]) for u in chosen) <= limit:
                    found.append(chosen)
                    after[chosen] = min(after.get(chosen, total), total)
        costs = after
    return min(costs.values())


@st.composite
def shuffles(draw: st.DrawFn, units: int = 6) -> Listed:
    """Every unit once in each of three epochs."""
    batch = draw(st.integers(1, 3))
    epochs = [
        [(unit, place // batch, place // batch) for place, unit in enumerate(draw(st.permutations(range(units))))]
        for _ in range(3)
    ]
    return Listed(epochs, -(-units // batch), units)


@st.composite
def uses(draw: st.DrawFn, units: int = 7, steps: int = 5) -> Listed:
    """Anything: units that come never, several times, at once, or stay for a while."""
    one = st.tuples(st.integers(0, units - 1), st.integers(0, steps - 1), st.integers(0, 2))
    epochs = draw(st.lists(st.lists(one, max_size=14), min_size=1, max_size=4))
    return Listed([[(u, f, min(f + s, steps - 1)) for u, f, s in epoch] for epoch in epochs], steps, units)


@given(shuffles(), st.integers(0, 1), st.integers(2, 6))
def test_no_cache_downloads_fewer_units_of_one_size(order: Listed, ahead: int, limit: int) -> None:
    sizes = np.ones(order.units, np.int64)
    if limit < least_limit(order, sizes, 4, ahead=ahead):
        return
    plan = Plan(order, sizes, limit, ahead=ahead)
    assert sum(size for size, _ in plan.downloads(3)) == best(required(order, 3, ahead), sizes, limit)


@given(shuffles(5), st.lists(st.integers(1, 9), min_size=5, max_size=5), st.integers(9, 40))
def test_the_bound_is_below_the_best_for_units_of_any_size(order: Listed, sizes: list[int], limit: int) -> None:
    weights = np.array(sizes, np.int64)
    if limit < least_limit(order, weights, 4):
        return
    planned = sum(size for size, _ in Plan(order, weights, limit).downloads(3))
    bound = sum(size for size, _ in Plan(order, weights, limit, parts=True).downloads(3))
    assert bound <= best(required(order, 3, 0), weights, limit) <= planned


def test_sizes_as_images_have_them_cost_less_than_a_hundredth() -> None:
    sizes = np.random.default_rng(0).lognormal(11.4, 0.6, 3000).astype(np.int64)
    order, limit = Shuffled(3000, 32), int(sizes.sum()) // 4
    planned = sum(size for size, _ in Plan(order, sizes, limit).downloads(3))
    bound = sum(size for size, _ in Plan(order, sizes, limit, parts=True).downloads(3))
    assert bound <= planned < 1.01 * bound


@given(uses(), st.integers(0, 2), st.integers(0, 12), st.data())
def test_what_a_step_needs_is_here_and_the_rest_fits(
    order: Listed, ahead: int, spare: int, data: st.DataObject
) -> None:
    epochs = 4
    sizes = np.array(data.draw(st.lists(st.integers(0, 5), min_size=order.units, max_size=order.units)), np.int64)
    limit = least_limit(order, sizes, epochs + 2, ahead=ahead) + spare
    there = np.array(data.draw(st.lists(st.integers(0, order.units - 1), unique=True)), np.int64)
    begin = data.draw(st.integers(0, order.steps - 1))
    plan = Plan(order, sizes, limit, ahead=ahead, step=begin, there=there)
    needed, exact = required(order, epochs, ahead), required(order, epochs, 0)
    used_last = {int(unit): -1 for unit in there}
    here = set(there.tolist())
    decisions = iter(plan)
    decision = next(decisions)
    for step in range(begin, epochs * order.steps):
        if decision.step == step:
            gone, brought = decision.give_up.tolist(), decision.bring.tolist()
            assert set(gone) <= here
            assert not any(sizes[unit] and unit in here for unit in brought)
            # What goes is not needed by any step that is not over, and `after` is the last that was.
            over = max(step - ahead, step // order.steps * order.steps, 1)
            assert decision.after == max((used_last[unit] for unit in gone), default=-1) < over
            here = (here - set(gone)) | set(brought)
            assert plan.used == sum(int(sizes[unit]) for unit in here) <= limit
            decision = next(decisions)
        assert exact[step] <= here
        if step >= begin + ahead + 3:  # visits before the beginning are not known to the plan
            assert needed[step] <= here
        for unit in exact[step]:
            used_last[unit] = step


@given(uses(), st.integers(0, 2))
def test_the_least_limit_is_the_least(order: Listed, ahead: int) -> None:
    sizes = np.arange(1, order.units + 1)
    least = least_limit(order, sizes, 3, ahead=ahead)
    assert least == max(int(sizes[list(units)].sum()) for units in required(order, 3, ahead))
    Plan(order, sizes, least, ahead=ahead).downloads(3)
    if least:
        with pytest.raises(ValueError, match="too small: "):
            Plan(order, sizes, least - 1, ahead=ahead).downloads(3)


def test_a_plan_that_goes_on_decides_as_one_that_never_stopped() -> None:
    order, sizes = Shuffled(500, 8), np.ones(500, np.int64)
    plan = Plan(order, sizes, 120)
    decisions = list(itertools.islice(plan, 130))
    first = Plan(order, sizes, 120)
    before = list(itertools.islice(first, 90))
    at = before[-1].step + 1
    then = Plan(order, sizes, 120, epoch=at // order.steps, step=at % order.steps, there=first.here)
    for ours, theirs in zip(decisions[90:], then, strict=False):
        assert ours.step == theirs.step
        assert (ours.bring.tolist(), ours.give_up.tolist()) == (theirs.bring.tolist(), theirs.give_up.tolist())


@given(uses(), st.integers(0, 2), st.integers(0, 12), st.data())
def test_a_plan_that_begins_with_an_epoch_downloads_what_an_earlier_one_would(
    order: Listed, ahead: int, spare: int, data: st.DataObject
) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(0, 5), min_size=order.units, max_size=order.units)), np.int64)
    limit = least_limit(order, sizes, 4, ahead=ahead) + spare
    here, anew = None, []
    for epoch in range(4):
        plan = Plan(order, sizes, limit, ahead=ahead, epoch=epoch, there=here)
        anew.append(sum(int(sizes[decision.bring].sum()) for decision in plan.of_epoch()))
        here = plan.here
    assert anew == [size for size, _ in Plan(order, sizes, limit, ahead=ahead).downloads(4)]


def test_a_part_x_of_the_data_in_the_cache_saves_x_of_every_later_epoch() -> None:
    order, sizes = Shuffled(4000, 4), np.ones(4000, np.int64)
    first, *later = (size for size, _ in Plan(order, sizes, 1000).downloads(4))
    assert first == 4000
    assert all(3000 <= size <= 3010 for size in later)


def test_the_least_recently_used_would_save_far_less() -> None:
    order, limit = Shuffled(4000, 4), 1000
    here: dict[int, None] = {}
    missed = 0
    for epoch in range(3):
        missed = 0
        for unit in order.visits(epoch).units.tolist():
            missed += here.pop(unit, 0) is not None
            here[unit] = None
            if len(here) > limit:
                del here[next(iter(here))]
    expected = 0.75 - 0.75 * np.log(0.75)  # docs/scale.md
    assert missed / 4000 == pytest.approx(expected, abs=0.02)


def test_without_a_limit_everything_comes_once_and_each_epoch_still_has_a_decision() -> None:
    order, sizes = Shuffled(100, 10), np.full(100, 7)
    assert [size for size, _ in Plan(order, sizes, None).downloads(3)] == [700, 0, 0]
    assert [decision.step for decision in itertools.islice(Plan(order, sizes, None), 12)] == [*range(10), 10, 20]


def test_requests_are_runs_of_neighbours_and_of_limited_size() -> None:
    sizes = np.full(20, 3)
    assert requests_of(np.array([], np.int64), sizes) == 0
    assert requests_of(np.array([1, 2, 3, 7, 9, 10]), sizes) == 3
    assert requests_of(np.array([1, 2, 3, 7, 9, 10]), sizes, part=4) == 3 + 1 + 2


def test_a_small_cache_runs_few_steps_ahead_and_a_large_one_more() -> None:
    order, sizes = Shuffled(1000, 10), np.ones(1000, np.int64)
    assert [steps_ahead(order, sizes, limit) for limit in (10, 22, 23, 480, 10**6, None)] == [0, 0, 1, 6, 16, 16]


def test_the_plan_of_nodes_adds_up_and_names_the_least_cache() -> None:
    orders = [Shuffled(100, 10), Shuffled(100, 10)]
    sizes = np.full(100, 5)
    plan = plan_nodes([*orders], sizes, 200, 2, ranks=4)
    assert plan.bytes[0] == 1000
    assert plan.bytes_per_node[0][0] == 500
    assert plan.bytes[1] >= plan.best_bytes[1] >= 600 - 50
    assert (plan.nodes, plan.ranks, plan.cache_bytes, plan.least_cache_bytes) == (2, 4, 200, 50)
    assert plan.requests[0] <= 200
    with pytest.raises(ValueError, match="at least 50 bytes"):
        plan_nodes([*orders], sizes, 49, 2, ranks=4)
