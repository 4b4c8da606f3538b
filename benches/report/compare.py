"""Two results beside each other.

A row changed if the rounds of both results do not overlap: the new rounds are all better, or all
worse, than the old ones. Machines differ, and so do their loads; the ratios of contenders that took
turns are what compares. So the same is asked of the ratios, round by round, of fastrecord to each
other contender of a case. Values of one round, such as bytes, changed if they differ by more than
`ONE_ROUND`. Few rounds can lie apart by chance, 3 and 3 in 10 % of cases, so the report says how many
would if nothing had changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benches.report.cases import Case, Experiment, load, ratios
from benches.report.words import machine, number, shown, times

ONE_ROUND = 0.02


@dataclass(frozen=True)
class Change:
    """A value, or a ratio, in both results.

    Attributes:
        where: Experiment and case.
        what: The contender, or the two whose ratio it is.
        unit: The unit; "" for a ratio.
        old, new: Median, least and most of the rounds.
        better: Whether the new one is better.
        beyond: Whether it changed by more than the spread of the rounds.
        chance: The probability of `beyond` if nothing has changed, when all orders of the rounds are
            equally likely.
    """

    where: str
    what: str
    unit: str
    old: tuple[float, float, float]
    new: tuple[float, float, float]
    better: bool
    beyond: bool
    chance: float

    @property
    def ratio(self) -> tuple[float, float, float]:
        """New over old: of the medians, and the least and most that the rounds allow."""
        (old, old_least, old_most), (new, least, most) = self.old, self.new
        return _over(new, old), _over(least, old_most), _over(most, old_least)


@dataclass(frozen=True)
class Comparison:
    """What two results have in common, and what only one has ("experiment: case: contender")."""

    values: tuple[Change, ...]
    ratios: tuple[Change, ...]
    gone: tuple[str, ...]
    added: tuple[str, ...]


def compare(old: Mapping[str, Experiment], new: Mapping[str, Experiment]) -> Comparison:
    """Compare all rows that both results have."""
    before, after = _rows(old), _rows(new)
    values, relations = [], []
    for key in (key for key in after if key in before):
        experiment, name, contender, unit = key
        case, earlier = after[key], before[key]
        a, b = earlier.row(contender), case.row(contender)
        if a is None or b is None:
            continue
        where = f"{experiment}: {name}"
        more = b.better == "more"
        rounds = len(a.values), len(b.values)
        spans = _of(a.values, a.median), _of(b.values, b.median)
        values.append(_change(where, contender, unit, *spans, rounds=rounds, more=more))
        mine, theirs = earlier.ours, case.ours
        if mine is None or theirs is None or mine.contender != theirs.contender or contender == theirs.contender:
            continue
        what = f"{theirs.contender} beside {contender}"
        relations.append(_change(where, what, "", ratios(mine, a), ratios(theirs, b), rounds=rounds, more=True))
    return Comparison(
        tuple(values),
        tuple(relations),
        tuple(_named(key) for key in before if key not in after),
        tuple(_named(key) for key in after if key not in before),
    )


def report(a: Path, b: Path) -> Iterator[str]:
    """Yield what changed from the results in `a` to those in `b`."""
    old, new = load(a), load(b)
    found = compare(old, new)
    for path, results in ((a, old), (b, new)):
        runs: dict[str, list[str]] = {}
        for name, experiment in results.items():
            facts = experiment.facts
            run = f"{'full' if facts.full else 'short'} run, commit {facts.commit or 'unknown'}, {machine(facts)}"
            runs.setdefault(run, []).append(f"{name} ({facts.date})")
        yield from (f"{path}: {run}: {', '.join(names)}" for run, names in runs.items())
    yield ""
    yield from _told("ratios to other contenders", found.ratios)
    yield from _told("values", found.values)
    for title, names in (("only in the second", found.added), ("only in the first", found.gone)):
        if names:
            yield f"{title}: {len(names)}"
            yield from (f"  {name}" for name in names)
            yield ""


def _told(title: str, changes: Sequence[Change]) -> Iterator[str]:
    beyond = [change for change in changes if change.beyond]
    better = sum(change.better for change in beyond)
    counts = f"{better} better, {len(beyond) - better} worse"
    chance = sum(change.chance for change in changes)
    yield f"{title}: {len(changes)} in both; beyond the spread of the rounds {counts}; by chance about {chance:.0f}"
    for change in sorted(beyond, key=lambda change: (change.better, change.where)):
        middle, least, most = change.ratio
        old, new = (
            (times(value) if change.unit == "" else shown(value, change.unit))
            for value in (change.old[0], change.new[0])
        )
        word = "better" if change.better else "worse"
        ratio = f"{number(middle)} ({number(least)} - {number(most)})"
        yield f"  {word}: {change.where}: {change.what}: {old} -> {new}, ratio {ratio}"
    yield ""


def _rows(results: Mapping[str, Experiment]) -> dict[tuple[str, str, str, str], Case]:
    return {
        (name, case.name, row.contender, case.unit): case
        for name, experiment in results.items()
        for case in experiment.cases
        for row in case.rows
    }


def _named(key: tuple[str, str, str, str]) -> str:
    experiment, case, contender, unit = key
    return f"{experiment}: {case}: {contender}" + (f" ({unit})" if unit else "")


def _of(values: Sequence[float], median: float) -> tuple[float, float, float]:
    return median, min(values), max(values)


def _over(a: float, b: float) -> float:
    return a / b if b else (1.0 if a == b else float("inf"))


def _change(
    where: str,
    what: str,
    unit: str,
    old: tuple[float, float, float],
    new: tuple[float, float, float],
    *,
    rounds: tuple[int, int],
    more: bool,
) -> Change:
    # Of all ways to divide as many rounds into the two results, two have no overlap.
    chance = 0.0 if max(rounds) == 1 else 2 / math.comb(sum(rounds), rounds[0])
    if old[1] == old[2] and new[1] == new[2]:
        beyond = abs(_over(new[0], old[0]) - 1) > ONE_ROUND
    else:
        beyond = new[1] > old[2] or new[2] < old[1]
    return Change(where, what, unit, old, new, (new[0] > old[0]) == more, beyond, chance)
