"""The planner beside the scaling results: fitted on one node, it predicts the networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import fastrecord as fr
from benches.report.cases import Experiment
from benches.report.tables import table
from benches.report.words import number
from fastrecord.inspect.observed import Observed, ObservedRun, observed_in


def planned(experiment: Experiment) -> Iterator[str]:
    """Yield a table of measured and planned images/s; nothing without several ranks on one node."""
    try:
        found = observed_in(experiment.name, experiment.facts.cores, [asdict(row) for row in experiment.rows])
        one_node = found.rates(each=found.most, net=0.0)
    except ValueError:
        return
    fitted = _plan(found, ObservedRun(1, found.most, None, 0.0), observed=one_node).setup.efficiency
    rows = []
    for run in dict.fromkeys(found.runs):
        plan = _plan(found, run, efficiency=fitted)
        error = 100 * (plan.images_per_second / run.images_per_second - 1)
        network = f" at {8 * run.net / 1e9:g} Gb/s" if run.net else ""
        rows.append(
            [
                f"{run.nodes} x {run.ranks // run.nodes}{network}",
                number(run.images_per_second),
                number(plan.images_per_second),
                f"{error:+.1f} %",
                "fitted" if run.nodes == 1 else "predicted",
            ]
        )
    yield (
        f"`fastrecord plan`, with the rate of one rank and its one free number fitted on one node ({fitted:.3f}). "
        f"Ranks beyond the {experiment.facts.cores} CPUs are left out."
    )
    yield ""
    yield from table(["nodes x ranks", "measured, images/s", "planned, images/s", "error", ""], rows)


def _plan(found: Observed, run: ObservedRun, **options: float | dict[int, float]) -> fr.Plan:
    given = {"gpu_rate": found.one_rank, "batch": found.batch, "parameters": found.parameters, "net": run.net}
    return fr.plan_training(gpus=run.ranks, nodes=run.nodes, **given, **options)  # type: ignore[arg-type]
