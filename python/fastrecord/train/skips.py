"""`Skips`: the records that a run skips, counted and listed over all ranks, also after a resume."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastrecord.train.batches.base import LISTED, Batches
from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import MetricsFile

_log = logging.getLogger("fastrecord.train")

# Listed records that are named in the log.
_NAMED = 5


class Skips:
    """The records that all ranks have skipped in an epoch.

    Args:
        ranks: All ranks; every one must call `collect` and `report` at the same step.
        batches: This rank's source, which skips them.
        of: What it is a source for: "training" or "evaluation".

    Attributes:
        count: Number of skips; a record that is skipped twice counts twice.
        records: The first 1000: path, record, key, reason.
    """

    def __init__(self, ranks: Ranks, batches: Batches, of: str) -> None:
        self._ranks, self._batches, self._of = ranks, batches, of
        self.start()

    def start(self) -> None:
        """Begin an epoch."""
        self.count = 0
        self.records: list[dict[str, Any]] = []

    def collect(self) -> None:
        """Add the records that each rank has skipped since the last call."""
        for count, records in self._ranks.gather(self._batches.take_skipped()):
            self.count += count
            self.records += records[: LISTED - len(self.records)]

    def report(self, metrics: MetricsFile | None, *, epoch: int, step: int) -> None:
        """Report the collected records in rank 0's log and in `metrics`, which other ranks do not have."""
        if not self.count or not self._ranks.is_first:
            return
        if metrics is not None:
            row = {"event": "skipped", "epoch": epoch, "step": step, "of": self._of}
            metrics.write({**row, "count": self.count, "records": self.records})
        names = [record["key"] or f"{record['path']}: record {record['record']}" for record in self.records[:_NAMED]]
        more = ", ..." if self.count > len(names) else ""
        _log.info(
            f"Skipped: [{epoch}] {self.count} records of {self._of}: {', '.join(map(repr, names))}{more} "
            "(metrics.jsonl lists them with their reasons; `fastrecord verify --deep` finds all that a file has)"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the collected values."""
        return {"count": self.count, "records": self.records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a return value of `state_dict`."""
        self.count, self.records = state["count"], list(state["records"])
