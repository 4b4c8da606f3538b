"""`Experiment` and `Case`: the rows of a folder of results, grouped and sorted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.harness import Facts, Row, read
from benches.report.words import shown

OURS = "fastrecord"
# Settings that explain a row but do not tell it from another one.
EXPLAIN = ("version", "why", "cpu_seconds", "records", "yardstick")


def is_ours(contender: str) -> bool:
    """Return whether a contender is fastrecord, or a variant of it."""
    return contender == OURS or contender.startswith((f"{OURS} ", f"{OURS},"))


def is_yardstick(row: Row) -> bool:
    """Return whether a row does less than the work of the others, and only shows what is possible."""
    less = row.contender.startswith("memcpy") or "short side" in row.contender
    return less or bool(row.settings.get("yardstick"))


def ratios(ours: Row, peer: Row) -> tuple[float, float, float]:
    """Return how many times as good `ours` is as `peer`: of the medians, least and most of the rounds.

    The contenders took turns, so round n of both saw the same machine: their values are compared in
    pairs. Rows with different numbers of rounds give the least and most of all pairs.
    """

    def ratio(mine: float, other: float) -> float:
        above, below = (mine, other) if ours.better == "more" else (other, mine)
        return above / below if below else 1.0 if above == 0 else float("inf")

    if len(ours.values) == len(peer.values):
        pairs = [*zip(ours.values, peer.values, strict=True)]
    else:
        pairs = [(mine, other) for mine in ours.values for other in peer.values]
    each = [ratio(mine, other) for mine, other in pairs]
    return ratio(ours.median, peer.median), min(each), max(each)


@dataclass(frozen=True)
class Case:
    """What was measured of several contenders in one unit.

    Attributes:
        name: The case, in words.
        unit: The unit of the values.
        rows: The measured contenders, best first.
        missing: The contenders that were not measured.
    """

    name: str
    unit: str
    rows: tuple[Row, ...]
    missing: tuple[Row, ...] = ()

    def row(self, contender: str) -> Row | None:
        """Return the row of a contender, if it was measured."""
        return next((row for row in self.rows if row.contender == contender), None)

    @property
    def ours(self) -> Row | None:
        """The row that ratios refer to: "fastrecord", or the best of its variants."""
        return self.row(OURS) or self.best_of_ours

    @property
    def best_of_ours(self) -> Row | None:
        """The best row of fastrecord and its variants that do the work of the others."""
        return next((row for row in self.rows if is_ours(row.contender) and not is_yardstick(row)), None)

    @property
    def best_peer(self) -> Row | None:
        """The best row of another contender; a yardstick, such as a memcpy, is none."""
        return next(
            (row for row in self.rows if not is_ours(row.contender) and not row.settings.get("yardstick")), None
        )

    @property
    def verdict(self) -> str:
        """The place of fastrecord: "first", "level", "behind", or "" where nothing competes.

        It is level if its median is behind but it won at least one of the rounds.
        """
        if self.best_of_ours is None or self.best_peer is None:
            return ""
        middle, _, most = ratios(self.best_of_ours, self.best_peer)
        return "first" if middle >= 1 else "level" if most >= 1 else "behind"

    @property
    def why(self) -> str:
        """Why fastrecord is not first, as the experiment says it."""
        return next((str(row.settings["why"]) for row in self.rows if row.settings.get("why")), "")


@dataclass(frozen=True)
class Experiment:
    """The results of one experiment."""

    name: str
    facts: Facts
    rows: tuple[Row, ...]
    cases: tuple[Case, ...]

    def case(self, name: str, unit: str | None = None) -> Case | None:
        """Return a case that has measured rows."""
        return next((case for case in self.cases if case.name == name and unit in (None, case.unit)), None)


def load(folder: Path) -> dict[str, Experiment]:
    """Read all results of a folder.

    Raises:
        FileNotFoundError: it has none.
        ValueError: a file in it is none.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no results; `python -m benches.experiments --out {folder}` makes them")
    found = {}
    for path in paths:
        facts, rows = read(path)
        found[path.stem] = Experiment(path.stem, facts, tuple(rows), tuple(group(rows)))
    return found


def group(rows: Iterable[Row]) -> list[Case]:
    """Group rows by case and unit, in the order in which they first come.

    If fastrecord itself was measured several times, say with one and two threads, each setting makes a
    case of its own. Otherwise the settings of a contender's rows distinguish them.
    """
    measured: dict[tuple[str, str], list[Row]] = {}
    missing: dict[str, list[Row]] = {}
    for row in rows:
        if row.values:
            measured.setdefault((row.case, row.unit), []).append(row)
        else:
            missing.setdefault(row.case, []).append(row)
    cases = []
    for (name, unit), found in measured.items():
        for words, part in _split(found).items():
            named = _told_apart(part)
            named.sort(key=lambda row: row.median, reverse=named[0].better == "more")
            title = ", ".join(filter(None, [name, words]))
            cases.append(Case(title, unit, tuple(named), tuple(missing.pop(name, ()))))
    return cases + [Case(name, left[0].unit, (), tuple(left)) for name, left in missing.items()]


def _split(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Divide rows by the settings in which rows of fastrecord differ, as words: "2 threads"."""
    names: dict[str, None] = {}
    for row in rows:
        if is_ours(row.contender):
            names |= dict.fromkeys(_differing(row, rows))
    parts: dict[str, list[Row]] = {}
    for row in rows:
        words = ", ".join(setting_words(name, row.settings[name]) for name in names if name in row.settings)
        parts.setdefault(words, []).append(row)
    return parts


def _differing(row: Row, rows: Iterable[Row]) -> list[str]:
    """Return the settings in which rows of the same contender differ."""
    same = [other for other in rows if other.contender == row.contender]
    return [
        name for name, value in plain_settings(row).items() if any(other.settings.get(name) != value for other in same)
    ]


def _told_apart(rows: Sequence[Row]) -> list[Row]:
    """Give rows of one name the settings in which they differ: "h5py, 2 workers"."""
    return [
        replace(
            row,
            contender=", ".join(
                [row.contender, *(setting_words(name, row.settings[name]) for name in _differing(row, rows))]
            ),
        )
        for row in rows
    ]


def setting_words(name: str, value: object) -> str:
    """Return a setting in words: "2 threads", "batch 8", "limit 1.07 GB"."""
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')} {shown(value, 'bytes')}"
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith("s"):
        one = name.removesuffix("es" if name.endswith("sses") else "s")
        return f"{value:,} {one if value == 1 else name}"
    return f"{name} {value}"


def plain_settings(row: Row) -> dict[str, Any]:
    """Return the settings that identify a row: numbers and words, without what only explains it."""
    return {
        name: value
        for name, value in row.settings.items()
        if name not in EXPLAIN and isinstance(value, str | int | float | bool)
    }
