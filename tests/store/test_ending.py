"""A process ends at once and cleanly: in the middle of an epoch, and by Ctrl-C while it waits for a store."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fastrecord as fr

SCRIPT = """
import sys
import fastrecord as fr
place, options, error = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
dataset = fr.FastRecordDataset(place, fields=("data",), store=fr.Store(**options))
shuffle = fr.Blocks(window=2) if "cache_size" in options else True
sampler = fr.FastRecordBatchSampler(dataset, 8, shuffle=shuffle, rank=0, world_size=1)
batches = iter(fr.FastRecordLoader(dataset, batch_sampler=sampler))
next(batches)
next(batches)
if error is not None:
    raise error
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 6 MB each."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with fr.Writer(folder / f"{shard}.frec", fr.Schema({"data": fr.bytes_()})) as writer:
            for number in range(60):
                writer.append({"data": bytes([number]) * 100_000})
    fr.files.write_manifest(folder)
    return folder


@pytest.mark.parametrize(
    ("cache", "error"),
    [
        (None, "None"),
        ("none", "ValueError('of the script')"),
        ("whole", "SystemExit(3)"),
        ("limited", "None"),
        ("limited", "ValueError('of the script')"),
    ],
)
def test_threads_that_bring_values_end_before_the_interpreter(
    tmp_path: Path, shards: Path, cache: str | None, error: str
) -> None:
    options: dict[str, str] = {}
    if cache in ("whole", "limited"):
        options["cache"] = str(tmp_path / "cache")
    if cache == "limited":
        options["cache_size"] = "15MB"
    place = shards.as_uri() if cache else str(shards)
    command = [sys.executable, "-W", "error", "-c", SCRIPT, place, repr(options), error]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    code, last = {"N": (0, ""), "V": (1, "ValueError: of the script"), "S": (3, "")}[error[0]]
    assert (done.returncode, done.stderr.strip().rpartition("\n")[2]) == (code, last)


@pytest.mark.parametrize(
    ("cache", "reads"),
    [
        ({}, True),
        ({"cache": "whole"}, True),
        ({"cache": "limited", "cache_size": "15MB"}, False),
        ({"cache": "limited", "cache_size": "15MB"}, True),
    ],
)
def test_a_forked_child_ends_without_a_word(tmp_path: Path, shards: Path, cache: dict[str, str], reads: bool) -> None:
    options = {name: str(tmp_path / value) if name == "cache" else value for name, value in cache.items()}
    script = (
        SCRIPT
        + f"""
import os
child = os.fork()
if not child and {reads}:
    assert len([*fr.FastRecordLoader(dataset, 8)]) == 30
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert len([*batches]) == 28
"""
    )
    command = [sys.executable, "-W", "error", "-c", script, shards.as_uri(), repr(options), "None"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["info", "verify"])
def test_ctrl_c_ends_a_command_that_waits_for_a_store(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/train/"
        with subprocess.Popen([sys.executable, "-m", "fastrecord", command, url], stderr=subprocess.PIPE) as process:
            try:
                silent.settimeout(60)
                connection, _ = silent.accept()
                with connection:
                    connection.settimeout(60)
                    assert connection.recv(1)
                    process.send_signal(signal.SIGINT)
                    # Far less than the time limit of a request.
                    assert process.wait(timeout=30) == 130
            finally:
                process.kill()


@pytest.mark.parametrize("command", ["info", "verify", "copy"])
def test_ctrl_c_while_a_store_answers_429_ends_as_it_always_does(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"http://127.0.0.1:{busy.getsockname()[1]}/train/"
        line = [sys.executable, "-m", "fastrecord", command, url, *([str(tmp_path)] if command == "copy" else [])]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
            try:
                busy.settimeout(60)
                for _ in range(3):
                    connection, _ = busy.accept()
                    with connection:
                        assert connection.recv(1 << 16)
                        connection.sendall(b"HTTP/1.1 429 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)  # for the second one to meet the end of the interpreter, as a rule
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=30)[1] == "interrupted\n"
                assert process.returncode == 130
            finally:
                process.kill()
