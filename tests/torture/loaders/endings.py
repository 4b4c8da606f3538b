"""Loading processes end in every way, at any moment: no hang, no crash, the right exit status."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections import Counter

import numpy as np
from tqdm import tqdm

from tests.torture.experiment import ROOT, Experiment, Outcome

# How a process may end, and its right exit status (for a signal: the negative number).
ENDINGS = {
    "end of epoch": 0,
    "break": 0,
    "live iterator": 0,
    "daemon thread": 0,
    "fork": 0,
    "os._exit": 0,
    "exception": 1,
    "exception of a bad record": 1,
    "Ctrl-C": -2,
}
_HANGS = 120  # seconds, on a busy machine


def _endings(count: int) -> Outcome:
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    failures: list[str] = []
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.torture.loaders.ending_host", folder, str(_HANGS)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
            if host.stdin is None or host.stdout is None:
                raise RuntimeError("pipes were asked for")
            for number in tqdm(range(count), desc="endings", disable=None):
                ending = [*ENDINGS][number % len(ENDINGS)]
                case = {
                    "ending": ending,
                    "images": bool(rng.integers(2)),
                    "threads": int(rng.integers(1, 5)),
                    "batch": int(rng.integers(1, 9)),
                    "after": int(rng.integers(0, 12)),
                    "milliseconds": float(rng.exponential(20)),
                }
                host.stdin.write(json.dumps(case) + "\n")
                host.stdin.flush()
                answer = host.stdout.readline()
                if not answer:
                    failures.append(f"seed {seed}, case {number}: the host ended at {case}")
                    break
                found = json.loads(answer)
                if found["status"] != ENDINGS[ending]:
                    failures.append(f"seed {seed}, case {number}: {case} ended with {found}")
                seen[ending] += 1
            host.stdin.close()
    detail = f"seed {seed}; " + ", ".join(f"{name} {times:,}" for name, times in seen.items())
    return Outcome(seen.total(), failures[:20], detail)


EXPERIMENT = Experiment(
    "endings",
    8,
    "processes that ended during an epoch",
    "tests/torture/loaders/endings.py, tests/torture/loaders/ending_host.py",
    9,
    2_000,
    _endings,
)
