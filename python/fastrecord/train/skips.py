"""The records that a run skips: counted and listed over all ranks, and through a resume."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from fastrecord import SkippedRecord
from fastrecord.train.distributed import Ranks
from fastrecord.train.meters import MetricsFile

_log = logging.getLogger("fastrecord.train")

# Of an epoch, all ranks together, so many are listed; the others are only counted.
_LISTED = 1000
# Of those, so many are named in the log.
_NAMED = 5


class RankSkips:
    """What one rank has skipped since it was last asked: an `on_error` of FastRecordLoader."""

    def __init__(self) -> None:
        self._count = 0
        self._records: list[dict[str, Any]] = []

    def __call__(self, _error: Exception, record: SkippedRecord) -> None:
        """Note a record."""
        self._count += 1
        if len(self._records) < _LISTED:
            self._records.append(dataclasses.asdict(record))

    def take(self) -> tuple[int, list[dict[str, Any]]]:
        """Return how many records were skipped, and the first of them as dicts, ready for JSON."""
        taken = self._count, self._records
        self._count, self._records = 0, []
        return taken


class Skips:
    """What all ranks have skipped in an epoch.

    Args:
        ranks: All ranks; every one must call `collect` at the same step.

    Attributes:
        count: Records; one that came twice is two.
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
        """Add what each rank has skipped since the last time."""
        for count, records in self._ranks.gather(taken):
            self.count += count
            self.records += records[: _LISTED - len(self.records)]

    def report(self, of: str, *, epoch: int, step: int, metrics: MetricsFile | None) -> None:
        """Tell of them at the end of an epoch, if there are any: on rank 0 in the log, and in `metrics`.

        Args:
            of: What was skipped from: "training" or "evaluation".
            epoch: Of the run.
            step: Of the run.
            metrics: None on ranks that write none.
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
        """Return what was collected."""
        return {"count": self.count, "records": self.records}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.count, self.records = state["count"], list(state["records"])
