"""Run experiments: `python -m benches.experiments [--full] [--out FOLDER] [NAME ...]`.

Each writes FOLDER/NAME.jsonl; `python -m benches.report FOLDER` makes a page of them.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import signal
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path

from benches.harness import Bench, Results
from benches.harness.process import ROOT
from benches.harness.results import gather_facts

NAMES = (
    "formats",
    "augmented",
    "small_batches",
    "bottleneck",
    "scaling",
    "scale",
    "store",
    "recipe",
    "interchange",
    "ray",
    "gpu",
)


def main() -> int:
    """Run the experiments one after the other; one that fails does not end the others."""
    parser = argparse.ArgumentParser(prog="python -m benches.experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--full", action="store_true", help="everything; takes hours, not minutes")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: .cache/bench/results/short or full")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the data, kept between runs; FASTRECORD_BENCH_DIR")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    cache = ROOT / ".cache" / "bench"
    data = options.data or Path(os.environ.get("FASTRECORD_BENCH_DIR", cache))
    out = options.out or cache / "results" / ("full" if options.full else "short")
    failed = []
    with ExitStack() as locks:
        try:
            for folder in dict.fromkeys((data.resolve(), out.resolve())):
                folder.mkdir(parents=True, exist_ok=True)
                lock = locks.enter_context((folder / ".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder}: another run measures there now; two at once would disturb each other", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"{error}; --data and --out name other folders", file=sys.stderr)
            return 1
        for name in options.names or NAMES:
            command = f"python -m benches.experiments {'--full ' if options.full else ''}{name}"
            facts = gather_facts(data, command, full=options.full)
            try:
                with Results(out / f"{name}.jsonl", facts) as results:
                    module = importlib.import_module(f"benches.experiments.{name}")
                    module.run(Bench(name, data, results, full=options.full))
            except KeyboardInterrupt:
                print(f"{name}: stopped; {out} has the experiments that were finished", file=sys.stderr)
                return 128 + signal.SIGINT
            except Exception:  # noqa: BLE001 - told below; the others go on
                traceback.print_exc()
                failed.append(name)
    print(f"results: {out}; `python -m benches.report {out}` makes a page of them", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    # Ended in any way, it ends the contenders: they run in sessions of their own.
    for kind in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(kind, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
