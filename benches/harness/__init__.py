"""The one way of timing in this folder.

- `Contender` names what competes: a callable of a module, its settings, its CPUs.
- `Contest` starts each contender in a process of its own, bound to its CPUs, and calls a method of
  all of them in turn: a round each that does not count, then the rounds that do. A contender that
  is missing, fails or hangs is left out with its reason; the others go on.
- `Bench` is what an experiment gets: its folder, its size (short or full), and `row`, which adds a
  line to its results.
- `Results` writes these lines to one file an experiment, after a line of facts about the machine;
  `read` reads them.

A contender's class lives in an importable module. It is made once, with the settings as keyword
arguments, and its methods take and return what JSON can hold:

    class Loader:
        version = "h5py 3.16.0"                # shown beside the numbers
        def __init__(self, *, path: str, threads: int) -> None: ...
        def epoch(self, number: int) -> int: ...   # the child measures its time

An ImportError, or `Missing` with a reason, says that it cannot run here.
"""

from benches.harness.bench import Bench
from benches.harness.contest import Answer, Contender, Contest, Missing
from benches.harness.results import Facts, Results, Row, read

__all__ = ["Answer", "Bench", "Contender", "Contest", "Facts", "Missing", "Results", "Row", "read"]
