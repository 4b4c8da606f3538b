"""`read_observed`: rates of runs that the experiment "scaling" measured, for the fit. Fits nothing itself."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrecord.inspect import units


@dataclass(frozen=True)
class ObservedRun:
    """A measured run.

    Attributes:
        nodes: Number of nodes.
        ranks: Processes on all nodes; each stands for a GPU.
        net: Bytes per second of each node's network; None for one node.
        images_per_second: The median of its rounds.
    """

    nodes: int
    ranks: int
    net: float | None
    images_per_second: float


@dataclass(frozen=True)
class Observed:
    """The runs of a file of results.

    Attributes:
        path: The file.
        batch: Images of a step on one rank.
        parameters: Trained parameters of the model.
        runs: The runs on no more ranks than the machine has CPUs: the others share CPUs, which GPUs
            do not.
    """

    path: str
    batch: int
    parameters: int
    runs: tuple[ObservedRun, ...]

    @property
    def most(self) -> int:
        """The most ranks of a run on one node."""
        return max((run.ranks for run in self.runs if run.nodes == 1), default=1)

    @property
    def one_rank(self) -> float:
        """Images per second of one rank alone.

        Raises:
            ValueError: it was not measured.
        """
        for run in self.runs:
            if run.ranks == 1:
                return run.images_per_second
        raise ValueError(f"{self.path} has no run of one rank, whose rate a plan starts from: give gpu_rate")

    def rates(self, *, each: int, net: float) -> dict[int, float]:
        """Return images per second by number of ranks, of the runs laid out like a plan's.

        Args:
            each: GPUs on a node of the plan.
            net: Bytes per second of its network; 0 for one node.

        Raises:
            ValueError: no run of several ranks is laid out so.
        """
        fitting = [
            run
            for run in self.runs
            if (run.nodes == 1 and run.ranks <= each)
            or (run.nodes > 1 and run.ranks == run.nodes * each and run.net == net)
        ]
        if all(run.ranks == 1 for run in fitting):
            there = ", ".join(
                f"{run.nodes} x {run.ranks // run.nodes}" + (f" at {8 * run.net / 1e9:g}Gb/s" if run.net else "")
                for run in self.runs
            )
            wanted = f"nodes of {each}" + (f" at {8 * net / 1e9:g}Gb/s" if net else "")
            raise ValueError(
                f"{self.path} has no run of several ranks on {wanted}: it has {there} (nodes x ranks), without runs of "
                "more ranks than CPUs"
            )
        return {run.ranks: run.images_per_second for run in fitting}


def read_observed(path: str | os.PathLike[str]) -> Observed:
    """Read results of the experiment "scaling": lines of JSON, the machine first, then a row each.

    Raises:
        ValueError: the file is none of it.
        OSError: it cannot be read.
    """
    name = os.fspath(path)
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        facts, *rows = (json.loads(line) for line in lines)
        cores = facts["cores"]
    except (KeyError, TypeError, ValueError) as error:
        raise _not_scaling(name, error) from error
    return observed_in(name, cores, rows)


def observed_in(name: str, cores: int, rows: Iterable[Mapping[str, Any]]) -> Observed:
    """Return the runs among the rows of a file of results.

    Args:
        name: The file's name, for errors.
        cores: CPUs of the machine.
        rows: The rows.

    Raises:
        ValueError: none is of the experiment.
    """
    try:
        measured = [row for row in rows if row["experiment"] == "scaling" and row["values"]]
        runs = [_run(row) for row in measured if row["settings"]["ranks"] <= cores]
        about = measured[0]["settings"]
        return Observed(name, int(about["batch"]), int(about["parameters"]), tuple(runs))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _not_scaling(name, error) from error


def _not_scaling(name: str, error: Exception) -> ValueError:
    return ValueError(f"{name} has no results of the experiment scaling: {type(error).__name__}: {error}")


def _run(row: Mapping[str, Any]) -> ObservedRun:
    settings = row["settings"]
    net = units.bytes_per_second("net", settings["net"]) if "net" in settings else None
    rate = float(statistics.median(row["values"]))
    return ObservedRun(int(settings["nodes"]), int(settings["ranks"]), net, rate)
