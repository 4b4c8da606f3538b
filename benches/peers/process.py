"""The benchmark's side: `Contender` starts a loader's process and requests epochs from it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benches.peers import Data

ROOT = Path(__file__).parent.parent.parent
# Time limit of an answer in seconds: an epoch, or making the files.
LIMIT = float(os.environ.get("FASTRECORD_BENCH_LIMIT", "600"))


def python() -> str:
    """The peers' Python: FASTRECORD_BENCH_PYTHON, the installed environment, or this one."""
    made = ROOT / ".cache" / "bench" / "peers" / "bin" / "python"
    return os.environ.get("FASTRECORD_BENCH_PYTHON", str(made) if made.exists() else sys.executable)


class Contender:
    """A loader in a process of its own.

    Attributes:
        missing: The reason why it cannot run, or None.
        version: The measured version.
        memory: Its answer to the memory command.
    """

    def __init__(self, name: str, data: Data, *, threads: int, batch: int) -> None:
        """Start the process; it is ready after `wait`."""
        self.name = name
        self.missing: str | None = None
        self.version = ""
        self.memory: dict[str, int] = {}
        self.log = data.root / f"{name.replace(':', '-')}-{threads}-{batch}.log"
        arguments = [name, str(data.root), str(data.records), str(threads), str(batch)]
        # The package belongs to this Python's environment, so the other environment cannot select
        # its version.
        path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python(), "-m", "benches.peers.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,
            )
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until it has started; some imports take seconds.

        Raises:
            RuntimeError: it failed, or was killed because it did not answer in `LIMIT` seconds.
        """
        answer = self._answer()
        self.missing, self.version = answer.get("missing"), answer.get("version", "")

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command; see benches/peers/child.py.

        Raises:
            RuntimeError: as in `wait`; the message has the end of its log.
        """
        stream = self._process.stdin
        if stream is None or self._process.poll() is not None:
            raise RuntimeError(self._told())
        with suppress(BrokenPipeError):  # it has ended since, and the answer reports that
            stream.write(f"{command}\n".encode())
            stream.flush()
        return self._answer()

    def end(self) -> None:
        """Ask it to end; `close` waits for that."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process and wait."""
        self.end()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        stream, end = self._process.stdout, time.monotonic() + LIMIT
        while stream is not None and b"\n" not in self._heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                self._kill()
                raise RuntimeError(f"{self._told()}\nno answer in {LIMIT:g} s (FASTRECORD_BENCH_LIMIT)")
            heard = os.read(stream.fileno(), 1 << 16)
            if not heard:
                raise RuntimeError(self._told())
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _kill(self) -> None:
        """Kill the process and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _told(self) -> str:
        end = self.log.read_text(errors="replace")[-2000:]
        return f"{self.name}: status {self._ended()}; its log ends with:\n{end}"

    def _ended(self) -> int:
        """Return the exit status of a process whose output has ended."""
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()
