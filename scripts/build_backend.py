"""The build backend for pip: maturin, after a check for the tools that the build needs.

Without this check, a missing assembler only shows after the download of the dependencies, below
pages of CMake output.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None

_COMPILER, _MAKE, _NASM, _CMAKE = "a C compiler", "make", "nasm", "cmake"
# By package manager: the command, and the packages whose names differ from the tool names.
_MANAGERS = {
    "apt-get": ("apt-get update && {0}apt-get install -y", {_COMPILER: "build-essential", _MAKE: "build-essential"}),
    "dnf": ("dnf install -y", {_COMPILER: "gcc"}),
    "zypper": ("zypper install -y", {_COMPILER: "gcc"}),
    "pacman": ("pacman -S --needed", {_COMPILER: "base-devel", _MAKE: "base-devel"}),
    "apk": ("apk add", {_COMPILER: "build-base", _MAKE: "build-base"}),
}
# Otherwise maturin warns that pip does not use it, because pyproject.toml names this module
# instead.
os.environ.setdefault("MATURIN_NO_MISSING_BUILD_BACKEND_WARNING", "1")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return the further requirements that pip must install; pip calls this first."""
    _check()
    return list(maturin.get_requires_for_build_wheel(config_settings))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the metadata; with --no-build-isolation pip calls this first."""
    _check()
    return str(maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel."""
    _check()
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel that refers to the checkout (editable install)."""
    _check()
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def _check() -> None:
    """End the process with one sentence that names the missing tools."""
    problems = [*_tools(), *_rust()]
    if problems:
        sys.exit(f"fastrecord cannot be built: {'; and '.join(problems)}")


def _tools() -> list[str]:
    missing = []
    if not _compiles():
        missing.append(_COMPILER)
    if "CMAKE_GENERATOR" not in os.environ and not (shutil.which("make") or shutil.which("gmake")):
        missing.append(_MAKE)
    if not shutil.which(os.environ.get("CMAKE", "cmake")):
        missing.append(_CMAKE)
    # For libjpeg-turbo's SIMD code; on other architectures the compiler assembles it.
    if platform.machine().lower() in ("x86_64", "amd64") and not (
        "ASM_NASM" in os.environ or shutil.which("nasm") or shutil.which("yasm")
    ):
        missing.append(_NASM)
    if not missing:
        return []
    names = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
    return [f"{names} {'is' if len(missing) == 1 else 'are'} missing: {_way_to_install(missing)}"]


def _compiles() -> bool:
    """Return whether a C compiler and the C library's headers exist; some systems split them."""
    command = [*shlex.split(os.environ.get("CC", "cc")), "-E", "-x", "c", "-"]
    try:
        done = subprocess.run(command, input=b"#include <stdlib.h>\n", capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _way_to_install(missing: list[str]) -> str:
    for manager, (command, packages) in _MANAGERS.items():
        if shutil.which(manager):
            names = sorted({packages.get(item, item) for item in missing})
            sudo = "" if os.geteuid() == 0 else "sudo "
            return f"install with `{sudo}{command.format(sudo)} {' '.join(names)}`, then try again"
    return "install with your system's package manager, then try again"


def _rust() -> list[str]:
    with (Path(__file__).parents[1] / "Cargo.toml").open("rb") as file:
        wanted = tomllib.load(file)["workspace"]["package"]["rust-version"]
    try:
        done = subprocess.run(
            [os.environ.get("RUSTC", "rustc"), "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return []  # without Rust, maturin installs a toolchain for the build
    found = re.match(r"rustc (\d+)\.(\d+)\S*", done.stdout)
    if found is None or (int(found[1]), int(found[2])) >= tuple(map(int, wanted.split(".")[:2])):
        return []
    return [
        f"it needs Rust {wanted} or newer, and {found[0]} is too old: install a newer one with `rustup update stable`"
    ]
