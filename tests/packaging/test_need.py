"""scripts/need: installs missing tools where it can, and otherwise prints the command."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tests.packaging.machine import ROOT, executable, machine, run

__all__ = ["machine"]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="nasm is asked for on x86-64 alone")


@pytest.fixture(autouse=True)
def no_nasm(machine: Path) -> None:
    (machine / "nasm").unlink()


def need(machine: Path) -> tuple[int, str]:
    status, out, text = run(machine, ROOT / "scripts/need", "python3")
    assert out == ""
    return status, text


def test_nothing_is_said_where_nothing_is_missing(machine: Path) -> None:
    executable(machine / "nasm", "exit 0")
    assert need(machine) == (0, "")


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get update && sudo apt-get install -y build-essential nasm"),
        ("dnf", "sudo dnf install -y gcc nasm"),
        ("pacman", "sudo pacman -S --needed base-devel nasm"),
        ("apk", "sudo apk add build-base nasm"),
    ],
)
def test_what_is_missing_is_one_command_and_nothing_is_installed(machine: Path, manager: str, command: str) -> None:
    (machine / "cc").unlink()
    executable(machine / manager, f"touch {machine}/called")
    status, text = need(machine)
    assert status == 1
    assert text == f"Some system packages are missing: cc nasm. Install them:\n    {command}\n"
    assert not (machine / "called").exists()


def test_root_installs_by_apt_get_and_asks_for_its_lists_if_a_package_is_not_found(machine: Path) -> None:
    executable(machine / "id", "echo 0")
    executable(
        machine / "apt-get",
        f"""echo "$*" >>{machine}/log
        case "$*" in
          *update) : >{machine}/lists ;;
          *--download-only*) [ -e {machine}/lists ] ;;
          *) printf '#!{machine}/bash\\n' >{machine}/nasm; {shutil.which("chmod")} +x {machine}/nasm ;;
        esac""",
    )
    status, text = need(machine)
    assert (status, text) == (0, "apt-get installs nasm, as this is root\n")
    ends = [line.split()[-2:] for line in (machine / "log").read_text().splitlines()]
    download = ["--download-only", "nasm"]
    assert [download, download] == [ends[0], ends[2]]
    assert (ends[1][-1], ends[3], len(ends)) == ("update", ["--no-install-recommends", "nasm"], 4)


def test_a_failed_apt_get_leaves_its_reason_and_the_command(machine: Path) -> None:
    executable(machine / "id", "echo 0")
    executable(machine / "apt-get", "echo 'E: no network' >&2; exit 100")
    status, text = need(machine)
    assert status == 1
    assert "E: no network\napt-get failed; what it said is above.\n" in text
    assert text.endswith("    apt-get update && apt-get install -y nasm\n")


def test_an_old_python_is_named_with_the_way_to_choose_another(machine: Path) -> None:
    executable(machine / "nasm", "exit 0")
    executable(machine / "python3", "case $2 in *version_info*) exit 1 ;; *python_version*) echo 3.9.2 ;; esac")
    status, text = need(machine)
    assert status == 1
    assert "3.11 or newer is needed:\n    make PYTHON=/path/to/python3.11" in text
    assert "is Python 3.9.2;" in text
