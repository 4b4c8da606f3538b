"""A real full file system: errors are reported, no partial results, retries succeed with room."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.disks.small_disk import SCENARIOS
from tests.torture.experiment import ROOT

# A private mount namespace ends with its process, also after a failed test.
_NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
_MOUNTS = {
    "tmpfs": 'mount -t tmpfs -o size=6m tmpfs "$1"',
    "ext4": 'truncate -s 8M "$2/image" && mkfs.ext4 -q -m 0 -O ^has_journal "$2/image" '
    '&& mount -o loop "$2/image" "$1" && rmdir "$1/lost+found"',
}


def on_small_disk(kind: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    disk = folder / "disk"
    disk.mkdir(parents=True)
    script = f'{_MOUNTS[kind]} && shift 2 && exec "$@"'
    arguments = [*_NAMESPACE, "sh", "-c", script, "sh", str(disk), str(folder), *command]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120)


@cache
def cannot_mount(kind: str, folder: Path) -> str:
    """Return why this process cannot mount such a file system, or nothing if it can."""
    try:
        return on_small_disk(kind, folder, "true").stderr
    except FileNotFoundError as err:
        return str(err)


# ext4 reports a full disk late, when it gives out blocks; tmpfs at once, which few ways of writing notice.
_ON_TMPFS = ("pack", "writer", "merge")
_CASES = [*((scenario, "ext4") for scenario in SCENARIOS), *((scenario, "tmpfs") for scenario in _ON_TMPFS)]


@pytest.mark.parametrize(("scenario", "kind"), _CASES)
def test_a_full_disk_is_told_leaves_what_was_committed_and_with_room_it_goes_on(
    scenario: str, kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if reason := cannot_mount(kind, tmp_path_factory.getbasetemp() / f"try {kind}"):
        pytest.skip(f"{kind} cannot be mounted here: {reason.strip()}")
    module = "tests.support.disks.small_disk"
    command = [sys.executable, "-W", "error", "-m", module, scenario, str(tmp_path / "disk"), str(tmp_path)]
    done = on_small_disk(kind, tmp_path, *command)
    assert (done.returncode, done.stderr) == (0, "")
