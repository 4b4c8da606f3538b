"""A PATH of one folder, for tests of what is missing on a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def executable(path: Path, lines: str) -> None:
    """Write a shell script."""
    path.write_text(f"#!{shutil.which('bash')}\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH of one folder with all needed tools, for a user other than root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "paste", "sort", "timeout", "uname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name in ("cargo", "cc", "cmake", "make", "nasm"):
        executable(folder / name, "exit 0")
    executable(folder / "id", "echo 1000")
    executable(folder / "python3", f'exec "{sys.executable}" "$@"')
    executable(folder / "rustc", "echo 'rustc 1.95.0 (59807616e 2026-04-14)'")
    return folder


def run(machine: Path, *words: str | Path, cwd: str | Path = ROOT, **variables: str) -> tuple[int, str, str]:
    """Run a program with this PATH; return its status and what it has said."""
    kept = {key: value for key, value in os.environ.items() if key not in ("CC", "CMAKE", "RUSTC")}
    environment = {**kept, "PATH": str(machine), **variables}
    null = subprocess.DEVNULL
    done = subprocess.run(words, cwd=cwd, env=environment, stdin=null, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
