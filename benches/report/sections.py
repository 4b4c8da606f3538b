"""What each experiment shows. A case that its section does not know becomes a plain table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benches.report.cases import Experiment
from benches.report.plots import Pictures
from benches.report.tables import details, table, verdicts
from fastrecord.plan.published import check

COMPETITIONS = ("formats", "small_batches", "interchange")

Write = Callable[[Experiment, Pictures], Iterator[str]]


@dataclass(frozen=True)
class Section:
    """The title of an experiment, and what writes its results."""

    title: str
    write: Write


def plain(experiment: Experiment, _: Pictures) -> Iterator[str]:
    """Yield a table for each case."""
    yield from verdicts(experiment.cases)
    yield from details(experiment.cases)


def summary(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield the table on top of the page."""
    rows = []
    for experiment in experiments.values():
        judged = [case.verdict for case in experiment.cases if case.verdict]
        if experiment.name in COMPETITIONS and judged:
            words = experiment.name.replace("_", " ")
            rows.append([f"{words}: fastrecord is first", f"in {judged.count('first')} of {len(judged)} rows"])
    rows += [*_planned()]
    yield from table(["what", "result"], rows, words=2)


def _planned() -> Iterator[list[str]]:
    """Yield the planner's errors on published runs."""
    checks = check()
    for machine in dict.fromkeys(one.machine for one in checks):
        errors = [one.error for one in checks if one.machine == machine and not one.figure.fitted]
        if errors:
            text = ", ".join(f"{100 * error:+.1f} %" for error in errors)
            yield [f"`fastrecord plan`, errors on published figures that were not fitted: {machine}", text]


SECTIONS: dict[str, Section] = {
    "formats": Section("Formats", plain),
    "small_batches": Section("Small batches", plain),
    "bottleneck": Section("The bottleneck", plain),
    "scaling": Section("Scaling", plain),
    "recipe": Section("The recipe", plain),
    "interchange": Section("Import, export and packing", plain),
    "gpu": Section("With a GPU", plain),
}
