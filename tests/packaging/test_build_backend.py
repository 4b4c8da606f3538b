"""scripts/build_backend.py: reports missing tools of `pip install .` before compiling."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.packaging.machine import ROOT, executable, machine, run

__all__ = ["machine"]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="nasm is asked for on x86-64 alone")


def hook(machine: Path, name: str = "get_requires_for_build_wheel", **variables: str) -> tuple[int, str, str]:
    """Call a hook as pip does: in a child process, by the module that pyproject.toml names."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    arguments = "" if name.startswith("get_requires") else repr(str(machine))
    program = (
        f"import sys; sys.path[:0] = {build['backend-path']}; import {build['build-backend']} as backend; "
        f"print(backend.{name}({arguments}))"
    )
    return run(machine, sys.executable, "-c", program, **variables)


def test_where_nothing_is_missing_maturin_is_asked(machine: Path) -> None:
    assert hook(machine) == (0, "[]\n", "")


# The other hooks are these, by another name.
HOOKS = ["get_requires_for_build_wheel", "prepare_metadata_for_build_wheel", "build_wheel", "build_editable"]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_that_leads_to_a_build_says_what_is_missing(name: str, machine: Path) -> None:
    (machine / "nasm").unlink()
    status, out, text = hook(machine, name)
    assert (status, out) == (1, "")
    assert text == (
        "fastrecord cannot be built: nasm is missing: install with your system's package manager, then try again\n"
    )


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get update && {sudo}apt-get install -y build-essential nasm"),
        ("dnf", "dnf install -y gcc make nasm"),
        ("pacman", "pacman -S --needed base-devel nasm"),
        ("apk", "apk add build-base nasm"),
    ],
)
def test_what_is_missing_is_installed_by_one_command(manager: str, command: str, machine: Path) -> None:
    for name in ("cc", "make", "nasm"):
        (machine / name).unlink()
    executable(machine / manager, "exit 0")
    sudo = "" if os.geteuid() == 0 else "sudo "
    missing = "fastrecord cannot be built: a C compiler, make and nasm are missing: install with "
    assert hook(machine)[2] == f"{missing}`{sudo}{command.format(sudo=sudo)}`, then try again\n"


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, "make and cmake are missing"),
        ({"CMAKE_GENERATOR": "Ninja"}, "cmake is missing"),
        ({"CC": "no"}, "a C comp"),
    ],
)
def test_what_the_environment_names_is_looked_for_instead(
    variables: dict[str, str], missing: str, machine: Path
) -> None:
    for name in ("make", "cmake", "nasm"):
        (machine / name).unlink()
    executable(machine / "yasm", "exit 0")
    status, _, text = hook(machine, **variables)
    assert status == 1
    assert text.startswith(f"fastrecord cannot be built: {missing}")


def test_a_compiler_without_the_c_librarys_headers_is_not_one(machine: Path) -> None:
    executable(machine / "cc", "echo 'fatal error: stdlib.h: No such file or directory' >&2; exit 1")
    assert "a C compiler is missing" in hook(machine)[2]


def test_an_old_rust_is_named_with_the_version_that_is_needed(machine: Path) -> None:
    executable(machine / "rustc", "echo 'rustc 1.75.0 (82e1608df 2023-12-21)'")
    needed = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    status, _, text = hook(machine)
    assert (status, text.count("\n")) == (1, 1)
    assert f"it needs Rust {needed} or newer, and rustc 1.75.0 is too old: " in text
    assert "`rustup update stable`" in text


def test_pip_shows_the_sentence_and_little_else(machine: Path, tmp_path: Path) -> None:
    (machine / "nasm").unlink()
    options = "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, ROOT
    status, *said = run(machine, sys.executable, "-m", "pip", "wheel", *options, cwd=tmp_path)
    assert status == 1
    assert "fastrecord cannot be built: nasm is missing: install with " in "".join(said)
    assert len("".join(said)) < 2_000


def test_the_source_distribution_brings_its_backend(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "maturin", "sdist", "--out", tmp_path], cwd=ROOT, check=True)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Cargo.toml", "scripts/build_backend.py"} <= names
