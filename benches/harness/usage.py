"""CPU time and memory of this process and its children."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


def cpu_seconds() -> float:
    """Seconds of CPU time of this process and all its workers, including ended ones."""
    times = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since: its time is included in the children's time
            times.append(child.cpu_times())  # in ticks of 10 ms; the other clocks are exact
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(each.user + each.system for each in times)
    return float(time.process_time() + living + ended.ru_utime + ended.ru_stime)


def own_memory() -> int:
    """Unreclaimable bytes of this process and its workers; shared pages count once."""
    process = psutil.Process()
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            text = Path(f"/proc/{each.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since and uses no memory
        lines = dict(line.split(":", 1) for line in text.splitlines()[1:])
        total += sum(int(lines[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem"))
    return total


class PeakMemory:
    """Samples `own_memory` beside the block that it surrounds.

    Attributes:
        before: Bytes at the start of the block.
        most: The largest sample.
    """

    EVERY = 0.02  # seconds

    def __init__(self) -> None:
        self.before = self.most = own_memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.most = max(self.most, own_memory())

    def _sample(self) -> None:
        while not self._over.wait(self.EVERY):
            self.most = max(self.most, own_memory())
