"""The contender's side: `python -m benches.harness.child MODULE:NAME SETTINGS CPUS`.

Makes the object `NAME(**SETTINGS)`, bound to the CPUs, then reads requests from standard input, one
JSON object a line, `{"method": ..., "arguments": {...}, "memory": bool}`, and answers each with one:
`seconds` and `cpu_seconds` of the call, `value`, and with `memory` its `before_bytes` and
`most_bytes`. What a contender prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any

from benches.harness.contest import Missing
from benches.harness.usage import PeakMemory, cpu_seconds


def call(contender: Any, method: str, arguments: dict[str, Any], *, memory: bool) -> dict[str, Any]:
    """Call a method and measure it.

    Sampling memory takes CPU time, so calls with `memory` are not for timing.
    """
    peak = PeakMemory() if memory else nullcontext()
    with peak:
        cpu, start = cpu_seconds(), time.perf_counter()
        value = getattr(contender, method)(**arguments)
        seconds = time.perf_counter() - start
    answer = {"seconds": seconds, "cpu_seconds": cpu_seconds() - cpu, "value": value}
    if isinstance(peak, PeakMemory):
        answer |= {"before_bytes": peak.before, "most_bytes": peak.most}
    return answer


def main() -> int:
    """Serve requests until standard input ends."""
    target, settings, cpus = sys.argv[1:]
    os.sched_setaffinity(0, json.loads(cpus))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    module, _, name = target.partition(":")
    try:
        contender = getattr(importlib.import_module(module), name)(**json.loads(settings))
    except (ImportError, Missing) as error:
        answer({"missing": str(error)})
        return 0
    answer({"version": getattr(contender, "version", "")})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = call(contender, request["method"], request["arguments"], memory=request["memory"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark hears of it
            traceback.print_exc()
            told = "" if isinstance(error, ImportError | Missing) else f"{type(error).__name__}: "
            answer({"error": f"{told}{error}"})
            return 1
        answer(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
