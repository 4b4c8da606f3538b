"""Runs a script in a child Python process: for crashes, signals, limits and the work folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
