"""`Plan`: what a cache brings and gives up before each step, where all later uses are known.

Belady's rule: what is needed again last is given up first. The decisions depend on the order of
uses only, never on time, so counting them ahead and executing them gives the same bytes. Arithmetic
on arrays: reads no file, and knows neither samplers nor stores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

# Steps that a cache runs ahead, and the part of it that may be spent on that: what waits to be used
# cannot be kept for a later epoch.
_MOST_AHEAD = 16
_PART_AHEAD = 8
# Places that are searched at a time for what to give up.
_SEARCH = 4096


@dataclass(frozen=True, slots=True)
class Visits:
    """The uses of one epoch, in the order of `first`: neighbouring uses of a unit may be one visit.

    Attributes:
        units: What is used, int64 (N,). A unit is what is brought and given up as a whole.
        first, last: The steps of the epoch between which the unit stays, int64 (N,). `first` ascends.
    """

    units: Numbers
    first: Numbers
    last: Numbers


class Order(Protocol):
    """What one node uses when: a pure function of the epoch."""

    @property
    def steps(self) -> int:
        """Steps of an epoch."""

    @property
    def units(self) -> int:
        """Units are numbered from 0 up to this."""

    def visits(self, epoch: int) -> Visits:
        """Return the visits of an epoch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens before one step.

    Attributes:
        step: The step, counted through the epochs: `epoch * order.steps` and the step in the epoch.
        after: The last step that uses what is given up, or -1: it must be over.
        give_up: Units to give up, int64 (N,), ascending.
        bring: Units to bring after that, int64 (M,), ascending.
    """

    step: int
    after: int
    give_up: Numbers
    bring: Numbers


class _Epoch:
    """The visits of an epoch, in steps of all epochs, each linked with the unit's next one.

    Attributes:
        next: Number of the unit's next visit, counted through the epochs; -1 if it is not known.
        before: The last step of its previous visit in the epoch; -1 if there is none.
    """

    def __init__(self, order: Order, epoch: int, offset: int, start: int = 0) -> None:
        visits = order.visits(epoch)
        units, first, last = visits.units, visits.first, visits.last
        if start:
            left = last >= start
            units, first, last = units[left], np.maximum(first[left], start), last[left]
            by_first = np.argsort(first, kind="stable")
            units, first, last = units[by_first], first[by_first], last[by_first]
        base = epoch * order.steps
        self.number, self.offset, self.units = epoch, offset, units
        self.first, self.last = first + base, last + base
        self.next, self.before = np.full(len(units), -1, np.int64), np.full(len(units), -1, np.int64)
        # The unit's first and last visit of the epoch: its number, or -1.
        places = np.arange(len(units))
        self.head = np.full(order.units, -1, np.int64)
        self.head[units] = places
        self.tail = self.head
        if (self.head[units] != places).any():
            self._link()
        self.by_last = np.argsort(self.last, kind="stable")
        self.lasts = self.last[self.by_last]

    def _link(self) -> None:
        """Link the visits of units that are visited several times."""
        by_unit = np.argsort(self.units, kind="stable")
        units = self.units[by_unit]
        same = units[1:] == units[:-1]
        # A visit within an earlier one ends with it.
        group, span = np.cumsum(np.r_[False, ~same]), int(self.last.max()) + 1
        self.last[by_unit] = np.maximum.accumulate(self.last[by_unit] + group * span) - group * span
        self.next[by_unit[:-1][same]] = by_unit[1:][same] + self.offset
        self.before[by_unit[1:][same]] = self.last[by_unit[:-1][same]]
        self.tail = self.head.copy()
        heads, tails = by_unit[np.r_[True, ~same]], by_unit[np.r_[~same, True]]
        self.head[self.units[heads]], self.tail[self.units[tails]] = heads, tails

    def follow(self, earlier: _Epoch) -> None:
        """Link the last visits of the epoch before with the first ones of this epoch."""
        both = np.flatnonzero((earlier.tail >= 0) & (self.head >= 0))
        tails, heads = earlier.tail[both], self.head[both]
        earlier.next[tails] = heads + self.offset


class Plan:
    """The decisions of a cache, in the order of steps, without end.

    A unit is here from the step that brings it on, and stays during a visit and `ahead` steps before
    it. After a visit it is kept for the next one as long as there is room; of those that are kept, the
    one whose next visit begins last goes first. With units of one size nothing needs fewer bytes.
    With others, finding the fewest is a knapsack problem; `parts` gives a bound below them.

    Next visits are known up to the end of the next epoch. What has none goes first.

    Nothing comes for an epoch before it begins, when all steps of the one before are over. So a plan
    that begins with an epoch and what is here then decides as one that began earlier.

    Args:
        order: What the node uses when.
        sizes: Bytes of each unit, int64 (order.units,).
        limit: Bytes of the cache; None: without limit.
        ahead: A step's units are here this many steps before it is over.
        epoch, step: Where to begin.
        there: Units that are here already, int64 (N,).
        parts: Give up parts of units. No cache does; it makes the bytes a lower bound.

    Raises:
        ValueError: while iterating, if the limit is below what must be here at once.
    """

    def __init__(
        self,
        order: Order,
        sizes: Numbers,
        limit: int | None,
        *,
        ahead: int = 0,
        epoch: int = 0,
        step: int = 0,
        there: Numbers | None = None,
        parts: bool = False,
    ) -> None:
        self._order, self._sizes, self._limit, self._ahead, self._parts = order, sizes, limit, ahead, parts
        self._start = epoch, step
        self._held = np.zeros(order.units, np.int64)
        if there is not None:
            self._held[there] = sizes[there]
        self._used = int(self._held.sum())
        # The last step that has used each unit, as far as the plan goes back.
        self._last = np.full(order.units, -1, np.int64)

    @property
    def used(self) -> int:
        """Bytes that are here after the decision that came last."""
        return self._used

    @property
    def here(self) -> Numbers:
        """Units that are here after the decision that came last, ascending, int64 (N,)."""
        return np.flatnonzero(self._held)

    def __iter__(self) -> Iterator[Decision]:
        """Yield the decision before each step that has one, and before the first step of each epoch."""
        return (decision for decision, _ in self._decide())

    def of_epoch(self) -> Iterator[Decision]:
        """Yield the decisions of the epoch in which the plan begins."""
        return (decision for decision, _ in self._decide(self._start[0] + 1))

    def downloads(self, epochs: int) -> list[tuple[int, int]]:
        """Return the bytes and requests of epochs, the first of them from where the plan begins.

        A request is for neighbouring units; `requests_of` counts them.
        """
        counts = [(0, 0)] * epochs
        for decision, size in self._decide(self._start[0] + epochs):
            at = decision.step // self._order.steps - self._start[0]
            before = counts[at]
            counts[at] = before[0] + size, before[1] + requests_of(decision.bring, self._sizes)
        return counts

    def _decide(self, stop: int | None = None) -> Iterator[tuple[Decision, int]]:
        """Yield decisions and their bytes, up to an epoch."""
        order, ahead = self._order, self._ahead
        number, start = self._start
        now = _Epoch(order, number, 0, start)
        while now.number != stop:
            later = _Epoch(order, now.number + 1, now.offset + len(now.units))
            later.follow(now)
            self._enter(now, later)
            released = 0
            cuts = np.flatnonzero(np.diff(now.first)) + 1
            for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(now.units)], strict=True):
                # An epoch without visits is one step that needs nothing.
                step = int(now.first[begin]) if begin < end else now.number * order.steps + start
                # What was used last before the steps that have begun may go from here on.
                until = int(np.searchsorted(now.lasts, step - ahead, side="left"))
                self._release(now, now.by_last[released:until], begin)
                released = until
                units = now.units[begin:end]
                self._kept[begin:end] = False
                self._last[units] = np.maximum(now.last[begin:end], self._last[units])
                # Units without bytes are brought each time, at no cost.
                missing = np.unique(units[self._held[units] < np.maximum(self._sizes[units], 1)])
                size = int((self._sizes[missing] - self._held[missing]).sum())
                self._used += size
                self._held[missing] = self._sizes[missing]
                gone = self._make_room(end, step)
                if len(missing) or len(gone) or begin == 0:
                    after = int(self._last[gone].max()) if len(gone) else -1
                    yield Decision(step, after, np.sort(gone), missing), size
            now, start = later, 0

    def _enter(self, now: _Epoch, later: _Epoch) -> None:
        """Begin an epoch: all steps before it are over, so all that is here is kept for it, for the next, or idle."""
        # For each visit of both epochs: whether its unit is kept.
        self._kept = np.zeros(len(now.units) + len(later.units), bool)
        self._units, self._base = np.r_[now.units, later.units], now.offset
        # The targets that were flagged since room was made last; all others are at most `_high`.
        self._fresh: list[Numbers] = []
        self._high = -1
        # What is here with no known visit.
        self._idle = self._held > 0
        self._idlers = deque([self.here])
        for epoch in (now, later):
            units = np.flatnonzero(self._idle & (epoch.head >= 0))
            self._idle[units] = False
            self._keep(epoch.head[units] + epoch.offset)

    def _release(self, epoch: _Epoch, places: Numbers, arrived: int) -> None:
        """End visits: their units are kept for their next visits, or nothing is known of these."""
        targets = epoch.next[places]
        units = epoch.units[places[targets < 0]]
        self._idle[units] = True
        self._idlers.append(units)
        # Those whose next visit has begun stay because of it.
        self._keep(targets[targets >= self._base + arrived])

    def _keep(self, targets: Numbers) -> None:
        self._kept[targets - self._base] = True
        self._fresh.append(targets)

    def _make_room(self, arrived: int, step: int) -> Numbers:
        """Give up units until the rest is within the limit; return them."""
        gone: list[Numbers] = []
        excess = 0 if self._limit is None else self._used - self._limit
        while excess > 0 and self._idlers:
            units = self._idlers.popleft()
            units = units[self._idle[units]]
            cut, excess = self._drop(units, excess)
            self._idle[units[:cut]] = False
            gone.append(units[:cut])
            if cut < len(units):
                self._idlers.appendleft(units[cut:])
        if excess > 0:
            fresh = np.concatenate(self._fresh) - self._base
            fresh = fresh[fresh >= max(arrived, self._high + 1)]
            fresh = np.sort(fresh[self._kept[fresh]])[::-1]
            cut, excess = self._drop(self._units[fresh], excess)
            gone.append(self._units[fresh[:cut]])
            self._kept[fresh[:cut]] = False
            self._fresh = []
            if cut < len(fresh):
                self._high = int(fresh[cut])
        while excess > 0:
            low = max(arrived, self._high + 1 - _SEARCH)
            if low > self._high:
                raise ValueError(
                    f"a cache of {self._limit:,} bytes is too small: {self._used:,} bytes are needed at once in step "
                    f"{step % self._order.steps} of epoch {step // self._order.steps}"
                )
            targets = low + np.flatnonzero(self._kept[low : self._high + 1])[::-1]
            cut, excess = self._drop(self._units[targets], excess)
            gone.append(self._units[targets[:cut]])
            self._kept[targets[:cut]] = False
            self._high = int(targets[cut]) if cut < len(targets) else low - 1
        return np.concatenate(gone) if gone else np.empty(0, np.int64)

    def _drop(self, units: Numbers, excess: int) -> tuple[int, int]:
        """Give up units from the first on; return how many have gone, and what is still too much."""
        held = self._held[units]
        freed = np.cumsum(held)
        cut = min(int(np.searchsorted(freed, excess, side="left")) + 1, len(units))
        if cut and self._parts and freed[cut - 1] > excess:
            cut -= 1  # a part of the last one is enough
            part = excess - (int(freed[cut - 1]) if cut else 0)
            self._held[units[cut]] -= part
            self._used -= part
            excess = int(freed[cut - 1]) if cut else 0
        self._held[units[:cut]] = 0
        total = int(freed[cut - 1]) if cut else 0
        self._used -= total
        return cut, excess - total


def requests_of(units: Numbers, sizes: Numbers, part: int = 8 << 20) -> int:
    """Return the requests for units: one for each run of neighbours, or for each `part` bytes of it.

    Args:
        units: Ascending, int64 (N,).
        sizes: Bytes of each unit.
        part: Most bytes of a request.
    """
    if not len(units):
        return 0
    starts = np.r_[0, np.flatnonzero(np.diff(units) != 1) + 1]
    return int((-(-np.add.reduceat(sizes[units], starts) // part)).sum())


def least_limit(order: Order, sizes: Numbers, epochs: int, *, ahead: int = 0, epoch: int = 0) -> int:
    """Return the least bytes of a cache with which a plan of some epochs finds room."""
    most = 0
    for number in range(epoch, epoch + epochs):
        visits = _Epoch(order, number, 0)
        base, size = number * order.steps, sizes[visits.units]
        begins, ends = visits.first - base, visits.last + ahead + 1 - base
        change = np.zeros(order.steps + ahead + 1, np.int64)
        np.add.at(change, begins, size)
        np.add.at(change, ends, -size)
        # A visit that begins before the one before it may end continues it: no byte counts twice until then.
        continues = (visits.before >= 0) & (visits.before >= visits.first - ahead)
        np.add.at(change, begins[continues], -size[continues])
        np.add.at(change, (visits.before + ahead + 1 - base)[continues], size[continues])
        most = max(most, int(np.cumsum(change[: order.steps]).max(initial=0)))
    return most


def steps_ahead(order: Order, sizes: Numbers, limit: int | None) -> int:
    """Return the number of steps that a cache should run ahead: at least one where it has room.

    A function of the order's first epoch, so that a resumed run decides alike.
    """
    if limit is None:
        return _MOST_AHEAD
    visits = order.visits(0)
    mean = int(sizes[visits.units].sum()) // max(1, order.steps)
    steps = min(_MOST_AHEAD, max(1, limit // (_PART_AHEAD * max(1, mean))))
    # With room to spare: other epochs need a little more or less.
    while steps and least_limit(order, sizes, 1, ahead=steps) * 9 > limit * 8:
        steps //= 2
    return steps


@dataclass(frozen=True)
class CachePlan:
    """What caches of the known future will download.

    Attributes:
        cache_bytes: Bytes of one node's cache; None: without limit.
        nodes, ranks: Nodes, and ranks on all of them together.
        bytes: Bytes that all nodes download in each epoch.
        bytes_per_node: The same for each node: one tuple of epochs for each.
        requests: Ranged requests of all nodes in each epoch: one for each run of neighbouring records
            that are brought together, of at most 8 MiB. Opening shards comes on top.
        best_bytes: A lower bound of `bytes` for this order, whatever a cache decides, even if it kept
            parts of records and ran no step ahead.
        least_cache_bytes: The least cache with which the ranks find all that a step needs at once.
        ahead: Steps that a node downloads ahead, at most.
    """

    cache_bytes: int | None
    nodes: int
    ranks: int
    bytes: tuple[int, ...]
    bytes_per_node: tuple[tuple[int, ...], ...]
    requests: tuple[int, ...]
    best_bytes: tuple[int, ...]
    least_cache_bytes: int
    ahead: int


def plan_nodes(orders: list[Order], sizes: Numbers, limit: int | None, epochs: int, ranks: int) -> CachePlan:
    """Return the plan of all nodes, from empty caches.

    Args:
        orders: One for each node.
        sizes: Bytes of each unit.
        limit: Bytes of each node's cache.
        epochs: Epochs to plan, from 0 on.
        ranks: Ranks of all nodes.

    Raises:
        ValueError: the limit is too small; the error names the least one.
    """
    least = max(least_limit(order, sizes, epochs) for order in orders)
    if limit is not None and limit < least:
        raise ValueError(f"a cache of {limit:,} bytes is too small for this order: it needs at least {least:,} bytes")
    aheads = [steps_ahead(order, sizes, limit) for order in orders]
    plans = [
        Plan(order, sizes, limit, ahead=ahead).downloads(epochs) for order, ahead in zip(orders, aheads, strict=True)
    ]
    bounds = [Plan(order, sizes, limit, parts=True).downloads(epochs) for order in orders]
    return CachePlan(
        limit,
        len(orders),
        ranks,
        tuple(sum(plan[at][0] for plan in plans) for at in range(epochs)),
        tuple(tuple(size for size, _ in plan) for plan in plans),
        tuple(sum(plan[at][1] for plan in plans) for at in range(epochs)),
        tuple(sum(plan[at][0] for plan in bounds) for at in range(epochs)),
        least,
        max(aheads),
    )
