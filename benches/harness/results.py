"""Results: lines of JSON, one file an experiment; the first line holds the facts of the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from benches.harness.process import ROOT
from fastrecord.inspect.machine import versions


@dataclass(frozen=True)
class Row:
    """One contender in one case.

    Attributes:
        experiment: The experiment's name.
        case: What was measured, in words that a reader understands.
        contender: Who.
        unit: The unit of the values: "s", "images/s", "bytes", "%", ...
        values: One a round, in order; empty if it was not measured.
        better: Whether "less" or "more" is better.
        missing: Why it was not measured.
        settings: What else identifies the row or explains it: threads, batch, version ...
    """

    experiment: str
    case: str
    contender: str
    unit: str
    values: Sequence[float] = ()
    better: Literal["less", "more"] = "less"
    missing: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Facts:
    """The machine and the run, without the machine's name.

    Attributes:
        cpu, cores, memory_bytes, disk, kernel: The machine; `disk` is the kind of the file system.
        gpu: The name of the first GPU, or "".
        versions: Of the package, Python and the packages below it.
        commit: Of the checkout, with "+" if files differ from it.
        command: Repeats the run.
        date: When it began, UTC.
        full: Whether it is the full run.
        seconds: How long the experiment took; 0 in a file whose run has not ended.
    """

    cpu: str
    cores: int
    memory_bytes: int
    disk: str
    kernel: str
    gpu: str
    versions: Mapping[str, str | None]
    commit: str
    command: str
    date: str
    full: bool
    seconds: float = 0.0


def gather_facts(folder: Path, command: str, *, full: bool) -> Facts:
    """Return the facts of this machine.

    Args:
        folder: Where the data are; `disk` is its file system.
        command: The command that repeats the run.
        full: Whether it is the full run.
    """
    import torch

    named = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return Facts(
        cpu=named[0].strip() if named else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk=_told("stat", "--file-system", "--format=%T", str(folder)),
        kernel=f"{platform.system()} {platform.release().partition('-')[0]}",
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        versions=versions(),
        commit=_told("git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"),
        command=command,
        date=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        full=full,
    )


def _told(*command: str) -> str:
    """Return what a command prints, or nothing if it is not installed."""
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


class Results:
    """Writes a file of results; use it in a `with` block.

    The file has its name only when the block ends without an error: what was interrupted stays
    beside it as `NAME.jsonl.partial`.
    """

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path, self._facts = path, facts
        self._partial = path.with_name(f"{path.name}.partial")
        self._rows: list[Row] = []
        self._start = time.perf_counter()
        self._file: IO[str]

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._partial.open("w")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            facts = asdict(self._facts) | {"seconds": round(time.perf_counter() - self._start, 3)}
            self._partial.write_text(json.dumps(facts) + "\n" + self._partial.read_text())
            self._partial.replace(self.path)

    def add(self, row: Row) -> None:
        """Add a row."""
        self._file.write(json.dumps(asdict(row)) + "\n")
        self._file.flush()


def read(path: Path) -> tuple[Facts, list[Row]]:
    """Read a file of results.

    Raises:
        ValueError: it is none.
    """
    number = 1
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        facts, rows = Facts(**json.loads(first)), []
        for number, line in enumerate(lines, 2):  # noqa: B007 - the error names it
            rows.append(Row(**json.loads(line)))
    except (TypeError, ValueError) as error:
        why = f"line {number} is damaged, or of another version of the suite: {error}"
        raise ValueError(f"{path}: {why}; run the experiment again, or remove the file") from error
    return facts, rows
