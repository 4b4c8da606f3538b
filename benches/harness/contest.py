"""`Contest`: contenders in processes of their own, called in turn."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benches.harness.process import Process


class Missing(Exception):  # noqa: N818 - a fact about the machine, not a fault
    """A contender cannot run here; its text is the reason."""


@dataclass(frozen=True)
class Contender:
    """What competes.

    Attributes:
        name: As the report shows it.
        target: `module:callable`; see benches/harness/__init__.py.
        settings: The callable's keyword arguments, which JSON can hold.
        cores: How many CPUs each of its processes may use; None: all.
        copies: How many processes do the same at once, on CPUs of their own as long as there are
            enough. Each also gets the settings `rank` and `ranks` if there are several.
    """

    name: str
    target: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cores: int | None = None
    copies: int = 1


@dataclass(frozen=True)
class Answer:
    """What came of one call.

    Attributes:
        seconds: Time of the call, of the slowest copy.
        cpu_seconds: CPU time with workers, of all copies.
        value: What the method returned; a list of those with several copies.
        before_bytes, most_bytes: With `memory`: memory before the call, and the most during it, of
            all copies, which the system cannot reclaim.
    """

    seconds: float
    cpu_seconds: float
    value: Any
    before_bytes: int = 0
    most_bytes: int = 0


class Contest:
    """Contenders in processes of their own; use it in a `with` block.

    Attributes:
        versions: What each contender says that it is.
        missing: Why a contender was left out.
    """

    def __init__(self, contenders: Sequence[Contender], folder: Path) -> None:
        """Set up; `folder` takes the logs."""
        self._contenders = {contender.name: contender for contender in contenders}
        if len(self._contenders) < len(contenders):
            raise ValueError("two contenders have the same name")
        self._folder = folder
        self._stack = ExitStack()
        self._processes: dict[str, list[Process]] = {}
        self.versions: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Start all of them, and wait for each; some imports take seconds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for contender in self._contenders.values():
                self._processes[contender.name] = [
                    self._start(contender, copy, stack) for copy in range(contender.copies)
                ]
            for processes in self._processes.values():
                for process in processes:
                    stack.callback(process.end)  # ends all of them before it waits for any
            for name in list(self._processes):
                found = self._answers(name)
                if found is not None and "missing" in found[0]:
                    self._leave_out(name, found[0]["missing"])
                elif found is not None:
                    self.versions[name] = found[0]["version"]
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # do not wait for a call that is still running
            for processes in self._processes.values():
                for process in processes:
                    process.kill()
        self._stack.close()

    @property
    def names(self) -> list[str]:
        """The contenders that are left."""
        return list(self._processes)

    def call(self, name: str, method: str, *, memory: bool = False, **arguments: Any) -> Answer | None:
        """Call a method of one contender; None if it fails, and it is left out then."""
        for process in self._processes[name]:
            process.send(method, arguments, memory=memory)
        found = self._answers(name)
        if found is None:
            return None
        values = [answer["value"] for answer in found]
        return Answer(
            max(answer["seconds"] for answer in found),
            sum(answer["cpu_seconds"] for answer in found),
            values if len(values) > 1 else values[0],
            sum(answer.get("before_bytes", 0) for answer in found),
            sum(answer.get("most_bytes", 0) for answer in found),
        )

    def each(self, method: str, *, memory: bool = False, **arguments: Any) -> dict[str, Answer]:
        """Call a method of each, one after the other."""
        found = {name: self.call(name, method, memory=memory, **arguments) for name in self.names}
        return {name: answer for name, answer in found.items() if answer is not None}

    def rounds(
        self,
        method: str,
        *,
        rounds: int,
        warm_up: int = 1,
        before: Callable[[str], object] = lambda _: None,
        arguments: Callable[[int], Mapping[str, Any]] = lambda _: {},
        only: Collection[str] | None = None,
    ) -> dict[str, list[Answer]]:
        """Call a method of all contenders in turn, repeatedly.

        The order of a round is drawn from its number, so that none always runs after the same other one,
        whose workers may still be busy.

        Args:
            method: The method.
            rounds: Rounds that count.
            warm_up: Rounds before them, which do not.
            before: Called before each call, with the contender's name; not timed.
            arguments: The keyword arguments of a round, by its number from 0, the warm-up included.
            only: The contenders that take part; None: all.

        Returns:
            The answers of the contenders that came through all rounds.
        """

        def one(name: str, number: int) -> Answer | None:
            return self.call(name, method, **arguments(number))

        return self.turns({method: one}, rounds=rounds, warm_up=warm_up, before=before, only=only)[method]

    def turns(
        self,
        calls: Mapping[str, Callable[[str, int], Answer | None]],
        *,
        rounds: int,
        warm_up: int = 1,
        before: Callable[[str], object] = lambda _: None,
        only: Collection[str] | None = None,
    ) -> dict[str, dict[str, list[Answer]]]:
        """As `rounds`, with several calls of a contender each time that it takes its turn.

        Args:
            calls: What to measure: called with a contender's name and a round's number. Returns
                None if the contender does not take part in it, or has failed.
            rounds, warm_up, before, only: As in `rounds`; `before` is called before all calls of a
                turn.

        Returns:
            For each of `calls`, the answers of the contenders that came through all rounds.
        """
        found: dict[str, dict[str, list[Answer]]] = {what: {} for what in calls}
        for number in range(warm_up + rounds):
            names = [name for name in self.names if only is None or name in only]
            for name in random.Random(number).sample(names, len(names)):
                before(name)
                for what, call in calls.items():
                    # A contender may have failed since the round began.
                    answer = call(name, number) if name in self.names else None
                    if answer is not None and number >= warm_up:
                        found[what].setdefault(name, []).append(answer)
        return {what: {name: all_[name] for name in self.names if name in all_} for what, all_ in found.items()}

    def _start(self, contender: Contender, copy: int, stack: ExitStack) -> Process:
        cpus = sorted(os.sched_getaffinity(0))
        count = len(cpus) if contender.cores is None else min(contender.cores, len(cpus))
        chosen = [cpus[(copy * count + at) % len(cpus)] for at in range(count)]
        settings = dict(contender.settings)
        if contender.copies > 1:
            settings |= {"rank": copy, "ranks": contender.copies}
        name = "".join(letter if letter.isalnum() else "-" for letter in contender.name)
        log = self._folder / f"{name}-{count}-{copy}.log"
        process = Process(contender.name, contender.target, settings, chosen, log)
        stack.callback(process.close)
        return process

    def _answers(self, name: str) -> list[dict[str, Any]] | None:
        """Wait for all copies; a failure leaves the contender out."""
        try:
            return [process.answer() for process in self._processes[name]]
        except RuntimeError as error:
            self._leave_out(name, str(error).strip().splitlines()[-1])
            return None

    def _leave_out(self, name: str, why: str) -> None:
        self.missing[name] = why
        for process in self._processes.pop(name):
            process.close()
