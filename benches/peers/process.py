"""The side of the benchmark: starts a contender's process and asks it for epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benches.peers import Data

ROOT = Path(__file__).parent.parent.parent


def python() -> str:
    """Where the peers are installed: FASTRECORD_BENCH_PYTHON, what `benches.peers.install` made, or this Python."""
    made = ROOT / ".cache" / "bench" / "peers" / "bin" / "python"
    return os.environ.get("FASTRECORD_BENCH_PYTHON", str(made) if made.exists() else sys.executable)


class Contender:
    """A loader in a process of its own.

    Attributes:
        missing: Why it cannot run, None if it can.
        version: What is measured.
        memory: What it answered when it was asked for its memory.
    """

    def __init__(self, name: str, data: Data, *, threads: int, batch: int) -> None:
        """Start it; it is ready after `wait`."""
        self.name = name
        self.missing: str | None = None
        self.version = ""
        self.memory: dict[str, int] = {}
        self.log = data.root / f"{name.replace(':', '-')}-{threads}-{batch}.log"
        arguments = [name, str(data.root), str(data.records), str(threads), str(batch)]
        # Its package lies in this Python's environment: which version of it is measured is not the other's choice.
        path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python(), "-m", "benches.peers.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"PYTHONPATH": path},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Let it start; some import for seconds."""
        answer = self._answer()
        self.missing, self.version = answer.get("missing"), answer.get("version", "")

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command; see benches/peers/child.py.

        Raises:
            RuntimeError: it failed; the message has the end of its log.
        """
        stream = self._process.stdin
        if stream is None or self._process.poll() is not None:
            raise RuntimeError(self._told())
        stream.write(f"{command}\n")
        stream.flush()
        return self._answer()

    def end(self) -> None:
        """Let it end; `close` waits for that."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def close(self) -> None:
        """End it and wait."""
        self.end()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(self._told())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _told(self) -> str:
        end = self.log.read_text()[-2000:]
        return f"{self.name}: status {self._process.wait()}; its log ends with:\n{end}"
