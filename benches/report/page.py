"""docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benches.report import sections
from benches.report.cases import Experiment
from benches.report.plots import Pictures
from benches.report.summary import summary
from benches.report.tables import missing, table
from benches.report.words import machine, minutes, versions

TEXT = Path(__file__).parent / "text"


def page(experiments: Mapping[str, Experiment], pictures: Pictures) -> str:
    """Return the page."""
    return "\n".join(_lines(experiments, pictures)).rstrip() + "\n"


def _lines(experiments: Mapping[str, Experiment], pictures: Pictures) -> Iterator[str]:
    known = [name for name in sections.SECTIONS if name in experiments]
    ordered = [experiments[name] for name in [*known, *sorted(experiments.keys() - set(known))]]
    yield from _prose("head")
    yield from _runs(ordered)
    yield "## In short"
    yield ""
    yield from summary(experiments)
    for experiment in ordered:
        section = sections.SECTIONS.get(experiment.name)
        yield f"## {section.title if section else experiment.name.replace('_', ' ').capitalize()}"
        yield ""
        yield from _prose(experiment.name)
        write = section.write if section else sections.plain
        yield from write(experiment, pictures)
        yield from missing(experiment)
        yield "To repeat it:"
        yield ""
        yield from ("```sh", experiment.facts.command, "```", "")
    yield from _prose("foot")


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
