"""What processes hold, and which there are."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path


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
