"""The README's table of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benches.report.cases import Experiment, ratios
from benches.report.tables import table
from benches.report.words import as_good, shown

BEGIN, END = "<!-- numbers: begin -->", "<!-- numbers: end -->"


def with_table(text: str, experiments: Mapping[str, Experiment]) -> str:
    """Return the README with the table of these results.

    Raises:
        ValueError: it does not contain each mark exactly once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the README must contain {BEGIN} and {END} once each")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return "\n".join([head + BEGIN, *lines(experiments), END + tail])


def lines(experiments: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield the table."""
    rows = []
    for experiment in experiments.values():
        for case in experiment.cases:
            ours, peer = case.best_of_ours, case.best_peer
            if case.verdict and ours is not None and peer is not None:
                values = [shown(row.median, case.unit) for row in (ours, peer)]
                ratio = as_good(ratios(ours, peer)[0], case.unit)
                rows.append([case.name, values[0], f"{peer.contender}: {values[1]}", ratio])
    yield from table(["what", "fastrecord", "best of the others", "fastrecord is"], rows, words=4)
