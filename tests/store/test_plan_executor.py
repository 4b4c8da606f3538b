"""Bringing ahead: in time and within the limit; errors, ends and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastrecord.sampler.batch_sampler import FastRecordBatchSampler
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.plan import Plan
from fastrecord.store.plan_executor import PlanExecutor


class Nothing:
    """Brings nothing; `hold` stops it in the middle."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()
        self.done = -1
        self.brought = 0
        self.error: Exception | None = None

    def bring(self, units: NDArray[np.int64]) -> None:
        self.hold.wait(10)
        if self.error:
            raise self.error
        self.brought += len(units)

    def give_up(self, units: NDArray[np.int64]) -> None:
        pass

    def progress(self) -> int:
        return self.done


def plan(units: int = 100, limit: int | None = None) -> tuple[NodeOrder, Plan]:
    sampler = FastRecordBatchSampler(range(units), 64, shuffle=True)
    order = NodeOrder(sampler, range(units))
    return order, Plan(order, np.ones(units, np.int64), limit)


def until(condition: object, seconds: float = 10) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


def test_it_stops_at_the_limit_and_goes_on_with_the_ranks() -> None:
    order, decisions = plan(6400, 2 * 64)
    place = Nothing()
    with PlanExecutor(decisions, place, steps=order.steps) as ahead:
        assert until(lambda: place.brought == 2 * 64)
        time.sleep(0.05)
        assert place.brought == 2 * 64
        place.done = 1
        ahead.wait(2)
        assert place.brought == 3 * 64


def test_it_is_no_more_steps_ahead_than_allowed() -> None:
    order, decisions = plan(6400)
    place = Nothing()
    with PlanExecutor(decisions, place, steps=3):
        assert until(lambda: place.brought == 3 * 64)
        time.sleep(0.05)
        assert place.brought == 3 * 64
    assert order.batches == 1


def test_the_error_of_a_request_is_that_of_the_loader() -> None:
    _, decisions = plan()
    place = Nothing()
    place.error = OSError("the store does not answer")
    with PlanExecutor(decisions, place, steps=10) as ahead:
        with pytest.raises(OSError, match="does not answer"):
            ahead.wait(0)
        with pytest.raises(OSError, match="does not answer"):
            ahead.check()


def test_the_error_of_a_plan_is_that_of_the_loader() -> None:
    _, decisions = plan(6400, 5)
    with (
        PlanExecutor(decisions, Nothing(), steps=10) as ahead,
        pytest.raises(ValueError, match="cache of 5 bytes is too small"),
    ):
        ahead.wait(0)


def test_closing_ends_its_threads_and_whoever_waits() -> None:
    before = threading.active_count()
    _, decisions = plan()
    place = Nothing()
    place.hold.clear()
    ahead = PlanExecutor(decisions, place, steps=10).start()
    found: list[str] = []

    def wait() -> None:
        try:
            ahead.wait(0)
        except RuntimeError as error:
            found.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    threading.Timer(0.05, place.hold.set).start()
    ahead.close()
    waiter.join()
    assert found == ["it was closed while a step was waited for"] or not found
    assert until(lambda: threading.active_count() == before)


def test_ctrl_c_ends_a_wait_for_the_network(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, time\n"
        "import numpy as np\n"
        "from fastrecord.store.plan_executor import PlanExecutor\n"
        "from fastrecord.store.plan import Decision\n"
        "class Slow:\n"
        "    def bring(self, units): print('waiting', flush=True); time.sleep(1000)\n"
        "    def give_up(self, units): pass\n"
        "    def progress(self): return -1\n"
        "none = np.empty(0, np.int64)\n"
        "def decisions():\n"
        "    yield Decision(0, -1, none, np.arange(3))\n"
        "    while True: time.sleep(0.05); yield Decision(0, -1, none, none)\n"
        "with PlanExecutor(decisions(), Slow(), steps=5) as ahead:\n"
        "    ahead.wait(7)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert "KeyboardInterrupt" in errors
