"""`Machine`: resources of a process: CPUs, memory, open files, shared memory.

Parsers take text, so tests need no special machine.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from fastrecord._core import FORMAT_VERSION, __version__, default_threads, instructions, libraries
from fastrecord.inspect.findings import Answer, Finding

_PACKAGES = ("numpy", "torch", "torchvision", "pillow", "click", "tqdm")
_GIB = 1 << 30
# A container's default is 64 MiB; a batch of 256 images of 224 x 224 pixels in float32 takes 154
# MB.
_ENOUGH_SHM = 1 << 30
_ENOUGH_FILES = 1024
# Version 1 of control groups represents "no limit" by a number near 2^63.
_NO_LIMIT = 1 << 60


def versions() -> dict[str, str | None]:
    """Return installed and built-in versions: name -> version, None if absent. No imports."""
    found: dict[str, str | None] = {"fastrecord": __version__, "format": str(FORMAT_VERSION)}
    found["python"] = platform.python_version()
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found | libraries()


@dataclass(frozen=True, slots=True)
class Group:
    """Limits of a process's control groups; None without a limit."""

    cpus: float | None = None
    memory: int | None = None


def parse_group(membership: str, mounts: str, read: Any) -> Group:
    """Return the tightest limits of a process's control groups and their ancestors.

    Args:
        membership: /proc/self/cgroup.
        mounts: /proc/self/mountinfo.
        read: Returns the text of a file, or None if it cannot be read.
    """
    from fastrecord.inspect.mounts import parse_mounts

    cpus: list[float] = []
    memory: list[int] = []
    points = [mount for mount in parse_mounts(mounts) if mount.kind in ("cgroup", "cgroup2")]
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if not number.isdigit():
            continue
        wanted = set(names.split(",")) - {""}
        for mount in points:
            if (mount.kind == "cgroup2") == bool(wanted) or not wanted <= {*mount.options, ""}:
                continue
            # In a container the path is the host's path, and the group itself is mounted: check the
            # mount point, too.
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                place = os.path.join(mount.point, *parts[:depth])
                # A hierarchy of version 1 has no file of these names, and others instead.
                old = [read(f"{place}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
                quota, period = [*(read(f"{place}/cpu.max") or " ".join(old)).split(), "", ""][:2]
                limit = (read(f"{place}/memory.max") or read(f"{place}/memory.limit_in_bytes") or "").strip()
                if quota.isdigit() and period.isdigit() and int(period) > 0:
                    cpus.append(int(quota) / int(period))
                if limit.isdigit() and int(limit) < _NO_LIMIT:
                    memory.append(int(limit))
    return Group(min(cpus, default=None), min(memory, default=None))


def parse_memory(text: str) -> dict[str, int]:
    """Return /proc/meminfo in bytes: name -> number."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def parse_choice(text: str) -> str | None:
    """Return the word in brackets of `always [madvise] never`."""
    return next((word.strip("[]") for word in text.split() if word.startswith("[")), None)


@dataclass(frozen=True, slots=True)
class Machine(Answer):
    """Resources of a process; None if the system does not report them.

    Attributes:
        system: Name, release and architecture.
        cpus: CPUs of the machine.
        allowed_cpus: CPUs that this process may run on.
        cpu_quota: CPUs that its control group may use at once.
        threads: Number of threads that a loader starts by default.
        instructions: CPU instructions in use: purpose -> name.
        memory: Bytes of memory of the machine.
        memory_available: Bytes available without swapping.
        memory_limit: Bytes that the control group may use, including the page cache.
        huge_pages: Setting of transparent huge pages: "always", "madvise" or "never".
        open_files: Limit of open files.
        open_files_hard: Maximum to which `ulimit -n` may raise that limit.
        shared_memory: Bytes of /dev/shm.
        shared_memory_free: Free bytes of /dev/shm.
        start_method: How `multiprocessing` starts processes, such as DataLoader's workers.
    """

    system: str
    cpus: int
    allowed_cpus: int
    cpu_quota: float | None
    threads: int
    memory: int | None
    memory_available: int | None
    memory_limit: int | None
    huge_pages: str | None
    open_files: int
    open_files_hard: int
    shared_memory: int | None
    shared_memory_free: int | None
    start_method: str
    instructions: dict[str, str] = field(default_factory=dict)

    @property
    def memory_left(self) -> int | None:
        """Bytes of memory available now, within the limit of the control group."""
        known = [size for size in (self.memory_available, self.memory_limit) if size is not None]
        return min(known, default=None)

    @property
    def memory_granted(self) -> int | None:
        """Maximum bytes of memory for the process and its page cache."""
        known = [size for size in (self.memory, self.memory_limit) if size is not None]
        return min(known, default=None)


def read_text(path: str) -> str | None:
    """Return the text of a system file, or None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def this_machine() -> Machine:
    """Examine the machine of this process."""
    memory = parse_memory(read_text("/proc/meminfo") or "")
    group = parse_group(read_text("/proc/self/cgroup") or "", read_text("/proc/self/mountinfo") or "", read_text)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        shm = os.statvfs("/dev/shm")
    except OSError:
        shm = None
    cpus = os.cpu_count() or 1
    uname = platform.uname()
    return Machine(
        system=f"{uname.system} {uname.release} {uname.machine}",
        cpus=cpus,
        allowed_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus,
        cpu_quota=group.cpus,
        threads=default_threads(),
        memory=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        memory_limit=group.memory,
        huge_pages=parse_choice(read_text("/sys/kernel/mm/transparent_hugepage/enabled") or ""),
        open_files=soft,
        open_files_hard=hard,
        shared_memory=None if shm is None else shm.f_blocks * shm.f_frsize,
        shared_memory_free=None if shm is None else shm.f_bavail * shm.f_frsize,
        start_method=multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        instructions=instructions(),
    )


def judge_machine(machine: Machine, files: int = 0) -> list[Finding]:
    """Return the findings about a machine before files are read on it.

    Args:
        machine: Its resources.
        files: Number of files to be open at once.
    """
    return [
        *_judge_cpus(machine),
        *_judge_memory(machine),
        _judge_open_files(machine, files),
        *_judge_shared_memory(machine),
    ]


def _judge_cpus(machine: Machine) -> Iterator[Finding]:
    few = machine.allowed_cpus < machine.cpus
    if few:
        message = (
            f"this process may run on {machine.allowed_cpus:,} of {machine.cpus:,} CPUs, and loads with as many "
            "threads: ask the scheduler for more, or for fewer ranks on this machine"
        )
        yield Finding("note", "cpu-affinity", message, "taskset -cp $$")
    limited = machine.cpu_quota is not None and machine.cpu_quota < machine.allowed_cpus
    if limited:
        message = (
            f"the control group may use {machine.cpu_quota:g} CPUs at once, of {machine.allowed_cpus:,}: threads "
            "beyond that are stopped now and then"
        )
        yield Finding("note", "cpu-quota", message, "docker run --cpus=N ...")
    jpeg = machine.instructions.get("jpeg")
    slow = jpeg not in ("avx2", "neon", None)
    if slow:
        yield Finding("note", "instructions", f"JPEGs are decoded by {jpeg}: a processor with AVX2 decodes faster")
    if not (few or limited or slow):
        used = ", ".join(f"{what} {name}" for what, name in machine.instructions.items())
        yield Finding("ok", "cpus", f"{machine.threads:,} threads by default; {used}")


def _judge_memory(machine: Machine) -> Iterator[Finding]:
    total, left, limit = machine.memory, machine.memory_available, machine.memory_limit
    limited = limit is not None and total is not None and limit < total
    if limit is not None and total is not None and limited:
        message = (
            f"the control group may use {limit / 1e9:.1f} of {total / 1e9:.1f} GB, and what it reads of files counts: "
            "larger files do not stay in memory"
        )
        yield Finding("note", "memory-limit", message, "docker run --memory=64g ...")
    if left is not None and left < _GIB:
        message = f"{left / 1e6:,.0f} MB of memory are available: what is read of files does not stay"
        yield Finding("note", "memory", message)
    elif total is not None and not limited:
        yield Finding("ok", "memory", f"{total / 1e9:.1f} GB, {(left or 0) / 1e9:.1f} available")


def _judge_shared_memory(machine: Machine) -> Iterator[Finding]:
    size, free = machine.shared_memory, machine.shared_memory_free or 0
    if size is None:
        return
    if size >= _ENOUGH_SHM and free >= _ENOUGH_SHM // 4:
        yield Finding("ok", "shared-memory", f"/dev/shm has {size / 1e9:.1f} GB")
        return
    message = (
        f"/dev/shm has {size / 1e6:,.0f} MB, {free / 1e6:,.0f} of them free: DataLoader's workers hand batches over in "
        "it, and end with a bus error when it is full; FastRecordLoader does not need it"
    )
    yield Finding("warning", "shared-memory", message, "docker run --shm-size=8g ...")


def _judge_open_files(machine: Machine, files: int) -> Finding:
    limit, hard = machine.open_files, machine.open_files_hard
    if limit == resource.RLIM_INFINITY:
        return Finding("ok", "open-files", "any number of files may be open at once")
    # A reader keeps up to two descriptors open; forked workers inherit them.
    needed = 2 * files + 256
    wanted = max(needed, _ENOUGH_FILES)
    if limit >= wanted:
        return Finding("ok", "open-files", f"{limit:,} files may be open at once")
    most = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    message = f"{limit:,} files may be open at once (at most {most}); "
    message += f"a training run on {files:,} shards needs some {needed:,}"
    if hard != resource.RLIM_INFINITY and hard < wanted:
        message += (
            ": only root raises the hard limit (/etc/security/limits.conf, LimitNOFILE= of systemd, "
            "docker run --ulimit nofile=65536)"
        )
    command = None if hard == limit else f"ulimit -n {most.replace(',', '')}"
    return Finding("warning" if limit < needed else "note", "open-files", message, command)
