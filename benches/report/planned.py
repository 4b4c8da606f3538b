"""The planner beside the scaling results: fitted on one node, it predicts the networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benches.harness import Row
from benches.report.cases import Experiment
from benches.report.published import fitted, planned
from benches.report.tables import table
from benches.report.words import number
from fastrecord.inspect.units import bytes_per_second


def beside_plans(experiment: Experiment) -> Iterator[str]:
    """Yield a table of measured and planned images/s; nothing without several ranks on one node.

    Runs of more ranks than the machine has CPUs are left out: they share CPUs, which GPUs do not.
    """
    measured = [row for row in experiment.rows if row.values and row.settings["ranks"] <= experiment.facts.cores]
    one_node = [row for row in measured if row.settings["nodes"] == 1]
    alone = next((row.median for row in one_node if row.settings["ranks"] == 1), None)
    if alone is None or len({row.settings["ranks"] for row in one_node}) == 1:
        return

    def rate(row: Row, efficiency: float) -> float:
        about = row.settings
        given: dict[str, Any] = {name: about[name] for name in ("nodes", "batch", "parameters", "net") if name in about}
        return planned(gpus=about["ranks"], gpu_rate=alone, efficiency=efficiency, **given).images_per_second

    efficiency = fitted(lambda one: (rate(row, one) / row.median for row in one_node))
    rows = []
    for row in measured:
        nodes, plan = row.settings["nodes"], rate(row, efficiency)
        net = row.settings.get("net")
        network = f" at {8 * bytes_per_second('net', net) / 1e9:g} Gb/s" if net else ""
        rows.append(
            [
                f"{nodes} x {row.settings['ranks'] // nodes}{network}",
                number(row.median),
                number(plan),
                f"{100 * (plan / row.median - 1):+.1f} %",
                "fitted" if nodes == 1 else "predicted",
            ]
        )
    yield (
        f"`fastrecord plan`, with the rate of one rank and its one free number fitted on one node ({efficiency:.3f}). "
        f"Ranks beyond the {experiment.facts.cores} CPUs are left out."
    )
    yield ""
    yield from table(["nodes x ranks", "measured, images/s", "planned, images/s", "error", ""], rows)
