"""The command doctor: prints findings. Examines nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fastrecord import inspect
from fastrecord.cli.command import command
from fastrecord.cli.text import bytes_text

if TYPE_CHECKING:
    from fastrecord.inspect.diagnosis import FileReport, Report
    from fastrecord.inspect.findings import Finding
    from fastrecord.inspect.machine import Machine
    from fastrecord.inspect.stores import StoreReport

# Maximum number of files described one by one.
_SHOWN = 8


@command(inspect.doctor, "[FILE...]", failed=lambda report: not report.readable)
def doctor(report: Report) -> Iterator[str]:
    """Report what makes loading slow or unsafe on this machine and in each FILE, and how to improve it.

    Takes less than a second for a FILE, and changes nothing. For each FILE it shows the file system and the disk, how
    much of it is in memory, the state of the newest commit, and what another form of its JPEGs would gain here. A FILE
    may also be a data set: a folder of files, or its dataset.json. `fastrecord bench` measures speed.
    For each URL it measures some seconds: the latency of the store, and its speed with one request and with many.

    Exit status: 0 with or without findings; 1 a FILE cannot be read; 2 wrong usage.
    """
    versions = [f"{name} {version or '(absent)'}" for name, version in report.versions.items()]
    half = (len(versions) + 1) // 2
    yield from ("versions", f"  {', '.join(versions[:half])}", f"  {', '.join(versions[half:])}", "machine")
    yield from _rows(_machine(report.machine))
    for store in report.stores:
        yield store.url
        yield from _rows(_store(store))
    for file in report.files[:_SHOWN]:
        yield file.file
        yield from _rows(_file(file))
    if len(report.files) > _SHOWN:
        yield f"{len(report.files) - _SHOWN:,} more files (--json has all)"
    told = [finding for finding in report.findings if finding.level != "ok"]
    good = len(report.findings) - len(told)
    yield f"findings ({good:,} other checks are good)" if told else f"nothing found: {good:,} checks are good"
    # Shards in one folder usually have the same findings.
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in told:
        groups.setdefault((finding.level, finding.code, finding.message), []).append(finding)
    for (level, code, message), same in groups.items():
        more = f" and {len(same) - 1:,} more" if len(same) > 1 else ""
        about = "" if same[0].file is None else f"{same[0].file}{more}: "
        yield f"  {level:<7}  {code}: {about + message}"
        if same[0].command is not None:
            yield f"           {same[0].command}"


def _rows(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  {name:<12} {text}" for name, text in rows)


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    quota = "" if machine.cpu_quota is None else f", {machine.cpu_quota:g} of them at once"
    used = ", ".join(f"{what} {name}" for what, name in machine.instructions.items())
    cpus = f"{machine.allowed_cpus:,} of {machine.cpus:,}{quota}"
    yield "system", machine.system
    yield "CPUs", f"{cpus}; {machine.threads:,} threads by default ({used})"
    if machine.memory is not None:
        limit = "" if machine.memory_limit is None else f"; limit {bytes_text(machine.memory_limit)}"
        left = bytes_text(machine.memory_available or 0)
        yield "memory", f"{bytes_text(machine.memory)}, {left} available{limit}"
    if machine.huge_pages is not None:
        yield "huge pages", machine.huge_pages
    yield "open files", f"{machine.open_files:,}, at most {machine.open_files_hard:,}"
    if machine.shared_memory is not None:
        free = bytes_text(machine.shared_memory_free or 0)
        yield "/dev/shm", f"{bytes_text(machine.shared_memory)}, {free} free"
    yield "processes", f"start by {machine.start_method}"


def _store(store: StoreReport) -> Iterator[tuple[str, str]]:
    yield "latency", f"{1000 * store.latency:.1f} ms until a byte comes"
    yield "one request", f"{store.one / 1e6:,.0f} MB/s"
    yield f"{store.requests} requests", f"{store.parallel / 1e6:,.0f} MB/s together"
    yield "limit", store.limit


def _file(file: FileReport) -> Iterator[tuple[str, str]]:
    if file.records is not None:
        complete = "complete" if file.complete else "not complete"
        yield "records", f"{file.records:,}, {complete}, commit {file.commits:,}"
    if file.size is not None:
        cached = "" if file.resident is None else f", {100 * file.resident / max(file.size, 1):.0f} % in the page cache"
        pieces = "" if file.pieces is None else f"; pieces: {file.pieces:,}"
        yield "size", f"{bytes_text(file.size)}{cached}{pieces}"
    if file.mount is not None:
        yield "file system", f"{file.mount.kind} on {file.mount.point} ({file.mount.source})"
    if (disk := file.disk) is not None:
        kind = "rotational" if disk.rotational else "not rotational"
        yield "disk", f"{disk.name}: {kind}, scheduler {disk.scheduler}, reads ahead {disk.read_ahead_kib:,} KiB"
