"""Loading processes end in every way, at any moment: no hang, no crash, the right exit status."""

from __future__ import annotations

import json
import tempfile

from tests.torture.apart import Talker
from tests.torture.experiment import Experiment, Outcome, Rounds

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


def run(count: int) -> Outcome:
    """End this many processes."""
    rounds = Rounds()
    draw = rounds.draw
    with tempfile.TemporaryDirectory() as folder:
        host = Talker("tests.torture.loaders.ending_host", folder, str(_HANGS))
        for number in rounds.until(count, "endings"):
            ending = [*ENDINGS][number % len(ENDINGS)]
            case = {
                "ending": ending,
                "images": draw.random() < 0.5,
                "threads": draw.randrange(1, 5),
                "batch": draw.randrange(1, 9),
                "after": draw.randrange(12),
                "milliseconds": draw.expovariate(1 / 20),
            }
            host.tell(case)
            if not (answer := host.hear()):
                rounds.fail(f"case {number}: the host ended at {case}")
                break
            found = json.loads(answer)
            if found["status"] != ENDINGS[ending]:
                rounds.fail(f"case {number}: {case} ended with {found}")
            rounds.counts[ending] += 1
        host.end()
    return rounds.outcome()


EXPERIMENT = Experiment(
    *("endings", 8, "processes that ended during an epoch", 9, 2_000, run),
    where="tests/torture/loaders/endings.py, tests/torture/loaders/ending_host.py",
)
