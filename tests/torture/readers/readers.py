"""Many readers beside a writer, all killed at times.

The writer is tests/torture/readers/appending.py, a reader tests/torture/readers/reading.py. This process starts and
kills them. It is also the second writer that is refused, and the first after a killed one.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import fastrecord as fr
from tests.torture import known
from tests.torture.apart import popen
from tests.torture.experiment import Experiment, Outcome, Rounds
from tests.torture.processes import Process, command_line, descendants, still_there, use
from tests.torture.readers.appending import Appender, committed
from tests.torture.readers.reading import KINDS

# File size in bytes at which a new file replaces it.
_LIMIT = 200 << 20
# The least that each kind of reader does, however slow the machine.
_LEAST_ROUNDS = 2
# Allowed growth of a reader after its first rounds: private memory, descriptors, threads.
_ROOM = (48 << 20, 8, 4)


@dataclass
class Child:
    """A process of the experiment.

    Attributes:
        kind: "writer", or the kind of reader.
        process: The process.
        until: When to kill it, by time.monotonic().
        enough: Logged bytes of commits; the process is rarely killed before there are this many.
    """

    kind: str
    process: subprocess.Popen[bytes]
    until: float
    enough: int


class Run(Rounds):
    """One run of the experiment.

    Args:
        folder: The working folder.
        long: Whether files grow large, and processes live long.
    """

    def __init__(self, folder: Path, *, long: bool) -> None:
        super().__init__()
        self.folder, self.path, self.long = folder, folder / "x.frec", long
        self.orphans: list[Process] = []

    def start(self, kind: str, *, mortal: bool = False) -> Child:
        """Start a writer or a reader."""
        module = ["appending", str(self.folder), str(_LIMIT if self.long else 1 << 20)]
        if kind != "writer":
            module = ["reading", kind, str(self.folder)]
        module[0] = f"tests.torture.readers.{module[0]}"
        with (self.folder / "said").open("ab") as said:
            process = popen("-m", *module, stdout=said, stderr=said)
        life = self.draw.uniform(0, 30 if self.long else 2) if mortal else float("inf")
        enough = self.written_down() + self.draw.randrange(100) if kind == "writer" else 0
        return Child(kind, process, time.monotonic() + life, enough)

    def written_down(self) -> int:
        """Return the size of the writer's log of commits."""
        log = self.folder / "committed"
        return log.stat().st_size if log.exists() else 0

    def kill(self, child: Child) -> None:
        """Kill a process as the out-of-memory killer does; its children must end by themselves."""
        self.orphans += descendants(child.process.pid)
        child.process.kill()
        child.process.wait()
        self.counts[f"{'writers' if child.kind == 'writer' else 'readers'} killed"] += 1

    def tend(self, child: Child, *, mortal: bool = False) -> Child:
        """Replace a process that has died or whose time has come."""
        if (status := child.process.poll()) is not None:
            self.failures.append(f"{child.kind} ended with {status}: {self.said()}")
        elif time.monotonic() < child.until or (self.written_down() < child.enough and self.draw.random() > 0.01):
            return child
        else:
            self.kill(child)
        if child.kind == "writer":
            self.write_after_a_killed_one()
            return self.start("writer", mortal=True)
        return self.start(self.draw.choice(list(KINDS)) if mortal else child.kind, mortal=mortal)

    def write_after_a_killed_one(self) -> None:
        """Open the file for writing: the lock is free, and exactly the commits are there."""
        if not self.path.exists():
            return
        generation, count = committed(self.folder)
        try:
            with fr.Writer(self.path, mode="a") as writer:
                found = writer.metadata["generation"], len(writer)
                if found < (generation, count) or not known.Commits(found[0]).is_end(found[1]):
                    self.failures.append(f"{found} after a kill, where {generation, count} was committed")
        except (fr.FastRecordError, OSError) as error:
            self.failures.append(f"after a kill of the writer: {error}")
        self.counts["writers after it"] += 1

    def write_beside(self, writer: Child) -> None:
        """Try to open the file for writing: the writer holds it, except between two sessions."""
        try:
            fr.Writer(self.path, mode="a").abort()
        except fr.errors.LockedError as error:
            holder = re.search(r"\(pid (\d+): ", str(error))
            if holder is not None and int(holder[1]) != writer.process.pid:
                self.failures.append(f"the writer is {writer.process.pid}: {error}")
            self.counts["second writers refused" if holder is not None else "refused without a name"] += 1
        except FileNotFoundError:
            self.counts["too early"] += 1

    def go(self, seconds: int) -> None:
        """Let all run for a time, until each kind of reader has done its least."""
        writer = self.start("writer", mortal=True)
        while not self.written_down() and writer.process.poll() is None:
            time.sleep(0.05)  # a file without a commit is refused
        readers = [self.start(kind) for kind in KINDS]
        victim = self.start("mmap", mortal=True)
        start = time.monotonic()
        for _ in self.until(seconds, "s", each=0):
            time.sleep(self.draw.uniform(0, 0.2))
            writer, victim = self.tend(writer), self.tend(victim, mortal=True)
            readers = [self.tend(reader) for reader in readers]
            if self.draw.random() < 0.2:
                self.write_beside(writer)
            gone = time.monotonic() - start
            self.done = int(gone) if self.all_have_read() or gone > 600 + 2 * seconds else 0
        for child in (*readers, victim, writer):
            self.kill(child)

    def rounds(self) -> dict[str, int]:
        """Return the amount of work per kind of reader."""
        files = {kind: self.folder / f"rounds-{kind}" for kind in KINDS}
        return {kind: file.stat().st_size if file.exists() else 0 for kind, file in files.items()}

    def all_have_read(self) -> bool:
        """Return whether each kind of reader has done its least."""
        return min(self.rounds().values()) >= _LEAST_ROUNDS

    def said(self) -> str:
        """Return the end of the processes' output."""
        return (self.folder / "said").read_text(errors="replace")[-1500:]

    def look_back(self) -> None:
        """Check the file, the readers' memory, processes and temporary files at the end."""
        if not self.all_have_read():
            self.failures.append(f"a reader did not come round: {self.rounds()}: {self.said()}")
        if (found := self.folder / "failures").exists():
            self.failures += [json.loads(line) for line in found.read_text().splitlines()]
        self.write_after_a_killed_one()
        with fr.Reader(self.path) as reader:
            generation = reader.metadata["generation"]
            self.failures += reader.verify()["errors"][:3]
            try:
                for name in reader.schema:
                    for first in range(0, len(reader), 500):
                        rows = range(first, min(first + 500, len(reader)))
                        known.compare(generation, rows, name, reader.read_batch(rows, [name])[name], "the end")
            except known.WrongDataError as error:
                self.failures.append(str(error))
            self.counts["generations"] = generation
        self.failures += [f"left: {command_line(process)}" for process in still_there(self.orphans)]
        # A killed replacing writer leaves a temporary file; the next replacing writer removes it.
        Appender(self.folder, 0, self.draw).session()
        left = [path.name for path in self.folder.iterdir() if ".tmp-" in path.name]
        self.failures += [f"left: {name}" for name in left]
        if (mine := use()).mappings:
            self.failures.append(f"the experiment itself holds {mine}")

    def growth(self) -> str:
        """Compare each reader at the end with its first rounds, and return the largest growth."""
        most = [0, 0, 0]
        for file in self.folder.glob("use-*"):
            if file.suffix:
                continue
            held = json.loads(file.read_text())
            first, last = held[min(2, len(held) - 1)], held[-1]
            names = ("memory", "descriptors", "threads")
            grown = [last[name] - first[name] for name in names]
            if any(now > room for now, room in zip(grown, _ROOM, strict=True)) or last["mappings"]:
                self.failures.append(f"a reader held {first} after its first rounds, and {last} in the end")
            most = [max(pair) for pair in zip(most, grown, strict=True)]
        return f"readers grew by {most[0] / (1 << 20):.1f} MiB, {most[1]} descriptors, {most[2]} threads at most"


def run(seconds: int) -> Outcome:
    """See the module docstring."""
    with tempfile.TemporaryDirectory(prefix="readers-") as name:
        folder = Path(name)
        run = Run(folder, long=seconds >= 60)
        run.go(seconds)
        run.look_back()
        growth = run.growth()
        commits = (folder / "committed").read_bytes().count(b"\n")
        rounds = ", ".join(f"{kind} {count:,}" for kind, count in run.rounds().items())
        return run.outcome(f"{commits:,} commits; rounds: {rounds}; {growth}")


EXPERIMENT = Experiment(
    *("readers", 5, "seconds of readers beside a writer", 3, 3600, run),
    where=", ".join(f"tests/torture/readers/{name}.py" for name in ("readers", "reading", "appending")),
    apart=True,  # it forks
)
