"""Plans fitted to results of the experiment "scaling", in the file that its harness writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from benches.harness.results import Results, Row, gather_facts
from benches.report.cases import load
from benches.report.planned import planned as planned_table
from fastrecord.inspect.observed import read_observed
from tests.support.commands import failed, good

EFFICIENCY = 0.9
RUN: dict[str, Any] = {"gpu_rate": 100, "batch": 32, "parameters": 11_000_000}


def test_a_file_of_other_bytes_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\x89FREC\xff")
    with pytest.raises(ValueError, match=r"other has no results of the experiment scaling: UnicodeDecodeError"):
        read_observed(tmp_path / "other")


def planned(nodes: int, ranks: int, **options: Any) -> fr.Plan:
    return fr.plan_training(gpus=ranks, nodes=nodes, net="1Gb/s" if nodes > 1 else None, **{**RUN, **options})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Rates that the model itself has made with an efficiency of 0.9, on eight CPUs."""
    path = tmp_path / "scaling.jsonl"
    facts = gather_facts(tmp_path, "a test", full=False)
    with Results(path, facts) as found:
        for nodes, each in ((1, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4)):
            rate = planned(nodes, nodes * each, efficiency=EFFICIENCY).images_per_second
            settings = {"nodes": nodes, "ranks": nodes * each, "batch": 32, "parameters": RUN["parameters"]}
            settings |= {"net": "1Gb/s"} if nodes > 1 else {}
            spread = (0.9 * rate, rate, 1.2 * rate)
            found.add(Row("scaling", "a case", f"{nodes} x {each}", "images/s", spread, "more", settings=settings))
        # As many ranks as no machine has CPUs: not fitted to.
        settings = {"nodes": 1, "ranks": 1 << 20, "batch": 32, "parameters": RUN["parameters"]}
        found.add(Row("scaling", "a case", "too many", "images/s", (1.0,), "more", settings=settings))
        found.add(Row("scaling", "a case", "not measured", "images/s", missing="no root"))
    facts_line, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(facts_line) | {"cores": 8}) + "\n" + rest)
    return path


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 4), (1, 16), (8, 16), (4, 16)])
def test_results_give_back_the_efficiency_that_made_them(results: Path, nodes: int, gpus: int) -> None:
    plan = planned(nodes, gpus, observed=results)
    assert plan.setup.efficiency == pytest.approx(EFFICIENCY)
    (note,) = [note for note in plan.notes if "fitted to observed rates" in note]
    assert "1 GPUs +0.0 %, 2 GPUs +0.0 %" in note


def test_the_command_takes_rate_batch_and_parameters_from_results(results: Path) -> None:
    options = ("--gpus", 16, "--nodes", 8, "--net", "1Gb/s", "--observed", results, "--json")
    setup = json.loads(good("plan", *options))["setup"]
    assert (setup["batch"], setup["gradient_bytes"]) == (32, 4 * RUN["parameters"])
    assert setup["per_image"] == pytest.approx(1 / 100)
    assert setup["efficiency"] == pytest.approx(EFFICIENCY)
    assert json.loads(good("plan", *options, "--batch", 8))["setup"]["batch"] == 8


def test_the_report_predicts_networks_from_the_fit_on_one_node(results: Path) -> None:
    lines = list(planned_table(load(results.parent)["scaling"]))
    assert "its one free number fitted on one node (0.900)" in lines[0]
    assert "| 1 x 2 | 179 | 179 | +0.0 % | fitted |" in lines
    assert len([line for line in lines if line.endswith("| +0.0 % | predicted |")]) == 3


def test_runs_on_more_ranks_than_cpus_and_missing_ones_are_left_out(results: Path) -> None:
    assert [run.ranks for run in read_observed(results).runs] == [1, 2, 4, 4, 8, 8]


def test_results_without_a_fitting_run_are_refused(results: Path, tmp_path: Path) -> None:
    told = failed("plan", "--gpus", 8, "--nodes", 8, "--net", "1Gb/s", "--observed", results, status=2)
    assert "no run of several ranks on nodes of 1 at 1Gb/s: it has 1 x 1, 1 x 2, 1 x 4, 2 x 2 at 1Gb/s" in told
    other = tmp_path / "other.jsonl"
    for content in ("", "{}", '{"cores": 2}', '{"cores": 2}\n{"experiment": "formats", "values": [1]}', "not JSON"):
        other.write_text(content)
        told = failed("plan", "--gpus", 8, "--observed", other, status=2)
        assert f"{other} has no results of the experiment scaling" in told
    assert "absent.jsonl" in failed("plan", "--gpus", 8, "--observed", tmp_path / "absent.jsonl")
