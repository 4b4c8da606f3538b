"""An experiment in a process of its own: `python -m tests.torture.apart MODULE COUNT` prints its outcome."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.child import ROOT, environment

__all__ = ["ROOT", "Talker", "apart", "end_with_parent", "environment", "popen"]
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let this forked process die with the thread that started it, so that no job remains."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def popen(*words: str | Path, **options: Any) -> Any:
    """Start Python with these arguments; it ends with this process. Options are those of Popen."""
    more = options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment(**more), preexec_fn=end_with_parent, **options
    )


class Talker:
    """A Python process that reads lines of JSON and answers in lines; it ends when nothing more comes."""

    def __init__(self, *words: str) -> None:
        self.process = popen("-m", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, value: Any) -> None:
        """Send it a line."""
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Return its next line; "" if it has ended."""
        return str(self.process.stdout.readline()).strip()

    def end(self) -> int:
        """Return the exit status."""
        self.process.communicate()
        return int(self.process.returncode)


def apart(module: str, count: int) -> dict[str, Any] | str:
    """Call the `run` of a module; return the fields of its outcome, or what went wrong."""
    with popen("-m", "tests.torture.apart", module, str(count), stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate()
    if process.returncode != 0:
        return f"{module} {count} ended with {process.returncode}"
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(import_module(sys.argv[1]).run(int(sys.argv[2])))) + "\n")
