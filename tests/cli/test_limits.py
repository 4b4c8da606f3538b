"""Commands where the system has no threads, or no locks: they do with less, or end in one line with a way out."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import write_images
from tests.support.commands import good

SHIM = Path(__file__).parents[1] / "support" / "disks" / "no_locks.c"
# No stack fits into this address space, so no thread starts: of Python by the limit, of the core by the variable.
STACK, SPACE = 8 << 30, 6 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has a.frec, b.frec, images/, larger/ and a.tar."""
    write_images(tmp_path / "a.frec", [0, 1, 1], ["ant", "bee"])
    shutil.copy(tmp_path / "a.frec", tmp_path / "b.frec")
    good("extract", tmp_path / "a.frec", tmp_path / "images")
    shutil.copytree(tmp_path / "images" / "a", tmp_path / "larger")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, path in enumerate(sorted(tmp_path.glob("images/*/*"))):
            tar.add(path, f"{number}{path.suffix}")
    return tmp_path


def run(folder: Path, command: str, *, without_threads: bool = False, **more: str) -> tuple[int, str]:
    def limit() -> None:
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))

    done = subprocess.run(
        [sys.executable, "-m", "fastrecord", *command.split()],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **more}, cwd=folder, capture_output=True,
        text=True, timeout=120, preexec_fn=limit if without_threads else None,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip()


def names(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_STACK)[1] != -1, reason="the stack is limited")
@pytest.mark.parametrize(
    "command",
    [
        *("browse a.frec -o a.html", "stats a.frec", "pack --format pairs images/a larger out.frec"),
        *("export --format webdataset a.frec out.tar", "verify --deep a.frec", "merge a.frec b.frec -o out.frec"),
        "import a.tar out.frec",
    ],
)
def test_a_command_without_threads_does_its_work_in_the_calling_one(folder: Path, command: str) -> None:
    assert run(folder, command, without_threads=True, RUST_MIN_STACK=str(STACK)) == (0, "")


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_STACK)[1] != -1, reason="the stack is limited")
@pytest.mark.parametrize(
    "command",
    ["pack images out.frec", "index a.frec", "bench a.frec --seconds 0.1"],
)
def test_a_command_that_needs_threads_names_the_limits(folder: Path, command: str) -> None:
    before = names(folder)
    status, told = run(folder, command, without_threads=True, RUST_MIN_STACK=str(STACK))
    assert status == 1
    assert "no thread can be started" in told
    assert "(`ulimit -u`, `pids.max`) or of memory (`ulimit -v`) [FR103]" in told
    assert names(folder) == before


WRITES = (
    *(
        "pack images out.frec",
        "pack images out.frec --overwrite",
        "pack images out --shards 2",
        "import a.tar out.frec",
    ),
    *("pack --format pairs images/a larger out.frec", "merge a.frec b.frec -o out.frec", "shuffle a.frec out.frec"),
    *("split a.frec out --shards 2", "select a.frec out.frec --where label==1", "compact a.frec", "index a.frec"),
    *("pack images a.frec --overwrite", "pack images a.frec --append", "shuffle b.frec a.frec --overwrite"),
)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_file_system_without_locks_is_named_and_nothing_is_left(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shim = tmp_path_factory.mktemp("shim") / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, SHIM, "-ldl"], check=True)
    before = {path: path.read_bytes() if path.is_file() else b"" for path in names(folder)}
    # ENOLCK and EOPNOTSUPP, in turns.
    for command, number in zip(WRITES, itertools.cycle(("37", "95")), strict=False):
        status, told = run(folder, command, LD_PRELOAD=str(shim), NO_LOCKS=number)
        assert status == 1, command
        assert "its file system has no locks: write on a local disk, and copy the file from there [FR608]" in told
        assert {path: path.read_bytes() if path.is_file() else b"" for path in names(folder)} == before, command
    assert run(folder, "verify a.frec", LD_PRELOAD=str(shim)) == (0, "")
