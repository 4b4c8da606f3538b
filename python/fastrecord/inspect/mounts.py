"""Detects the file system of a path and its known hazards.

Parsers take text, so tests need no mounts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrecord.inspect.findings import Answer, Finding, Level


@dataclass(frozen=True, slots=True)
class Mount(Answer):
    """A line of /proc/self/mountinfo.

    Attributes:
        point: The mount point.
        kind: Type of the file system, including types such as `fuse.sshfs`.
        source: What is mounted: a device, or `server:/export`.
        options: Options of the mount and of the file system, sorted.
        device: "major:minor"; equals the files' `st_dev`, except on some network file systems.
    """

    point: str
    kind: str
    source: str
    options: tuple[str, ...]
    device: str


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in /proc/self/mountinfo, in order; malformed lines are left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if separator and len(before) >= 6 and len(after) >= 3 and re.fullmatch(r"\d+:\d+", before[2]):
            options = tuple(sorted({*before[5].split(","), *after[2].split(",")}))
            mounts.append(Mount(_plain(before[4]), after[0], _plain(after[1]), options, before[2]))
    return mounts


def _plain(text: str) -> str:
    """Decode text in which the kernel has written blanks and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount of a path without links: the deepest, and the last of several there."""
    best = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


_COPY = "cp FILE LOCAL_DISK/"
_PREAD = 'open it with access="pread", which turns a failing network into an OSError, not a SIGBUS'
_WAITS = f"WHERE: batches in random order wait for the network; {_PREAD}"
_UNKNOWN = "WHERE: not tested: check that appends, locks (`flock`) and mappings work"
# Types of file systems, then level, code, message and command of the finding about a file there.
_KNOWN: tuple[tuple[str, Level, str, str, str | None], ...] = (
    ("nfs nfs4", "note", "nfs", _WAITS, _COPY),
    (
        "overlay", "warning", "overlay",
        "in a container's layer: the first append copies the whole file, and readers keep the old copy; keep data on a "
        "volume",
        "docker run -v /data:/data ...",
    ),
    (
        "9p", "warning", "9p",
        "WHERE: each read goes through another system, slowly, and without cache=mmap mappings may be refused; "
        f"{_PREAD}",
        _COPY,
    ),
    (
        "cifs smb3 smbfs", "warning", "smb",
        f"WHERE: locks and mappings are as good as the server's; write from one machine only; {_PREAD}",
        _COPY,
    ),
    (
        "lustre", "note", "lustre", "WHERE: spread a large file over several servers before it is written",
        "lfs setstripe -c 8 OUT",
    ),
    (
        "virtiofs", "note", "fuse",
        f"WHERE: reads pass through another process; appends, locks and mappings are as good as that one; {_PREAD}",
        _COPY,
    ),
    (
        "ceph gpfs beegfs glusterfs afs ocfs2 gfs2 orangefs panfs wekafs daos", "note", "network", _WAITS, _COPY,
    ),
    ("tmpfs ramfs", "note", "tmpfs", "WHERE: all of it takes memory, and a restart deletes it", None),
    ("zfs", "note", "zfs", 'WHERE: mapped files are cached twice; access="pread" caches them once', None),
    (
        "vfat msdos", "warning", "foreign",
        "WHERE: files end at 4 GiB, and permissions are not kept, crashes may lose files", _COPY,
    ),
    ("exfat ntfs ntfs3", "warning", "foreign", "WHERE: permissions are not kept, crashes may lose files", _COPY),
    (
        "squashfs erofs iso9660 cramfs", "note", "image",
        "WHERE: what is read is decompressed first, in blocks larger than records", _COPY,
    ),
    (
        "ext2 ext3 ext4 xfs btrfs f2fs bcachefs jfs reiserfs ubifs apfs", "ok", "filesystem",
        "WHERE: locks, mappings and syncs hold what is promised", None,
    ),
)  # fmt: skip


def judge_mount(file: str, mount: Mount) -> list[Finding]:
    """Return the findings about a file that follow from its file system."""
    kind, options = mount.kind, {*mount.options}
    where = f"on {kind} ({mount.source})"
    known = {name: rest for names, *rest in _KNOWN for name in names.split()}
    rule: Any = known.get(kind, ("note", "filesystem", _UNKNOWN, None))
    if kind.startswith("fuse"):
        rule = ("warning", *known["virtiofs"][1:])
    level, code, message, command = rule
    command = None if command is None else command.replace("FILE", shlex.quote(file))
    found = [Finding(level, code, message.replace("WHERE", where), command, file)]
    # `local_lock=none` is the default of version 3, and version 4 has no other value.
    if code == "nfs" and options & {"nolock", "local_lock=all", "local_lock=flock"}:
        message = f"{where}: locks do not reach other machines: two writers there would destroy the file; "
        message += "write from one machine only, or mount it without nolock"
        found.append(Finding("warning", "nfs-locks", message, file=file))
    if code == "nfs" and options & {"soft", "softerr"}:
        message = f"{where}, mounted soft: a slow server ends mapped reads with SIGBUS; {_PREAD}"
        found.append(Finding("warning", "nfs-soft", message, file=file))
    if code == "lustre" and ("localflock" in options or "flock" not in options):
        message = f"{where}, mounted without flock: writers are refused; mount it with it"
        if "localflock" in options:
            message = f"{where}, mounted with localflock: write from one machine only"
        found.append(Finding("warning", "lustre-locks", message, file=file))
    if "ro" in options:
        message = f"{mount.point} is mounted read-only: nothing can be appended"
        found.append(Finding("note", "read-only", message, file=file))
    return found


def parse_locks(text: str, inode: int) -> int | None:
    """Return the process that holds the `flock` of a file according to /proc/locks, or None."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}") and words[4].isdigit():
            return int(words[4])
    return None


# Disks of virtual machines report that they rotate, whatever is below them.
_VIRTUAL = ("vd", "xvd")


@dataclass(frozen=True, slots=True)
class Disk(Answer):
    """The settings of a block device's queue.

    Attributes:
        name: Name in /sys/block.
        rotational: Whether it reports moving heads. Virtual disks often report them without having
            any.
        scheduler: The active scheduler.
        read_ahead_kib: How much the kernel reads ahead of sequential reads.
        largest_request_kib: Maximum size of one request.
    """

    name: str
    rotational: bool
    scheduler: str
    read_ahead_kib: int
    largest_request_kib: int


def disk_of(device: int, sys_folder: str = "/sys") -> Disk | None:
    """Return the disk of a file with this `st_dev`; None if there is none or it is not reported."""
    folder = os.path.realpath(os.path.join(sys_folder, "dev/block", f"{os.major(device)}:{os.minor(device)}"))
    # A partition does not have its own queue; its disk, one level up, has one.
    for place in map(Path, (folder, os.path.dirname(folder))):
        try:
            rotational, scheduler, ahead, largest = (
                (place / "queue" / name).read_text(encoding="ascii").strip()
                for name in ("rotational", "scheduler", "read_ahead_kb", "max_sectors_kb")
            )
        except OSError:
            continue
        chosen = re.search(r"\[(\S+)\]", scheduler)
        return Disk(place.name, rotational == "1", chosen[1] if chosen else scheduler, int(ahead), int(largest))
    return None


def judge_disk(file: str, disk: Disk) -> list[Finding]:
    """Return the findings about a file that follow from its disk."""
    found = []
    if disk.rotational and not disk.name.startswith(_VIRTUAL):
        message = (
            f"{disk.name} reports moving heads (cloud disks often do so wrongly): if that is true, random batches are "
            "slow unless the file fits in memory; a shuffled copy may be read in order"
        )
        command = f"fastrecord shuffle {shlex.quote(file)} shuffled.frec"
        found.append(Finding("note", "rotational", message, command, file))
    # Batches are requested in pieces of the larger of the two.
    step = max(disk.read_ahead_kib, disk.largest_request_kib)
    if step < 128:
        message = f"{disk.name} takes {step} KiB at a time: with more it takes fewer calls"
        command = f"echo 128 | sudo tee /sys/block/{disk.name}/queue/read_ahead_kb"
        found.append(Finding("note", "read-ahead", message, command, file))
    if not found:
        message = f"{disk.name}: reads ahead {disk.read_ahead_kib:,} KiB, scheduler {disk.scheduler}"
        found.append(Finding("ok", "disk", message, file=file))
    return found
