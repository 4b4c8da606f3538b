"""Kills processes at random moments and checks what they leave."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fastrecord as fr
from tests.support.packing import metadata, records

# Upper bound on the wait for a process to kill, also on a busy machine.
_PATIENCE = 120
_PRELOADED = ["tests.torture.files.sigkill", "fastrecord.cli.packing.pack", "fastrecord.files.rewrite"]


@dataclass
class Killer:
    """Starts processes and kills them."""

    seed: int
    kills: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        # Forked from a process that has imported everything and has no threads.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def run(self, target: Callable[..., None], *arguments: Any, kill_after: float | None = None) -> Ended:
        """Run a victim until its end, or for this many seconds."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(theirs, *arguments))
        process.start()
        theirs.close()
        if not ours.poll(_PATIENCE):
            raise AssertionError(f"{target.__name__} did not begin")
        ours.recv()
        started = time.monotonic()
        if kill_after is not None:
            process.join(kill_after)
            process.kill()
        process.join(_PATIENCE)
        seconds = time.monotonic() - started
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{target.__name__} did not end")
        said = []
        try:
            while ours.poll():
                said.append(ours.recv())
        except EOFError:
            pass
        killed = process.exitcode == -signal.SIGKILL
        self.kills += killed
        return Ended(process.exitcode, seconds, said, killed)


@dataclass(frozen=True)
class Ended:
    status: int
    seconds: float
    said: list[int]
    killed: bool


class Story(ABC):
    """A writing task that is killed.

    Args:
        killer: Runs and kills the processes.
        folder: Its own, empty folder.
    """

    name = ""

    def __init__(self, killer: Killer, folder: Path) -> None:
        self.killer, self.folder = killer, folder
        self.expected = self.folder / "undisturbed"
        self.expected.mkdir()
        self.seconds = 0.0
        self.promised = 0

    def prepare(self) -> None:
        """Make the input, and run it once undisturbed."""
        self.make()
        self.before(self.expected)
        ended = self.killer.run(*self.victim(self.expected))
        if ended.status != 0:
            raise AssertionError(f"{self.name}: undisturbed, it ended with {ended.status}")
        self.seconds = ended.seconds

    def once(self) -> None:
        """Kill it, maybe several times; check the remains, let it finish, and compare."""
        here = Path(tempfile.mkdtemp(dir=self.folder))
        self.before(here)
        for _ in range(1 + (self.killer.rng.random() < 0.3) + (self.killer.rng.random() < 0.1)):
            ended = self.killer.run(*self.victim(here), kill_after=self.killer.rng.uniform(0, 1.05 * self.seconds))
            if not ended.killed:
                if ended.status != 0:
                    raise AssertionError(f"it ended by itself, with {ended.status}")
                self.killer.phases["after the end"] += 1
                # The load of the machine varies: kills must fall within the run.
                self.seconds *= 0.93
                break
            self.seconds *= 1.01
            self.promised = max(ended.said, default=0)
            self.killer.phases[self.look(here)] += 1
        ended = self.killer.run(*self.victim(here))
        if ended.status != 0:
            raise AssertionError(f"the run after the kill ended with {ended.status}")
        self.compare(here)
        left = sorted(path.name for path in here.rglob("*") if ".tmp" in path.name)
        if left:
            raise AssertionError(f"it has left {left}")
        shutil.rmtree(here)

    def make(self) -> None:  # noqa: B027 - some need none
        """Make the input."""

    def before(self, here: Path) -> None:  # noqa: B027
        """Put the victim's starting files in place."""

    @abstractmethod
    def victim(self, here: Path) -> tuple[Any, ...]:
        """Return a function and its arguments. After a kill the same call resumes."""

    @abstractmethod
    def look(self, here: Path) -> str:
        """Check the remains, at least `promised` records; return the moment of the kill."""

    def compare(self, here: Path) -> None:
        """Compare the result with the uninterrupted one."""
        found, expected = here / "out.frec", self.expected / "out.frec"
        verify(found)
        if records(found) != records(expected) or metadata(found) != metadata(expected):
            raise AssertionError("the result differs from an undisturbed run")


def verify(path: Path) -> None:
    """Verify all checksums of a file that must be complete."""
    with fr.Reader(path) as reader:
        report = reader.verify()
        if not report["ok"] or not reader.complete or reader.tail_bytes:
            raise AssertionError(f"{report['errors'] or 'incomplete, or with a tail'}")
