"""Kills training jobs and checks their leftovers."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import fastrecord as fr
from tests.torture.experiment import Experiment, Outcome, Rounds
from tests.torture.loaders.leaks import shared_memory
from tests.torture.processes import children, command_line, descendants, identity, still_there
from tests.torture.training.jobs import appender, said, signal_all, start_job, steps_of, write_data

_PATIENCE = 600
# Files that killed torch and Python processes leave; docs/reliability.md names them.
_OTHERS = ("torchelastic_", "pymp-", "torchinductor_")


@dataclass(frozen=True)
class Kind:
    """A way to run and kill a job.

    Attributes:
        name: The name of the way.
        options: Options of the trainer.
        ranks: Number of torchrun processes; 0 runs without torchrun.
        killed: "all": launcher and ranks, no workers. "launcher": only it. "rank", "worker": one.
    """

    name: str
    options: tuple[str, ...]
    ranks: int
    killed: str


_NATIVE, _TORCH = ("--threads", "1"), ("--loader", "torch", "--threads", "1")
KINDS = [
    Kind("torchrun with the native loader", _NATIVE, 2, "all"),
    Kind("one process with a DataLoader's workers", ("--loader", "torch", "--threads", "2"), 0, "all"),
    Kind("torchrun with DataLoaders' workers", _TORCH, 2, "all"),
    Kind("the launcher of native loaders", _NATIVE, 2, "launcher"),
    Kind("the launcher of DataLoaders", _TORCH, 2, "launcher"),
    Kind("one rank of two", _NATIVE, 2, "rank"),
    Kind("a worker of a DataLoader", _TORCH, 0, "worker"),
]


def parts(job: subprocess.Popen[bytes], kind: Kind) -> dict[str, list[int]]:
    """Return a job's processes by role."""
    if not kind.ranks:
        return {"launcher": [job.pid], "rank": [job.pid], "worker": children(job.pid)}
    ranks = children(job.pid)
    return {"launcher": [job.pid], "rank": ranks, "worker": [child for rank in ranks for child in children(rank)]}


class Run(Rounds):
    """One run of the experiment.

    Args:
        folder: The working folder. The jobs share `out`; each resumes from its predecessor.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        write_data(self.folder)

    def kill_one(self, kind: Kind) -> None:
        """Start a job, kill it at a random moment, and check the leftovers."""
        stale, before = self.hidden(), steps_of(self.folder)
        with appender(self.folder):
            options = ("--epochs", "1000000", "--checkpoint-every", "1", "--print-freq", "1", "--resume", "auto")
            job = start_job(self.folder, *options, *kind.options, ranks=kind.ranks, temporary=self.temporary)
            try:
                # Sometimes during startup, mostly during training and checkpoints.
                early = self.draw.random() < 0.15 and kind.killed == "all"
                end = time.monotonic() + (self.draw.uniform(0, 8) if early else _PATIENCE)
                while steps_of(self.folder) <= before and job.poll() is None and time.monotonic() < end:
                    time.sleep(0.02)
                if not early:
                    self.has_begun(kind, before, stale)
                    time.sleep(self.draw.uniform(0, 2))
                there = [identity(job.pid), *descendants(job.pid)] if job.poll() is None else []
                found = parts(job, kind)
                victims = found["launcher"] + found["rank"] if kind.killed == "all" else found[kind.killed][:1]
                signal_all(victims, signal.SIGKILL)
                if job.pid in victims:
                    job.wait()
                left = still_there([process for process in there if process[0] != job.pid], _PATIENCE)
            finally:
                signal_all([job.pid, *(pid for pid, _ in descendants(job.pid))], signal.SIGKILL)
                job.wait()
        for process in left:
            self.fail(f"{kind.name}: left: {command_line(process)}")
        signal_all([pid for pid, _ in left], signal.SIGKILL)
        self.look_at_files(kind, [pid for pid, _ in there])
        self.counts[kind.name] += 1
        self.counts["processes"] += len(there)

    def has_begun(self, kind: Kind, before: int, stale: dict[str, int]) -> None:
        """Check that a job resumes from its checkpoint and removed its predecessor's files."""
        if steps_of(self.folder) <= before:
            self.failures.append(f"{kind.name}: no step in {_PATIENCE} s, or the end: {said(self.folder)}")
        if kept := [name for name, inode in self.hidden().items() if stale.get(name) == inode]:
            self.failures.append(f"{kind.name}: the next run leaves {kept}")

    def hidden(self) -> dict[str, int]:
        """Return the temporary files in the jobs' folder, and their inodes."""
        found = [path for path in (self.folder / "out").rglob("*") if path.suffix == ".tmp"]
        with suppress(FileNotFoundError):
            return {path.name: path.stat().st_ino for path in found}
        return self.hidden()

    def look_at_files(self, kind: Kind, pids: list[int]) -> None:
        """Check locks, shared memory and temporary files of a killed job and a killed writer."""
        try:
            fr.Writer(self.folder / "train.frec", mode="a").abort()
        except fr.errors.LockedError as error:
            self.failures.append(f"{kind.name}: a stale lock: {error}")
        self.failures += [f"{kind.name}: left in shared memory: {name}" for name in shared_memory(pids)]
        for path in self.temporary.iterdir():
            if path.name.startswith(_OTHERS):
                self.counts[f"{path.name.partition('_')[0].partition('-')[0]}* left by torch"] += 1
            else:
                self.failures.append(f"{kind.name}: left: {path.name} in the temporary folder")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.counts["temporary files, tidied up by the next job"] += len(self.hidden())


def run(count: int) -> Outcome:
    """See the module docstring."""
    with tempfile.TemporaryDirectory(prefix="leftovers-") as folder:
        run = Run(Path(folder))
        for number in run.until(count, "jobs"):
            run.kill_one(KINDS[number % len(KINDS)])
        return run.outcome()


EXPERIMENT = Experiment(
    *("leftovers", 7, "training jobs killed", 1, 50, run),
    where="tests/torture/training/leftovers.py, tests/torture/training/jobs.py",
    apart=True,
)
