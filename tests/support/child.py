"""Runs a script in a child Python process: for crashes, signals, limits and the work folder."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELUDE = """
import os, resource, signal, sys, threading
import numpy as np
import fastrecord as fr
SCHEMA = fr.Schema({"data": fr.bytes_(), "label": "int64", "key": fr.string()})
def record(number, size=100):
    return {"data": bytes([number % 256]) * size, "label": number, "key": f"key {number}"}
def write(path, count, size=100, **options):
    with fr.Writer(path, SCHEMA, **options) as writer:
        for number in range(count):
            writer.append(record(number, size))
    return path
"""


def run_child(script: str, cwd: Path, timeout: float = 60) -> str:
    """Run `PRELUDE`, then a script in `cwd`; return its output. Fail on an error or a hang."""
    command = [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(f"the script ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which processes find this package and compute with one thread."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what a forked child returns."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # OpenMP's threads are the parent's
        try:
            found: Any = work()
        except Exception:  # noqa: BLE001 - the parent reports it
            found = traceback.format_exc()
        with os.fdopen(sink, "wb") as pipe:
            pipe.write(pickle.dumps(found))
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        found = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return found
