"""The table on top of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from benches.harness import Row
from benches.report.aims import AIMS, in_short
from benches.report.cases import Case, Experiment
from benches.report.published import check
from benches.report.sections import KEPT, accuracies, flatness, is_reading, kept, scaled
from benches.report.tables import table
from benches.report.words import spread

_WORKERS = re.compile(r", (?:no|\d+) workers?(?: or threads?)?")
# The runs that the experiments repeat.
PUBLISHED = {
    "HAL, 16 nodes x 4 V100": ("2 GPUs, 90 epochs", "64 GPUs, 90 epochs", "64 GPUs, storage"),
    "Tensorpack, 8 P100": ("1 GPU", "2 GPUs", "4 GPUs", "8 GPUs"),
    "Tensorpack, 8 V100": ("fp16, batch 128", "fp16 with XLA, batch 128"),
}


def summary(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield the table."""
    rows: list[list[str]] = []
    if found := experiments.get("formats"):
        reading = [case for case in found.cases if is_reading(case)]
        rows += _first("formats, reading and loading", reading)
        rows += _first("formats, packing, size and memory", [case for case in found.cases if case not in reading])
    if found := experiments.get("augmented"):
        rows += _first("augmented recipes", found.cases)
    if found := experiments.get("interchange"):
        rows += _first("export and packing", found.cases)
    rows += _small_batches(experiments.get("small_batches"))
    for name in ("bottleneck", "gpu"):
        for case in kept(experiments.get(name)):
            row = case.rows[0]
            what = f"{name}: {case.name.removesuffix(KEPT)}: speed on the file, of the speed on constant data"
            rows.append([what, f"{row.median:.1f} % ({spread(row)}), by {row.contender}"])
    for case in scaled(experiments.get("scaling")):
        largest = max(case.rows, key=lambda row: int(row.settings["ranks"]))
        if isinstance(share := largest.settings.get("efficiency"), float | int):
            what = f"scaling: {case.name}, {largest.contender}: of the ideal images/s"
            rows.append([what, f"{100 * share:.0f} %"])
    for case in accuracies(experiments.get("recipe")):
        furthest = max(case.rows, key=lambda row: abs(row.settings["difference"]))
        values = furthest.settings
        text = f"{values['difference']:+.2f} ± {values['interval']:.2f} points, {furthest.contender}"
        rows.append([f"recipe: {case.name}: the largest difference of means, with its 95 % interval", text])
    for name in AIMS:
        rows += in_short(experiments.get(name))
    rows += _planned()
    yield from table(["what", "result"], rows, words=2)


def _small_batches(experiment: Experiment | None) -> list[list[str]]:
    """Return a row for all cases that differ in nothing but the number of workers."""
    alike: dict[str, list[Row]] = {}
    for case in flatness(experiment):
        if case.ours is not None:
            alike.setdefault(_WORKERS.sub("", case.name), []).append(case.ours)
    rows = []
    for name, found in alike.items():
        low, high = (pick(row.median for row in found) for pick in (min, max))
        text = f"{low:.2f} times ({spread(found[0])})"
        if len(found) > 1:
            text = f"{low:.2f} to {high:.2f} times, with {len(found)} numbers of workers"
        rows.append([f"small batches: {name}", text])
    return rows


def _first(what: str, cases: Sequence[Case]) -> Iterator[list[str]]:
    """Yield in how many cases fastrecord is first."""
    judged = [case.verdict for case in cases if case.verdict]
    if judged:
        level = judged.count("level")
        text = f"in {judged.count('first')} of {len(judged)} rows" + (f", level in {level}" if level else "")
        yield [f"{what}: fastrecord is first", text]


@cache
def _planned() -> list[list[str]]:
    """Return the planner's errors on published runs."""
    checks, rows = check(), []
    for machine in dict.fromkeys(one.machine for one in checks):
        errors = [one for one in checks if one.machine == machine and one.figure.name in PUBLISHED.get(machine, ())]
        if errors:
            text = "; ".join(f"{one.figure.name}: {one.figure.unit} {100 * one.error:+.1f} %" for one in errors)
            rows.append([f"`fastrecord plan` against published figures, {machine}", text])
    worst = max(checks, key=lambda one: abs(one.error))
    what = "`fastrecord plan`, the worst of all published figures ([all of them](plan.md#published-runs))"
    return [*rows, [what, f"{worst.machine}, {worst.figure.name}, {worst.figure.unit}: {100 * worst.error:+.1f} %"]]
