"""Cases as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from benches.harness import Row
from benches.report.cases import OURS, Case, Experiment, is_ours, plain_settings, ratios, setting_words
from benches.report.words import as_good, cell, number, scale_of, shown, spread, times


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> Iterator[str]:
    """Yield a table; all columns but the first `words` are numbers, columns without content are left out."""
    kept = [at for at, head in enumerate(heads) if head == "" or any(row[at] for row in rows)]
    yield f"| {' | '.join(heads[at] for at in kept)} |"
    yield f"|{'|'.join('---' if at < words else '---:' for at in kept)}|"
    for row in rows:
        yield f"| {' | '.join(cell(row[at]) for at in kept)} |"
    yield ""


def case_table(case: Case) -> Iterator[str]:
    """Yield the table of a case: each contender, best first, then what holds for all of them."""
    if not case.rows:
        return
    settings = [plain_settings(row) for row in case.rows]
    names = list(dict.fromkeys(name for each in settings for name in each))
    shared = {
        name: settings[0][name]
        for name in names
        if all(name in each and each[name] == settings[0][name] for each in settings)
    }
    own = [name for name in names if name not in shared]
    scaled = scale_of(case.rows[0].median, case.unit)
    phases = list(dict.fromkeys(name for row in case.rows for name in row.settings if _is_phase(row, name)))
    heads = [
        "contender",
        f"median, {scaled[1]}".rstrip(", "),
        "least - most",
        f"{OURS} is",
        *(f"{name.removesuffix('_seconds')}, s" for name in phases),
        *own,
        "CPU time",
        "version",
    ]
    rows = []
    for row, each in zip(case.rows, settings, strict=True):
        values = [_setting(each.get(name)) for name in own]
        rows.append(
            [
                bold_name(row.contender),
                number(row.median / scaled[0]),
                spread(row, scaled),
                beside(case, row),
                *(number(statistics.median(row.settings[name])) if _is_phase(row, name) else "" for name in phases),
                *values,
                _cpu(row),
                str(row.settings.get("version", "")),
            ]
        )
    yield from table(heads, rows)
    if shared:
        yield f"All of them: {', '.join(setting_words(name, value) for name, value in shared.items())}."
        yield ""


def bold_name(contender: str) -> str:
    """Return the name of a contender, ours in bold."""
    return f"**{contender}**" if is_ours(contender) else contender


def beside(case: Case, row: Row) -> str:
    """Return what fastrecord is beside a contender: "3.10 x as fast"."""
    ours = case.ours
    if ours is None or ours is row:
        return ""
    return as_good(ratios(ours, row)[0], case.unit)


def matrix(cases: Sequence[Case], heads: Sequence[str], first: str = "") -> Iterator[str]:
    """Yield a table of contenders and cases: medians, in brackets how many times as good fastrecord is.

    The best of a case is in bold. Contenders are in the order of their mean place.
    """
    scales = [scale_of(case.rows[0].median, case.unit) if case.rows else (1.0, case.unit) for case in cases]
    rows = []
    for name in by_place(cases):
        cells = [bold_name(name)]
        for case, scaled in zip(cases, scales, strict=True):
            row = case.row(name)
            if row is None:
                cells.append("-")
                continue
            text = number(row.median / scaled[0])
            text = f"**{text}**" if row is case.rows[0] else text
            if case.ours is not None and row is not case.ours:
                text += f" ({times(ratios(case.ours, row)[0])})"
            cells.append(text)
        rows.append(cells)
    units = [f"{head}, {scaled[1]}".rstrip(", ") for head, scaled in zip(heads, scales, strict=True)]
    yield from table([first, *units], rows)


def by_place(cases: Sequence[Case]) -> list[str]:
    """Return the contenders of some cases, those with the best mean place first."""
    places: dict[str, list[float]] = {}
    for case in cases:
        for at, row in enumerate(case.rows):
            places.setdefault(row.contender, []).append(at / len(case.rows))
    return sorted(places, key=lambda name: (-len(places[name]) * 2 < len(cases), statistics.mean(places[name])))


def verdicts(cases: Sequence[Case]) -> Iterator[str]:
    """Yield where fastrecord is first, and why it is not elsewhere."""
    judged = [(case, case.verdict) for case in cases if case.verdict]
    if not judged:
        return
    first = sum(verdict == "first" for _, verdict in judged)
    if first == len(judged):
        yield f"fastrecord is first in {'all ' if first > 1 else ''}{first} of these rows."
        yield ""
        return
    yield f"fastrecord is first in {first} of these {len(judged)} rows. The others:"
    yield ""
    for case, verdict in judged:
        ours, peer = case.best_of_ours, case.best_peer
        if verdict == "first" or ours is None or peer is None:
            continue
        least, most = (times(ratio) for ratio in ratios(ours, peer)[1:])
        how = "level with" if verdict == "level" else "behind"
        middle = times(ratios(ours, peer)[0])
        why = f" {case.why.strip().rstrip('.')}." if case.why else ""
        yield f"- {case.name}: {how} {peer.contender}, {middle} ({least} to {most} in the rounds).{why}"
    yield ""


def missing(experiment: Experiment) -> Iterator[str]:
    """Yield the contenders that were not measured, with the reasons, each once."""
    where: dict[tuple[str, str], list[str]] = {}
    for case in experiment.cases:
        for row in case.missing:
            where.setdefault((row.contender, row.missing), []).append(case.name)
    if not where:
        return
    rows = []
    for (contender, why), names in where.items():
        names = list(dict.fromkeys(names))
        rows.append([contender, names[0] if len(names) == 1 else f"{len(names)} cases, from: {names[0]}", why])
    yield "Not measured:"
    yield ""
    yield from table(["contender", "case", "reason"], rows, words=3)


def folded(summary: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield lines that a reader opens."""
    if lines:
        yield f'<details markdown="1"><summary>{summary}</summary>'
        yield ""
        yield from lines
        yield "</details>"
        yield ""


def details(cases: Sequence[Case], write: Callable[[Case], Iterator[str]] = case_table) -> Iterator[str]:
    """Yield the tables of cases, each below its name."""
    for case in cases:
        lines = [*write(case)]
        if lines:
            yield f"**{case.name}**"
            yield ""
            yield from lines


def _setting(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def _is_phase(row: Row, name: str) -> bool:
    """Return whether a setting is a part of the row's time, a value a round."""
    value = row.settings.get(name)
    return name.endswith("_seconds") and name != "cpu_seconds" and isinstance(value, list) and bool(value)


def _cpu(row: Row) -> str:
    """Return the CPU time of a record, or of a call."""
    seconds, records = row.settings.get("cpu_seconds"), row.settings.get("records")
    if not isinstance(seconds, list) or not seconds:
        return ""
    median = statistics.median(seconds)
    if isinstance(records, int | float) and records:
        return f"{shown(median / records, 's')} a record"
    return shown(median, "s")
