"""The subcommand doctor: prints findings. Examines nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fastrecord import inspect
from fastrecord.cli.options import path_type
from fastrecord.cli.sources import is_one_file
from fastrecord.cli.text import bytes_text, say
from fastrecord.store import is_url

if TYPE_CHECKING:
    from fastrecord.inspect.diagnosis import FileReport, Report
    from fastrecord.inspect.findings import Finding
    from fastrecord.inspect.machine import Machine

# Maximum number of files described one by one.
_SHOWN = 8


@click.command()
@click.argument("files", nargs=-1, type=path_type, metavar="[FILE]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: versions, machine, files, findings.")
@click.pass_context
def doctor(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Report what makes loading slow or unsafe on this machine and in each FILE, and how to improve it.

    Takes less than a second, changes nothing and decodes nothing. For each FILE it shows the file system and the disk,
    how much of it is in memory, and the state of the newest commit. A FILE may also be a data set: a folder of files,
    or its dataset.json. `fastrecord bench` measures speed.
    For each URL it measures some seconds: the latency of the store, and its speed with one request and with many.

    Exit status: 0 with or without findings; 1 a FILE cannot be read; 2 wrong usage.
    """
    urls = [file for file in files if is_url(file)]
    if urls:
        _measure(urls, as_json=as_json)
        if len(urls) == len(files):
            return
    report = inspect.doctor([path for file in files if not is_url(file) for path in _paths(file)])
    if as_json:
        say(json.dumps(report.to_dict()))
    else:
        say(*_text(report))
    if not report.readable:
        ctx.exit(1)


def _paths(file: str) -> list[str]:
    """Return the files of a data set; a file by itself is examined even if it cannot be read."""
    from fastrecord.dataset.shards import find_files

    return [file] if is_one_file(file) else find_files(file)


def _measure(urls: list[str], *, as_json: bool) -> None:
    """Print how fast object stores are."""
    from fastrecord.inspect.stores import measure_store

    for url in urls:
        found = measure_store(url)
        if as_json:
            say(json.dumps(found.to_dict()))
            continue
        rows = [
            ("latency", f"{1000 * found.latency:.1f} ms until a byte comes"),
            ("one request", f"{found.one / 1e6:,.0f} MB/s"),
            (f"{found.requests} requests", f"{found.parallel / 1e6:,.0f} MB/s together"),
            ("limit", found.limit),
        ]
        say(url, *_rows(rows))


def _text(report: Report) -> list[str]:
    versions = [f"{name} {version or '(absent)'}" for name, version in report.versions.items()]
    half = (len(versions) + 1) // 2
    lines = ["versions", f"  {', '.join(versions[:half])}", f"  {', '.join(versions[half:])}", "machine"]
    lines += _rows(_machine(report.machine))
    for file in report.files[:_SHOWN]:
        lines.append(file.file)
        lines += _rows(_file(file))
    if len(report.files) > _SHOWN:
        lines.append(f"{len(report.files) - _SHOWN:,} more files (--json has all)")
    told = [finding for finding in report.findings if finding.level != "ok"]
    good = len(report.findings) - len(told)
    lines.append(f"findings ({good:,} other checks are good)" if told else f"nothing found: {good:,} checks are good")
    # Shards in one folder usually have the same findings.
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in told:
        groups.setdefault((finding.level, finding.code, finding.message), []).append(finding)
    for (level, code, message), same in groups.items():
        more = f" and {len(same) - 1:,} more" if len(same) > 1 else ""
        about = "" if same[0].file is None else f"{same[0].file}{more}: "
        lines.append(f"  {level:<7}  {code}: {about + message}")
        if same[0].command is not None:
            lines.append(f"           {same[0].command}")
    return lines


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<12} {text}" for name, text in rows]


def _machine(machine: Machine) -> list[tuple[str, str]]:
    quota = "" if machine.cpu_quota is None else f", {machine.cpu_quota:g} of them at once"
    used = ", ".join(f"{what} {name}" for what, name in machine.instructions.items())
    rows = [
        ("system", machine.system),
        (
            "CPUs",
            f"{machine.allowed_cpus:,} of {machine.cpus:,}{quota}; {machine.threads:,} threads by default ({used})",
        ),
    ]
    if machine.memory is not None:
        limit = "" if machine.memory_limit is None else f"; limit {bytes_text(machine.memory_limit)}"
        rows.append(
            ("memory", f"{bytes_text(machine.memory)}, {bytes_text(machine.memory_available or 0)} available{limit}")
        )
    if machine.huge_pages is not None:
        rows.append(("huge pages", machine.huge_pages))
    rows.append(("open files", f"{machine.open_files:,}, at most {machine.open_files_hard:,}"))
    if machine.shared_memory is not None:
        rows.append(
            ("/dev/shm", f"{bytes_text(machine.shared_memory)}, {bytes_text(machine.shared_memory_free or 0)} free")
        )
    rows.append(("processes", f"start by {machine.start_method}"))
    return rows


def _file(file: FileReport) -> list[tuple[str, str]]:
    rows = []
    if file.records is not None:
        complete = "complete" if file.complete else "not complete"
        rows.append(("records", f"{file.records:,}, {complete}, commit {file.commits:,}"))
    if file.size is not None:
        cached = "" if file.resident is None else f", {100 * file.resident / max(file.size, 1):.0f} % in the page cache"
        pieces = "" if file.pieces is None else f"; pieces: {file.pieces:,}"
        rows.append(("size", f"{bytes_text(file.size)}{cached}{pieces}"))
    if file.mount is not None:
        rows.append(("file system", f"{file.mount.kind} on {file.mount.point} ({file.mount.source})"))
    if file.disk is not None:
        disk = file.disk
        kind = "rotational" if disk.rotational else "not rotational"
        rows.append(
            ("disk", f"{disk.name}: {kind}, scheduler {disk.scheduler}, reads ahead {disk.read_ahead_kib:,} KiB")
        )
    return rows
