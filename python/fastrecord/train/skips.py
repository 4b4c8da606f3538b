"""`Skips`: the records that a run skips, counted and listed over all ranks, also after a resume."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import MetricsFile

_log = logging.getLogger("fastrecord.train")

# Listed records of an epoch over all ranks; further ones are only counted.
LISTED = 1000
# Listed records that are named in the log.
_NAMED = 5


class Skips:
    """The records that all ranks have skipped in an epoch.

    Args:
        ranks: All ranks; every one must call `collect` at the same step.

    Attributes:
        count: Number of skips; a record that is skipped twice counts twice.
        records: The first 1000: path, record, key, reason.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.start()

    def start(self) -> None:
        """Begin an epoch."""
        self.count = 0
        self.records: list[dict[str, Any]] = []

    def collect(self, taken: tuple[int, list[dict[str, Any]]]) -> None:
        """Add the records that each rank has skipped since the last call."""
        for count, records in self._ranks.gather(taken):
            self.count += count
            self.records += records[: LISTED - len(self.records)]

    def report(self, of: str, *, epoch: int, step: int, metrics: MetricsFile | None) -> None:
        """Report the skipped records at the end of an epoch, in rank 0's log and in `metrics`.

        Args:
            of: What the records were skipped from: "training" or "evaluation".
            epoch: Epoch of the run.
            step: Step of the run.
            metrics: None on ranks that do not write metrics.
        """
        if not self.count:
            return
        if metrics is not None:
            row = {"event": "skipped", "epoch": epoch, "step": step, "of": of}
            metrics.write({**row, "count": self.count, "records": self.records})
        if self._ranks.is_first:
            names = [
                record["key"] or f"{record['path']}: record {record['record']}" for record in self.records[:_NAMED]
            ]
            more = ", ..." if self.count > len(names) else ""
            _log.info(
                f"Skipped: [{epoch}] {self.count} records of {of}: {', '.join(map(repr, names))}{more} (metrics.jsonl "
                "lists them with their reasons; `fastrecord verify --deep` finds all that a file has)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the collected values."""
        return {"count": self.count, "records": self.records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a return value of `state_dict`."""
        self.count, self.records = state["count"], list(state["records"])
