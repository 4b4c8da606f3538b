"""The benchmark's side: `Process` starts a contender and sends it requests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# Time limit of an answer in seconds: an epoch, or making the files.
LIMIT = float(os.environ.get("FASTRECORD_BENCH_LIMIT", "600"))

# Time limit in seconds for its end after the last request.
ENDS = 20.0


def python() -> str:
    """The peers' Python: FASTRECORD_BENCH_PYTHON, the installed environment, or this one."""
    made = ROOT / ".cache" / "bench" / "peers" / "bin" / "python"
    return os.environ.get("FASTRECORD_BENCH_PYTHON", str(made) if made.exists() else sys.executable)


class Process:
    """A contender in a process of its own, and of its own session, so that its workers end with it.

    Args:
        name: Its name in messages.
        target: `module:callable`.
        settings: Its keyword arguments.
        cpus: The CPUs that it may use.
        log: The file for its output.
    """

    def __init__(self, name: str, target: str, settings: Mapping[str, Any], cpus: Sequence[int], log: Path) -> None:
        self.name, self.log = name, log
        # The package comes from this checkout, whichever version the peers' environment has.
        path = os.pathsep.join([str(ROOT / "python"), str(ROOT)])
        threads = {name: str(len(cpus)) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [python(), "-m", "benches.harness.child", target, json.dumps(dict(settings)), json.dumps(list(cpus))]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=os.environ | {"PYTHONPATH": path} | threads,
                start_new_session=True,
            )
        self._heard = b""

    def send(self, method: str, arguments: Mapping[str, Any], *, memory: bool = False) -> None:
        """Send a request; `answer` waits for what comes of it."""
        request = json.dumps({"method": method, "arguments": dict(arguments), "memory": memory})
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended, and the answer reports that
                self._process.stdin.write(f"{request}\n".encode())
                self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            RuntimeError: it failed, or was killed because it did not answer in `LIMIT` seconds; the
                message has the end of its log.
        """
        stream, end = self._process.stdout, time.monotonic() + LIMIT
        while stream is not None and b"\n" not in self._heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                self.kill()
                raise RuntimeError(f"{self._told()}\nno answer in {LIMIT:g} s (FASTRECORD_BENCH_LIMIT)")
            heard = os.read(stream.fileno(), 1 << 16)
            if not heard:
                raise RuntimeError(self._told())
            self._heard += heard
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._told()}\n{answer['error']}")
        return answer

    def kill(self) -> None:
        """Kill the process and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Ask it to end; `close` waits for that."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def close(self) -> None:
        """End the process and wait."""
        self.end()
        self._finish()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _told(self) -> str:
        self._finish()  # its output has ended
        end = self.log.read_text(errors="replace")[-2000:]
        return f"{self.name}: status {self._process.returncode}; its log ends with:\n{end}"

    def _finish(self) -> None:
        """Wait for its end, then kill what is left: itself, or workers that have outlived it."""
        if self._process.returncode is not None:
            return
        ended = os.pidfd_open(self._process.pid)
        try:
            select.select([ended], [], [], ENDS)
        finally:
            os.close(ended)
            self.kill()  # its number belongs to no other process before `kill` has waited for it
