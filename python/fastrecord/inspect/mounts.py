"""Detects the file system of a path and its known hazards.

Parsers take text, so tests need no mounts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fastrecord.inspect.findings import Finding, Level


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of /proc/self/mountinfo.

    Attributes:
        point: The mount point.
        kind: Type of the file system, including types such as `fuse.sshfs`.
        source: What is mounted: a device, or `server:/export`.
        options: Options of the mount and of the file system.
        device: (major, minor); equals the files' `st_dev`, except on some network file systems.
    """

    point: str
    kind: str
    source: str
    options: frozenset[str]
    device: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the mount as JSON-able values."""
        return asdict(self) | {"options": sorted(self.options), "device": f"{self.device[0]}:{self.device[1]}"}


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts in /proc/self/mountinfo, in order; malformed lines are left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        major, _, minor = before[2].partition(":")
        if not (major.isdigit() and minor.isdigit()):
            continue
        options = frozenset(f"{before[5]},{after[2]}".split(","))
        mounts.append(Mount(_plain(before[4]), after[0], _plain(after[1]), options, (int(major), int(minor))))
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


# Known guarantees of file systems.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "reiserfs", "ubifs", "apfs"})
_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs",
    "ocfs2", "gfs2", "orangefs", "panfs", "wekafs", "daos",
})  # fmt: skip


def is_network(kind: str) -> bool:
    """Return whether files of a file system are on another machine, or may be."""
    return kind in _NETWORK or kind == "fuse" or kind.startswith("fuse.")


def judge_mount(file: str, mount: Mount) -> list[Finding]:
    """Return the findings about a file that follow from its file system."""
    kind, options = mount.kind, mount.options
    copy = f"cp {shlex.quote(file)} LOCAL_DISK/"
    where = f"on {kind} ({mount.source})"

    def say(level: Level, code: str, message: str, command: str | None = None) -> Finding:
        return Finding(level, code, message, command, file)

    pread = 'open it with access="pread", which turns a failing network into an OSError, not a SIGBUS'
    found = []
    if kind in ("nfs", "nfs4"):
        found.append(say("note", "nfs", f"{where}: batches in random order wait for the network; {pread}", copy))
        # `local_lock=none` is the default of version 3, and version 4 has no other value.
        if options & {"nolock", "local_lock=all", "local_lock=flock"}:
            message = f"{where}: locks do not reach other machines: two writers there would destroy the file"
            found.append(
                say("warning", "nfs-locks", f"{message}; write from one machine only, or mount it without nolock")
            )
        if "soft" in options or "softerr" in options:
            found.append(
                say(
                    "warning",
                    "nfs-soft",
                    f"{where}, mounted soft: a slow server ends mapped reads with SIGBUS; {pread}",
                )
            )
    elif kind == "overlay":
        message = "in a container's layer: the first append copies the whole file, and readers keep the old copy"
        found.append(say("warning", "overlay", f"{message}; keep data on a volume", "docker run -v /data:/data ..."))
    elif kind == "9p":
        message = (
            f"{where}: each read goes through another system, slowly, and without cache=mmap mappings may be refused"
        )
        found.append(say("warning", "9p", f"{message}; {pread}", copy))
    elif kind in ("cifs", "smb3", "smbfs"):
        message = f"{where}: locks and mappings are as good as the server's; write from one machine only; {pread}"
        found.append(say("warning", "smb", message, copy))
    elif kind == "lustre":
        if "flock" not in options and "localflock" not in options:
            found.append(
                say("warning", "lustre-locks", f"{where}, mounted without flock: writers are refused; mount it with it")
            )
        elif "localflock" in options:
            found.append(
                say("warning", "lustre-locks", f"{where}, mounted with localflock: write from one machine only")
            )
        found.append(
            say(
                "note",
                "lustre",
                f"{where}: spread a large file over several servers before it is written",
                "lfs setstripe -c 8 OUT",
            )
        )
    elif kind.startswith("fuse") or kind == "virtiofs":
        message = (
            f"{where}: reads pass through another process; appends, locks and mappings are as good as that one; {pread}"
        )
        found.append(say("note" if kind == "virtiofs" else "warning", "fuse", message, copy))
    elif is_network(kind):
        found.append(say("note", "network", f"{where}: batches in random order wait for the network; {pread}", copy))
    elif kind in ("tmpfs", "ramfs"):
        found.append(say("note", "tmpfs", f"{where}: all of it takes memory, and a restart deletes it"))
    elif kind == "zfs":
        message = f'{where}: mapped files are cached twice; access="pread" caches them once'
        found.append(say("note", "zfs", message))
    elif kind in ("vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk"):
        limit = "files end at 4 GiB, and " if kind in ("vfat", "msdos") else ""
        found.append(
            say("warning", "foreign", f"{where}: {limit}permissions are not kept, crashes may lose files", copy)
        )
    elif kind in ("squashfs", "erofs", "iso9660", "cramfs"):
        found.append(
            say("note", "image", f"{where}: what is read is decompressed first, in blocks larger than records", copy)
        )
    elif kind in _LOCAL:
        found.append(say("ok", "filesystem", f"{where}: locks, mappings and syncs hold what is promised"))
    else:
        message = f"{where}: not tested: check that appends, locks (`flock`) and mappings work"
        found.append(say("note", "filesystem", message))
    if "ro" in options:
        found.append(say("note", "read-only", f"{mount.point} is mounted read-only: nothing can be appended"))
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
class Disk:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-able values."""
        return asdict(self)


def disk_of(device: int, sys_folder: str = "/sys") -> Disk | None:
    """Return the disk of a file with this `st_dev`; None if there is none or it is not reported."""
    folder = os.path.realpath(os.path.join(sys_folder, "dev/block", f"{os.major(device)}:{os.minor(device)}"))
    # A partition does not have its own queue; its disk, one level up, has one.
    for place in (folder, os.path.dirname(folder)):
        try:
            read = {
                name: _setting(place, name) for name in ("rotational", "scheduler", "read_ahead_kb", "max_sectors_kb")
            }
        except OSError:
            continue
        chosen = re.search(r"\[(\S+)\]", read["scheduler"])
        return Disk(
            name=os.path.basename(place),
            rotational=read["rotational"] == "1",
            scheduler=chosen[1] if chosen else read["scheduler"],
            read_ahead_kib=int(read["read_ahead_kb"]),
            largest_request_kib=int(read["max_sectors_kb"]),
        )
    return None


def _setting(disk: str, name: str) -> str:
    with open(os.path.join(disk, "queue", name), encoding="ascii") as file:
        return file.read().strip()


def judge_disk(file: str, disk: Disk) -> list[Finding]:
    """Return the findings about a file that follow from its disk."""
    found = []
    if disk.rotational and not disk.name.startswith(_VIRTUAL):
        found.append(
            Finding(
                "note",
                "rotational",
                f"{disk.name} reports moving heads (cloud disks often do so wrongly): if that is true, "
                "random batches are slow unless the file fits in memory; a shuffled copy may be read in order",
                f"fastrecord shuffle {shlex.quote(file)} shuffled.frec",
                file,
            )
        )
    # Batches are requested in pieces of the larger of the two.
    step = max(disk.read_ahead_kib, disk.largest_request_kib)
    if step < 128:
        found.append(
            Finding(
                "note",
                "read-ahead",
                f"{disk.name} takes {step} KiB at a time: with more it takes fewer calls",
                f"echo 128 | sudo tee /sys/block/{disk.name}/queue/read_ahead_kb",
                file,
            )
        )
    if not found:
        message = f"{disk.name}: reads ahead {disk.read_ahead_kib:,} KiB, scheduler {disk.scheduler}"
        found.append(Finding("ok", "disk", message, file=file))
    return found
