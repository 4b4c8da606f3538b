"""The command bench: prints a benchmark report and its verdict. Measures nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastrecord.cli.command import command
from fastrecord.cli.text import bytes_text
from fastrecord.inspect.benchmark import Report, Row
from fastrecord.inspect.benchmark import bench as measure
from fastrecord.inspect.verdict import Verdict, judge

_NAMES = {
    "read": "read from the file as it was found, and checked",
    "views": "handed over as views, nothing touched",
    "copies": "copied out of memory, and checked",
    "decode": "whole images decoded",
    "load": "loader: random crop, flip",
}


_LIMITS = {
    "decode": "decoding, on the CPU",
    "resize": "resizing, on the CPU",
    "read": "copying out of memory",
    "disk": "the disk",
    "cpu": "CPUs that are busy elsewhere",
}


def _with_verdict(report: Report) -> dict[str, Any]:
    return {**report.to_dict(), "verdict": judge(report).to_dict()}


@command(measure, "FILE", unit=" measurements", to_dict=_with_verdict)
def bench(report: Report) -> Iterator[str]:
    """Measure how fast this machine reads, decodes and loads random records of FILE, and report the limit.

    Changes nothing. The first reading finds FILE in memory or on the disk; the others read records that are in memory
    by then. The loader makes random crops, flipped at random.
    """
    verdict = judge(report)
    yield from _about(report)
    yield ""
    yield from _table(report, verdict)
    yield ""
    yield from _verdict(report, verdict)


def _about(report: Report) -> list[str]:
    sides = ""
    if report.mean_width is not None:
        kinds = ", ".join(f"{100 * share:.0f} % {name}" for name, share in report.formats.items())
        sides = f", {report.mean_width:.0f} x {report.mean_height:.0f} pixels on average; {kinds}"
        sides += ", packed" if report.packed else ""
    state = "page cache: unknown"
    if report.cached is not None:
        dropped = "after it was dropped from there, " if report.cold else ""
        state = f"page cache: {dropped}{100 * report.cached:.0f} % of the file lay in memory at the start"
    memory = "" if report.memory is None else f", {bytes_text(report.memory)} of memory free"
    return [
        f"{report.file}: {report.records:,} records, {bytes_text(report.nbytes)}",
        f"field {report.field} ({report.kind}): {bytes_text(report.mean_bytes)} each{sides}",
        f"measured: {report.sample:,} random records, {bytes_text(report.sample_bytes)}",
        f"this process: {report.cpus} of {report.machine_cpus} CPUs{memory}",
        state,
    ]


def _table(report: Report, verdict: Verdict) -> list[str]:
    # CPU use by other programs does not say anything about scaling.
    one = report.row("load", 1) if verdict.limit != "cpu" else None
    width = max(len(_NAMES[row.name]) for row in report.rows)
    head = f"{'':{width}}  threads  {_unit(report) + '/s':>12}  {'MB/s':>8}  CPU ms each"
    rows = [f"{_NAMES[row.name]:{width}}  {row.threads:>7}  {_rates(row)}{_scaling(row, one)}" for row in report.rows]
    return [head, *rows]


def _unit(report: Report) -> str:
    return "images" if report.kind == "image" else "records"


def _rates(row: Row) -> str:
    megabytes = "-" if row.name == "views" else f"{row.megabytes_per_second:,.0f}"
    each = 1e3 * row.cpu_seconds / row.records if row.records else 0.0
    return f"{row.records_per_second:>12,.0f}  {megabytes:>8}  {each:>11.3f}"


def _scaling(row: Row, one: Row | None) -> str:
    if row.name != "load" or one is None or row.threads == 1 or not one.records_per_second:
        return ""
    gain = row.records_per_second / one.records_per_second
    return f"  {gain:.2f} x one thread, {100 * gain / row.threads:.0f} % of ideal"


def _verdict(report: Report, verdict: Verdict) -> list[str]:
    lines = [f"Expect {verdict.expected:,.0f} {_unit(report)}/s. The limit is {_LIMITS[verdict.limit]}."]
    if verdict.undisturbed is not None:
        lines[0] += f" With CPUs of its own: about {verdict.undisturbed:,.0f}."
    lines += [f"  {reason}" for reason in verdict.reasons]
    if verdict.advice:
        lines += ["What would help:", *(f"  - {advice}" for advice in verdict.advice)]
    if report.skipped:
        lines.append(f"{report.skipped:,} of {report.sample:,} images cannot be decoded; they were left out.")
    if report.kind != "image":
        lines.append(f"The field is of type {report.kind}, not image: nothing was decoded.")
    return lines
