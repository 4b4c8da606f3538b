"""Kills workers and drivers of writes on a Ray cluster at random moments: old or new, and nothing left.

A writer's records are numbers that no other write has, so each record that is lost, doubled or of
another write is seen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import fastrecord as fr
from tests.support.machines.cluster import VARIABLES, local_cluster, short_folder
from tests.torture.apart import popen
from tests.torture.experiment import Experiment, Outcome, Rounds
from tests.torture.processes import descendants

_RECORDS, _BLOCKS = 2000, 6
# A driver connects, writes and says so. Its tasks take some 100 ms, so that kills meet them.
_DRIVER = f"""
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
import ray.data
from fastrecord.ray import write_frec
ray.data.DataContext.get_current().enable_progress_bars = False
first = int(sys.argv[4])
def shift(rows):
    time.sleep(0.1)
    return {{"id": rows["id"] + first, "text": [b"x" * 2000] * len(rows["id"])}}
data = ray.data.range({_RECORDS}, override_num_blocks={_BLOCKS}).map_batches(shift)
print("begin", flush=True)
write_frec(data, sys.argv[2], mode=sys.argv[3], records_per_shard={_RECORDS // _BLOCKS})
print("done", flush=True)
"""


class Writes(Rounds):
    """Writes that are killed, on a cluster of this machine that this process runs."""

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__()
        self.address = address
        self._data = folder / "set"
        self._now: list[int] = []
        # Seconds that a write takes from its beginning, as the last one did.
        self._seconds = 2.0

    def kill_one(self, number: int) -> None:
        """Begin a write, kill something, and look at the data set."""
        mode = "append" if len(self._now) < 4 * _RECORDS else "overwrite"
        first = (number + 1) * _RECORDS
        new = [*(self._now if mode == "append" else ()), *range(first, first + _RECORDS)]
        victim = ("driver", "worker")[number % 2]
        words = "-c", _DRIVER, self.address, str(self._data), mode, str(first)
        with popen(*words, stdout=subprocess.PIPE, text=True, env=VARIABLES) as driver:
            assert driver.stdout is not None
            driver.stdout.readline()
            started = time.monotonic()
            time.sleep(self.draw.uniform(0, 1.1 * self._seconds))
            if victim == "driver":
                driver.kill()
            else:
                self._kill_worker()
            done = driver.stdout.read().startswith("done")
        if done:
            self._seconds = time.monotonic() - started
        self._look(number, victim, mode, new, done=done)

    def _kill_worker(self) -> None:
        workers = []
        for process, _ in descendants(os.getpid()):
            try:
                words = Path(f"/proc/{process}/cmdline").read_text()
            except OSError:
                continue
            if words.startswith("ray::") and "Agent" not in words:  # a machine ends with its agents
                workers.append((process, "IDLE" in words))
        busy = [process for process, idle in workers if not idle]
        if workers:
            os.kill(self.draw.choice(busy or [process for process, _ in workers]), signal.SIGKILL)
            self.counts["busy worker" if busy else "idle worker"] += 1

    def _look(self, number: int, victim: str, mode: str, new: list[int], *, done: bool) -> None:
        what = f"kill {number}, of a {victim}, {mode}"
        found = []
        if (self._data / "dataset.json").exists():
            try:
                found = fr.FastRecordDataset(self._data).column("id").tolist()
            except FileNotFoundError:
                found = []
        found.sort()
        if found not in (sorted(self._now), sorted(new)):
            self.fail(f"{what}: {len(found)} records, neither {len(self._now)} nor {len(new)}")
        if done and found != sorted(new):
            self.fail(f"{what}: the write had succeeded, and the data set is the old one")
        self.counts["new" if found == sorted(new) else "old"] += 1
        self._now = found
        if not self._data.exists():
            return
        cleaned = fr.files.clean_manifest(self._data)
        self.counts["leftovers removed"] += len(cleaned)
        if left := [each.message for each in cleaned if each.kind == "left"]:
            self.fail(f"{what}: {left}")
        named = {"dataset.json", *map(os.path.basename, fr.FastRecordDataset(self._data).paths)} if found else set()
        if strangers := set(os.listdir(self._data)) ^ named:
            self.fail(f"{what}: left behind or missing: {sorted(strangers)[:5]}")


def run(count: int) -> Outcome:
    """Do everything in this process and its children."""
    with local_cluster() as address, short_folder() as folder:
        writes = Writes(address, folder)
        for number in writes.until(count, "kills"):
            writes.kill_one(number)
        return writes.outcome()


EXPERIMENT = Experiment(
    *("ray-kills", 1, "SIGKILLs of Ray's workers and drivers", 2, 200, run),
    apart=True,
    in_tests=False,  # tests/ray/test_ray_write.py kills some on the cluster of its folder
)
