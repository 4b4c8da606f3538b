"""The contests of benches/: a contender that fails, hangs or ends its workers harms only itself."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benches.experiments import __main__ as experiments
from benches.harness import Contender, Contest, process
from benches.harness.process import Process
from benches.harness.results import gather_facts
from benches.harness.usage import cpu_seconds, own_memory


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    pids = tmp_path / "pids"
    for pid in pids.read_text().split() if pids.exists() else ():
        with suppress(ProcessLookupError):
            ends = os.pidfd_open(int(pid))
            assert select.select([ends], [], [], 60)[0], f"process {pid} is left"
            os.close(ends)


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script be the contenders' Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncd {folder}\necho $$ >>pids\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("FASTRECORD_BENCH_PYTHON", str(path))


def start(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Process:
    """Start a contender with a shell script as its Python."""
    write(folder, monkeypatch, script)
    return Process("it", "module:name", {}, sorted(os.sched_getaffinity(0)), folder / "log")


def ask(contender: Process, number: int) -> object:
    contender.send("epoch", {"number": number})
    return contender.answer()


HANGS = "sleep 1000 & echo $! >>pids; wait"


@pytest.mark.parametrize("started", [True, False])
def test_a_contender_that_hangs_is_killed_with_its_workers(
    started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LIMIT", 60 if started else 0.3)
    answer = 'echo stuck >&2; echo \'{"version": "1"}\';' if started else ""
    told = rf"(?s)status -9; .*{'stuck.*' if started else ''}no answer in 0\.3 s \(FASTRECORD_BENCH_LIMIT\)$"
    hanging = start(tmp_path, monkeypatch, f"{answer} {HANGS}")
    try:
        if started:
            assert hanging.answer() == {"version": "1"}
            monkeypatch.setattr(process, "LIMIT", 0.3)
        with pytest.raises(RuntimeError, match=told):
            ask(hanging, 1) if started else hanging.answer()
        with pytest.raises(RuntimeError, match="status -9"):
            ask(hanging, 2)
    finally:
        hanging.close()


def test_an_error_ends_contenders_in_the_middle_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ENDS", 600)  # an end that is waited for would exceed the test's time
    write(tmp_path, monkeypatch, f'echo \'{{"version": "1"}}\'; {HANGS}')
    with pytest.raises(KeyboardInterrupt), Contest([counts("a", -1)], tmp_path):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo broken >&2; exit 3", r"it: status 3; its log ends with:\nbroken"),
        ("sleep 1000 >&- & echo $! >>pids; exit 3", "it: status 3"),  # its worker is killed
    ],
)
def test_a_contender_that_ends_is_reported_with_its_status_and_log(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = start(tmp_path, monkeypatch, script)
    with pytest.raises(RuntimeError, match=told):
        ending.answer()
    ending.close()


def test_an_interrupted_end_kills_the_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    hanging = start(tmp_path, monkeypatch, HANGS)
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        time.sleep(0.01)
    with monkeypatch.context() as patch:
        patch.setattr(select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hanging.close()
    hanging.close()


def test_two_runs_share_neither_data_nor_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for taken in ("data", "out"):
        (tmp_path / taken).mkdir()
        with (tmp_path / taken / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            folders = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
            monkeypatch.setattr("sys.argv", ["experiments", *folders, "gpu"])
            assert experiments.main() == 1
        assert f"{tmp_path / taken}: another run" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["experiments", "--data", str(tmp_path / "file" / "data"), "gpu"])
    assert experiments.main() == 1
    assert "--data and --out" in capsys.readouterr().err


def test_facts_need_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gather_facts(tmp_path, "command", full=False).commit == ""


def test_answers_that_come_together_are_returned_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """printf '{"version": "1"}\\n{"value": 1}\\n{"val'; read line; printf 'ue": 2}\\n'; read line"""
    hasty = start(tmp_path, monkeypatch, script)
    assert [hasty.answer(), ask(hasty, 1), ask(hasty, 2)] == [{"version": "1"}, {"value": 1}, {"value": 2}]
    hasty.close()


class Counts:
    """A contender that fails at a given number; without one it misses a library."""

    version = "counts 1"

    def __init__(self, *, fails_at: int | None, rank: int = 0, ranks: int = 1) -> None:
        if fails_at is None:
            raise ImportError("no module of that name")
        self.fails_at, self.rank, self.ranks = fails_at, rank, ranks

    def count(self, number: int) -> list[int]:
        os.write(1, b"output of a library")
        if number == self.fails_at:
            raise ValueError("too far")
        return [number, self.rank, self.ranks]

    def cpus(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))


def counts(name: str, fails_at: int | None, copies: int = 1) -> Contender:
    return Contender(name, f"{__name__}:Counts", {"fails_at": fails_at}, 1, copies)


def test_contenders_take_turns_and_one_that_fails_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTRECORD_BENCH_PYTHON", raising=False)
    order: list[str] = []
    contenders = [counts("a", -1), counts("b", 2), counts("c", None), counts("two", -1, copies=2)]
    with Contest(contenders, tmp_path) as contest:
        found = contest.rounds("count", rounds=2, before=order.append, arguments=lambda number: {"number": number})
        assert contest.names == ["a", "two"]
        assert contest.versions["a"] == "counts 1"
        assert {name: why.strip().splitlines()[-1] for name, why in contest.missing.items()} == {
            "b": "ValueError: too far",
            "c": "no module of that name",
        }
        assert {name: [answer.value for answer in answers] for name, answers in found.items()} == {
            "a": [[1, 0, 1], [2, 0, 1]],
            "two": [[[1, 0, 2], [1, 1, 2]], [[2, 0, 2], [2, 1, 2]]],
        }
        own = contest.each("cpus", memory=True)
    turns = [tuple(order[at : at + 3]) for at in range(0, 9, 3)]
    assert [sorted(turn) for turn in turns] == 3 * [["a", "b", "two"]]
    assert len(set(turns)) > 1
    assert len(own["a"].value) == 1
    assert own["a"].most_bytes >= own["a"].before_bytes > 0
    cpus = os.sched_getaffinity(0)
    assert len({cpu for copy in own["two"].value for cpu in copy}) == min(2, len(cpus))


def test_memory_and_time_of_a_process_leave_out_children_that_have_ended() -> None:
    with subprocess.Popen(["/bin/true"]) as ended:
        # It is still listed until its parent waits for it, but its resources are gone.
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert own_memory() > 0
        assert cpu_seconds() > 0
