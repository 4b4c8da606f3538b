"""The table on top of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benches.report.cases import Case, Experiment
from benches.report.sections import is_reading
from benches.report.tables import table
from fastrecord.plan.published import check


def summary(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield the table."""
    rows: list[list[str]] = []
    if found := experiments.get("formats"):
        reading = [case for case in found.cases if is_reading(case)]
        rows += _first("formats, reading and loading", reading)
        rows += _first("formats, packing, size and memory", [case for case in found.cases if case not in reading])
    if found := experiments.get("interchange"):
        rows += _first("export and packing", found.cases)
    rows += _planned()
    yield from table(["what", "result"], rows, words=2)


def _first(what: str, cases: Sequence[Case]) -> Iterator[list[str]]:
    """Yield in how many cases fastrecord is first."""
    judged = [case.verdict for case in cases if case.verdict]
    if judged:
        level = judged.count("level")
        text = f"in {judged.count('first')} of {len(judged)} rows" + (f", level in {level}" if level else "")
        yield [f"{what}: fastrecord is first", text]


def _planned() -> Iterator[list[str]]:
    """Yield the planner's errors on published runs."""
    checks = check()
    for machine in dict.fromkeys(one.machine for one in checks):
        errors = [f"{100 * one.error:+.1f} %" for one in checks if one.machine == machine and not one.figure.fitted]
        if errors:
            yield [f"`fastrecord plan` on published figures that were not fitted, {machine}: errors", ", ".join(errors)]
