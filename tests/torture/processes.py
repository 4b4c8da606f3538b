"""Resources of processes, limits on their CPU time, and experiments in child processes."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.torture.experiment import ROOT, Outcome


@dataclass(frozen=True)
class Use:
    """What a process holds.

    Attributes:
        memory: Private bytes: no file pages, and nothing shared with the forking process.
        descriptors: Open file descriptors.
        threads: Threads.
        mappings: Mappings of .frec files.
    """

    memory: int
    descriptors: int
    threads: int
    mappings: int


def use(pid: int | None = None) -> Use:
    """Return what a process holds, by default this one, after giving unused memory back.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is gone.
    """
    if pid is None:
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
            libc.malloc_trim(0)
    process = Path("/proc", "self" if pid is None else str(pid))
    rows = dict(line.split(":", 1) for line in (process / "smaps_rollup").read_text().splitlines()[1:])
    memory = sum(int(rows[name].split()[0]) << 10 for name in ("Pss_Anon", "Pss_Shmem"))
    mappings = sum(".frec" in line for line in (process / "maps").read_text().splitlines())
    descriptors = len(os.listdir(process / "fd")) - (pid is None)
    return Use(memory, descriptors, len(os.listdir(process / "task")), mappings)


# A process by its id and start time: ids are reused.
Process = tuple[int, str]


def _running() -> dict[int, tuple[int, str]]:
    """Return the parent and the start time of each process that is not a zombie."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found[int(folder.name)] = (int(parent), rest[17])
    return found


def descendants(pid: int) -> list[Process]:
    """Return all running descendants of a process."""
    running = _running()
    found: list[Process] = []
    parents = {pid}
    while parents:
        parents = {child for child, (parent, _) in running.items() if parent in parents}
        found += [(child, running[child][1]) for child in parents]
    return found


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    return [child for child, (parent, _) in _running().items() if parent == pid]


def identity(pid: int) -> Process:
    """Return a running process."""
    return pid, _running()[pid][1]


def still_there(processes: list[Process], seconds: float = 120) -> list[Process]:
    """Wait until processes are gone; return those that remain after some time."""
    end = time.monotonic() + seconds
    while True:
        running = _running()
        left = [process for process in processes if running.get(process[0], (0, ""))[1] == process[1]]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def command_line(process: Process) -> str:
    """Return a process's command line, for messages."""
    try:
        return f"pid {process[0]}: {Path(f'/proc/{process[0]}/cmdline').read_text().replace(chr(0), ' ')[:200]}"
    except OSError:
        return f"pid {process[0]}"


class Pace:
    """Keeps a process and its ended children within a share of one core."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._wall, self._cpu = time.monotonic(), self._spent()

    @staticmethod
    def _spent() -> float:
        return sum(os.times()[:4])

    def rest(self) -> None:
        """Sleep until the CPU time is within the share."""
        now = time.monotonic()
        ahead = (self._spent() - self._cpu) / self._share - (now - self._wall)
        if ahead > 0:
            time.sleep(min(ahead, 10))
        else:
            # Unused time is not saved up.
            self._wall, self._cpu = now, self._spent()


def apart(module: str, count: int) -> Outcome:
    """Run `python -m tests.torture.<module> COUNT`, which calls `print_outcome`."""
    command = [sys.executable, "-m", f"tests.torture.{module}", str(count)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment(), preexec_fn=end_with_parent
    )
    if done.returncode != 0:
        return Outcome(0, [f"{' '.join(command)} ended with {done.returncode}"])
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def print_outcome(run: Callable[[int], Outcome]) -> None:
    """Run an experiment with the count of the command line; print its outcome for `apart`."""
    sys.stdout.write(json.dumps(asdict(run(int(sys.argv[1])))) + "\n")


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let this forked process die with the thread that started it, so that no job remains."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which processes find this package and compute with one thread."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}
