"""Bringing ahead: in time, within the limit, as many bytes as planned; errors, ends and Ctrl-C."""

from __future__ import annotations

import itertools
import os
import shutil
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
from fastrecord.sampler.blocks import Blocks
from fastrecord.sampler.node import NodeOrder
from fastrecord.store.plan import Plan, least_limit
from fastrecord.store.plan_executor import PlanExecutor


class Folder:
    """A folder of copies of the records in another one, a file for each."""

    def __init__(self, source: Path, copies: Path, limit: int | None, ranks: int) -> None:
        self.source, self.copies, self.limit = source, copies, limit
        self.used = self.downloaded = 0
        self.done = [-1] * ranks
        self._lock = threading.Lock()

    def bring(self, units: NDArray[np.int64]) -> None:
        for unit in units.tolist():
            name = str(unit)
            assert not (self.copies / name).exists()
            size = (self.source / name).stat().st_size
            with self._lock:
                self.used += size
                self.downloaded += size
                assert self.limit is None or self.used <= self.limit
            shutil.copy(self.source / name, self.copies / f"{name}.part")
            os.rename(self.copies / f"{name}.part", self.copies / name)

    def give_up(self, units: NDArray[np.int64]) -> None:
        for unit in units.tolist():
            size = (self.copies / str(unit)).stat().st_size
            os.unlink(self.copies / str(unit))
            with self._lock:
                self.used -= size

    def progress(self) -> int:
        return min(self.done)


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


def records(folder: Path, count: int) -> NDArray[np.int64]:
    """Write files of several sizes; return the sizes."""
    folder.mkdir()
    sizes = np.random.default_rng(1).integers(1, 60, count)
    for unit, size in enumerate(sizes.tolist()):
        (folder / str(unit)).write_bytes(unit.to_bytes(2, "big") * size)
    return 2 * sizes


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("shuffle", [True, Blocks(records=8, window=4)])
def test_ranks_find_what_they_need_and_the_bytes_are_the_planned_ones(
    tmp_path: Path, ranks: int, shuffle: bool | Blocks
) -> None:
    count, epochs = 320, 2
    sizes = records(tmp_path / "source", count)
    (tmp_path / "copies").mkdir()
    samplers = [
        FastRecordBatchSampler(range(count), 32 // ranks, shuffle=shuffle, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    order = NodeOrder(samplers[0], range(count))
    limit = max(int(sizes.sum()) // 4, least_limit(order, sizes, epochs + 1, ahead=1))
    planned = sum(size for size, _ in Plan(order, sizes, limit, ahead=1).downloads(epochs))
    place = Folder(tmp_path / "source", tmp_path / "copies", limit, ranks)
    stop = epochs * order.steps
    decisions = itertools.takewhile(lambda decision: decision.step < stop, Plan(order, sizes, limit, ahead=1))
    problems: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            for epoch in range(epochs):
                for batch in range(len(samplers[rank])):
                    step = order.step(epoch, batch)
                    ahead.wait(step)
                    for unit in samplers[rank].indices(batch, epoch=epoch).tolist():
                        assert (place.copies / str(unit)).read_bytes()[:2] == unit.to_bytes(2, "big")
                    if batch + 1 == len(samplers[rank]) or order.step(epoch, batch + 1) > step:
                        place.done[rank] = step
        except BaseException as error:  # noqa: BLE001  the test raises it
            problems.append(error)
            place.done[rank] = 1 << 40

    with PlanExecutor(decisions, place, steps=order.steps) as ahead:
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ahead.check()
    assert not problems
    assert place.downloaded == planned


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
