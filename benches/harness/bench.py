"""`Bench`: what an experiment gets to work with."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from benches.harness.contest import Answer, Contender, Contest
from benches.harness.results import Results, Row


class Bench:
    """One run of one experiment.

    Attributes:
        name: The experiment.
        full: Whether to measure everything; otherwise what tells most in a few minutes.
        folder: The folder for data, kept between runs and shared by all experiments.
        rounds: Rounds that count: 5 in a full run, 3 in a short one.
    """

    def __init__(self, name: str, folder: Path, results: Results, *, full: bool) -> None:
        self.name, self.folder, self.full = name, folder, full
        self.rounds = 5 if full else 3
        self._results = results
        self._start = time.monotonic()

    def contest(self, contenders: Sequence[Contender]) -> Contest:
        """Return a contest of these contenders."""
        return Contest(contenders, self.folder / "logs")

    def row(
        self,
        case: str,
        contender: str,
        unit: str,
        values: Iterable[float],
        *,
        better: Literal["less", "more"] = "less",
        **settings: Any,
    ) -> None:
        """Add a measurement, one value a round, to the results."""
        row = Row(self.name, case, contender, unit, tuple(values), better, "", settings)
        self._results.add(row)
        spread = f" ({min(row.values):.4g} to {max(row.values):.4g})" if len(row.values) > 1 else ""
        self.say(f"{case}: {contender}: {row.median:.4g} {unit}{spread}")

    def not_measured(self, case: str, contender: str, why: str, *, unit: str = "") -> None:
        """Add the reason why a contender was not measured."""
        self._results.add(Row(self.name, case, contender, unit, missing=why))
        self.say(f"{case}: {contender}: not measured: {why}")

    def rows(
        self,
        case: str,
        answers: Mapping[str, Sequence[Answer]],
        contest: Contest,
        *,
        records: int | None = None,
        unit: str = "",
        of: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        """Add what `Contest.rounds` returned, and the contenders that are missing.

        Args:
            case: What was measured.
            answers: The answers of each contender.
            contest: The contest; its versions are added to the settings.
            records: Records of a call: the values are then `unit` a second, by default
                "records/s". None: they are seconds.
            unit: The unit, for example "images/s".
            of: What else explains a contender's row: its name -> settings.
            settings: What else explains all rows.
        """
        for name, found in answers.items():
            cpu = [answer.cpu_seconds for answer in found]
            more: dict[str, Any] = {
                "version": contest.versions[name],
                "cpu_seconds": cpu,
                **settings,
                **of.get(name, {}),
            }
            if records is None:
                self.row(case, name, unit or "s", [answer.seconds for answer in found], **more)
            else:
                rates = [records / answer.seconds for answer in found]
                self.row(case, name, unit or "records/s", rates, better="more", records=records, **more)
        for name, why in contest.missing.items():
            self.not_measured(case, name, why, unit=unit)

    def say(self, line: str) -> None:
        """Tell the person who waits."""
        print(f"[{self.name}, {time.monotonic() - self._start:.0f} s] {line}", file=sys.stderr, flush=True)
