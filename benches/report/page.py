"""docs/benchmarks.md, which says what came of the experiments, and the page of all their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benches.report import sections
from benches.report.cases import Experiment
from benches.report.plots import Pictures
from benches.report.summary import summary
from benches.report.tables import missing, table
from benches.report.words import machine, minutes, versions

TEXT = Path(__file__).parent / "text"
NOTE = "<!-- Written by `python -m benches.report` from benches/results/full: do not edit. -->"


def page(experiments: Mapping[str, Experiment], pictures: Pictures) -> str:
    """Return one page with everything."""
    return _joined([*_head(experiments), *_sections(experiments, pictures), *_prose("foot")])


def overview(experiments: Mapping[str, Experiment], tables: str) -> str:
    """Return the page without its tables.

    Args:
        experiments: What was measured.
        tables: The page with the tables, as this page links to it.
    """
    lines = [*_head(experiments)]
    for experiment in _ordered(experiments):
        title = _title(experiment)
        anchor = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")  # as GitHub makes them
        lines += [f"## {title}", "", *_prose(experiment.name), f"[All tables]({tables}#{anchor})", ""]
    return _joined([*lines, *_prose("foot")])


def tables(experiments: Mapping[str, Experiment], pictures: Pictures, overview: str) -> str:
    """Return the page of the tables and plots.

    Args:
        experiments: What was measured.
        pictures: Where the plots go.
        overview: The page that says what they are about, as this page links to it.
    """
    head = [NOTE, "# All tables of the benchmarks", "", f"[Benchmarks]({overview}) says how they were made.", ""]
    return _joined([*head, *_sections(experiments, pictures)])


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _ordered(experiments: Mapping[str, Experiment]) -> list[Experiment]:
    known = [name for name in sections.SECTIONS if name in experiments]
    return [experiments[name] for name in [*known, *sorted(experiments.keys() - set(known))]]


def _title(experiment: Experiment) -> str:
    section = sections.SECTIONS.get(experiment.name)
    return section.title if section else experiment.name.replace("_", " ").capitalize()


def _head(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    yield NOTE
    yield from _prose("head")
    yield from _runs(_ordered(experiments))
    yield "## In short"
    yield ""
    yield from summary(experiments)


def _sections(experiments: Mapping[str, Experiment], pictures: Pictures) -> Iterator[str]:
    for experiment in _ordered(experiments):
        section = sections.SECTIONS.get(experiment.name)
        yield f"## {_title(experiment)}"
        yield ""
        yield from _prose(experiment.name)
        write = section.write if section else sections.plain
        yield from write(experiment, pictures)
        yield from missing(experiment)
        yield "To repeat it:"
        yield ""
        yield from ("```sh", experiment.facts.command, "```", "")


def _prose(name: str) -> Iterator[str]:
    path = TEXT / f"{name}.md"
    if path.exists():
        yield path.read_text(encoding="utf-8").rstrip()
        yield ""


def _runs(experiments: list[Experiment]) -> Iterator[str]:
    """Yield the machines, and when each experiment ran on which."""
    machines = list(dict.fromkeys(machine(experiment.facts) for experiment in experiments))
    for number, text in enumerate(machines, 1):
        yield f"Measured on{f' machine {number}' if len(machines) > 1 else ''}: {text}."
        facts = next(experiment.facts for experiment in experiments if machine(experiment.facts) == text)
        yield f"With {versions(facts)}."
        yield ""
    rows = []
    for experiment in experiments:
        facts = experiment.facts
        rows.append(
            [
                experiment.name.replace("_", " "),
                f"`{facts.command}`",
                facts.date,
                facts.commit,
                minutes(facts.seconds),
                str(machines.index(machine(facts)) + 1) if len(machines) > 1 else "",
            ]
        )
    yield from table(["experiment", "command", "began, UTC", "commit", "took", "machine"], rows, words=4)
