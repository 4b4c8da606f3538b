"""Kills processes at random moments, and checks what they leave: `Victim`, `Killer`, `Story`."""

from __future__ import annotations

import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.torture.experiment import Outcome, Rounds

# Upper bound on the wait for a process, also on a busy machine.
_PATIENCE = 120


def _reporting(conn: Connection, target: Callable[..., None], *arguments: Any) -> None:
    """Run a victim, and send its error."""
    try:
        target(conn, *arguments)
    except BaseException:  # noqa: BLE001 - the killer hears of it
        with suppress(OSError):
            conn.send(traceback.format_exc()[-1500:])
        raise SystemExit(1) from None


class Victim:
    """A process that has begun: its function sends None first, so that no kill falls into Python's startup.

    Attributes:
        told: What it has sent since.
    """

    def __init__(self, context: Any, target: Callable[..., None], *arguments: Any) -> None:
        self.name = target.__name__
        self.told: list[Any] = []
        self._conn, theirs = context.Pipe()
        self._process = context.Process(target=_reporting, args=(theirs, target, *arguments), daemon=True)
        self._process.start()
        theirs.close()
        if not self._conn.poll(_PATIENCE) or (told := self._conn.recv()) is not None:
            self._process.kill()
            raise AssertionError(f"{self.name} did not begin: {told}")

    def send(self) -> None:
        """Let it go on."""
        self._conn.send(None)

    def stop(self) -> None:
        """Kill it, if it is still running."""
        self._process.kill()
        self._process.join()

    def kill(self) -> bool:
        """Kill it; return whether it was still running."""
        self.stop()
        if self._process.exitcode != -signal.SIGKILL:
            self.end()
            return False
        self._hear()
        return True

    def end(self) -> list[Any]:
        """Wait for its end; return what it has sent.

        Raises:
            AssertionError: it has failed, or does not end.
        """
        self._process.join(_PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"{self.name} does not end")
        self._hear()
        if self._process.exitcode != 0:
            raise AssertionError(f"{self.name} ended with {self._process.exitcode}: {self.told[-1:]}")
        return self.told

    def _hear(self) -> None:
        with suppress(EOFError, OSError):
            while self._conn.poll():
                self.told.append(self._conn.recv())


class Killer:
    """Starts the victims of stories and kills them.

    Args:
        count: Kills to do.
        preload: What the victims import; they are forked from a process that has it, and no threads.

    Attributes:
        rounds: What is counted: kills by story, and by the moment that `look` has found.
        few: Whether a story kills only once, so that few kills are of many kinds.
    """

    def __init__(self, count: int, *preload: str) -> None:
        self.rounds, self.count, self.few = Rounds(), count, count <= 10
        self.draw = self.rounds.draw
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(preload))
        self._running: list[Victim] = []

    def start(self, target: Callable[..., None], *arguments: Any) -> Victim:
        """Start a victim."""
        self._running.append(Victim(self._context, target, *arguments))
        return self._running[-1]

    def run(self, kinds: Sequence[Callable[[Killer, Path], Story]], after: Callable[[], object] = int) -> Outcome:
        """Tell stories in turn until there were as many kills as wanted.

        Args:
            kinds: What makes a story in a folder of its own; called when it is its turn: a few kills
                need not make the data of all.
            after: Called after each round.
        """
        stories: dict[Any, Story] = {}
        with tempfile.TemporaryDirectory() as name:
            for number in self.rounds.until(self.count, "kills", each=0):
                make = kinds[number % len(kinds)]
                what = f"kill {self.rounds.done}, {getattr(make, 'func', make).__name__}"
                with self.rounds.trial(what), tempfile.TemporaryDirectory(dir=name) as here:
                    try:
                        if make not in stories:
                            stories[make] = make(self, Path(tempfile.mkdtemp(dir=name)))
                        stories[make].once(Path(here))
                    finally:
                        for victim in self._running:  # those that a failed story has left
                            victim.stop()
                        self._running.clear()
                        after()
        return self.rounds.outcome()


class Story(ABC):
    """Something that is killed.

    Args:
        killer: Starts and kills its victims.
        folder: Its own folder, for what all rounds share.

    Attributes:
        name: Counts its kills.
        seconds: How long it takes undisturbed; a guess at first.
        promised: What the killed victims have sent.
    """

    name = ""

    def __init__(self, killer: Killer, folder: Path) -> None:
        self.killer, self.folder = killer, folder
        self.seconds = 0.6
        self.promised: list[Any] = []

    def once(self, here: Path) -> None:
        """Kill it once or several times, in an empty folder, and check what remains; let it finish, and compare.

        Raises:
            AssertionError: something is lost, doubled, wrong or left.
        """
        self.before(here)
        self.promised = []
        for _ in range(1 if self.killer.few else self.killer.draw.choice((1, 1, 2, 3))):
            for survivor in self.kill_some(self.begin(here)):
                survivor.end()
            self.killer.rounds.counts[self.look(here)] += 1
        self.finish(here)
        self.compare(here)

    def kill_some(self, running: list[Victim]) -> list[Victim]:
        """Kill one or all of some victims at a random moment; return the survivors."""
        draw, rounds = self.killer.draw, self.killer.rounds
        time.sleep(draw.uniform(0, 1.05 * self.seconds))
        chosen = draw.sample(running, draw.randint(1, len(running)))
        for victim in chosen:
            if victim.kill():
                rounds.done += 1
                rounds.counts[self.name] += 1
                self.seconds *= 1.01
            else:
                self.seconds *= 0.9  # kills must fall within the run
            self.promised += victim.told
        return [victim for victim in running if victim not in chosen]

    def before(self, here: Path) -> None:  # noqa: B027 - some need nothing
        """Put the victims' starting files in place."""

    @abstractmethod
    def begin(self, here: Path) -> list[Victim]:
        """Start the victims. After a kill the same call goes on."""

    @abstractmethod
    def look(self, here: Path) -> str:
        """Check the remains; return the moment of the kill."""

    def finish(self, here: Path) -> None:
        """Start what goes on, and let it end."""
        for victim in self.begin(here):
            victim.end()

    @abstractmethod
    def compare(self, here: Path) -> None:
        """Compare the result with what it must be."""
