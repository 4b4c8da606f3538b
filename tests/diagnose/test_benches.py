"""The contests of benches/: a contender that fails, hangs or ends its workers harms only itself."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benches.peers import Data, process
from benches.peers.child import cpu, memory
from benches.peers.process import Contender


@pytest.fixture
def data(tmp_path: Path) -> Data:
    (tmp_path / "images").mkdir()
    return Data(tmp_path, 0)


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    pids = tmp_path / "pids"
    for pid in pids.read_text().split() if pids.exists() else ():
        with suppress(ProcessLookupError):
            ends = os.pidfd_open(int(pid))
            assert select.select([ends], [], [], 60)[0], f"process {pid} is left"
            os.close(ends)


def contender(data: Data, monkeypatch: pytest.MonkeyPatch, script: str) -> Contender:
    """Start a contender with a shell script as its Python."""
    path = data.root / "python"
    path.write_text(f"#!/bin/sh\ncd {data.root}\necho $$ >>pids\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("FASTRECORD_BENCH_PYTHON", str(path))
    return Contender("folder", data, threads=1, batch=1)


HANGS = "sleep 1000 & echo $! >>pids; wait"


@pytest.mark.parametrize("started", [True, False])
def test_a_contender_that_hangs_is_killed_with_its_workers(
    started: bool, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LIMIT", 60 if started else 0.3)
    answer = 'echo stuck >&2; echo \'{"version": "1"}\';' if started else ""
    told = rf"(?s)status -9; .*{'stuck.*' if started else ''}no answer in 0\.3 s \(FASTRECORD_BENCH_LIMIT\)$"
    with contender(data, monkeypatch, f"{answer} {HANGS}") as hanging:
        if started:
            hanging.wait()
            assert hanging.version == "1"
            monkeypatch.setattr(process, "LIMIT", 0.3)
        with pytest.raises(RuntimeError, match=told):
            hanging.ask("epoch 1") if started else hanging.wait()
        with pytest.raises(RuntimeError, match="status -9"):
            hanging.ask("epoch 2")


def test_a_contender_that_ends_is_reported_with_its_status_and_log(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        contender(data, monkeypatch, "echo broken >&2; exit 3") as ending,
        pytest.raises(RuntimeError, match=r"folder: status 3; its log ends with:\nbroken"),
    ):
        ending.wait()


def test_answers_that_come_together_are_returned_one_by_one(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """printf '{"version": "1"}\\n{"records": 1}\\n{"rec'; read line; printf 'ords": 2}\\n'; read line"""
    with contender(data, monkeypatch, script) as hasty:
        hasty.wait()
        assert [hasty.ask("epoch 1"), hasty.ask("epoch 2")] == [{"records": 1}, {"records": 2}]


def test_memory_and_time_of_a_process_leave_out_children_that_have_ended() -> None:
    with subprocess.Popen(["/bin/true"]) as ended:
        # It is still listed until its parent waits for it, but its resources are gone.
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert memory() > 0
        assert cpu() > 0
