"""The planner beside results of the experiment "scaling", in the file that its harness writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benches.harness.results import Results, Row, gather_facts
from benches.report.cases import load
from benches.report.planned import beside_plans
from benches.report.published import planned
from tests.benches.made import row


def test_networks_are_predicted_from_the_fit_on_one_node(tmp_path: Path) -> None:
    path = tmp_path / "scaling.jsonl"
    run: dict[str, Any] = {"batch": 32, "parameters": 11_000_000}
    with Results(path, gather_facts(tmp_path, "a test", full=False)) as found:
        for nodes, each in ((1, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4)):
            settings = {"nodes": nodes, **run, **({"net": "1Gb/s"} if nodes > 1 else {})}
            rate = planned(gpus=nodes * each, gpu_rate=100, efficiency=0.9, **settings).images_per_second
            spread, settings = (0.9 * rate, rate, 1.2 * rate), settings | {"ranks": nodes * each}
            found.add(row("scaling", "a case", f"{nodes} x {each}", "images/s", *spread, **settings))
        # As many ranks as no machine has CPUs: not fitted to.
        settings = {"nodes": 1, "ranks": 1 << 20, **run}
        found.add(row("scaling", "a case", "too many", "images/s", 1.0, **settings))
        found.add(Row("scaling", "a case", "not measured", "images/s", missing="no root"))
    facts, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(facts) | {"cores": 8}) + "\n" + rest)
    lines = list(beside_plans(load(tmp_path)["scaling"]))
    assert "its one free number fitted on one node (0.900)" in lines[0]
    assert "| 1 x 2 | 179 | 179 | +0.0 % | fitted |" in lines
    assert len([line for line in lines if line.endswith("| +0.0 % | predicted |")]) == 3
