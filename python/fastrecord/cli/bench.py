"""The subcommand bench: prints a benchmark report and its verdict. Measures nothing itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fastrecord import inspect
from fastrecord.cli.options import NumberRange, path_type, quiet_option, text_type
from fastrecord.cli.text import bytes_text, progress_bar, say

if TYPE_CHECKING:
    from fastrecord.inspect.benchmark import Report, Row
    from fastrecord.inspect.verdict import Verdict


@click.command()
@click.argument("file", type=path_type)
@click.option(
    "--seconds",
    type=NumberRange(min=0, min_open=True, max=3600),
    default=30.0,
    show_default=True,
    help="Time for all measurements together, without the import of torch.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1, max=4096),
    help="Maximum number of threads; fewer are tried too. Default: the CPUs that this process may use.",
)
@click.option(
    "--size",
    type=click.IntRange(min=1, max=65535),
    default=224,
    show_default=True,
    metavar="PX",
    help="Height and width of the loader's output.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1, max=65536), default=64, show_default=True, help="Records in a batch."
)
@click.option(
    "--field", type=text_type, metavar="NAME", help="Field to read. Default: the images, else the first field of bytes."
)
@click.option(
    "--cold",
    is_flag=True,
    help="Drop FILE from the system's page cache first, so that the first reading comes from the disk. Needs no "
    "special rights. Other readers of FILE then wait for the disk too.",
)
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: all numbers, and the verdict.")
def bench(
    file: str,
    seconds: float,
    threads: int | None,
    size: int,
    batch_size: int,
    field: str | None,
    cold: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure how fast this machine reads, decodes and loads random records of FILE, and report the limit.

    Changes nothing. The first reading finds FILE in memory or on the disk; the others read records that are in memory
    by then. The loader makes random crops of PX x PX pixels, flipped at random.
    """
    with progress_bar(quiet=quiet, bar_format="{n_fmt}/{total_fmt} {desc}") as bar:

        def show(name: str, done: int, total: int) -> None:
            if bar is not None:
                bar.total = total
                bar.set_description_str(_NAMES[name])
                bar.update(done - bar.n)

        report = inspect.bench(
            file,
            seconds=seconds,
            threads=threads,
            size=size,
            batch_size=batch_size,
            image_field=field,
            cold=cold,
            progress=show,
        )
    verdict = inspect.judge(report, size=size)
    if as_json:
        say(json.dumps({**report.to_dict(), "verdict": verdict.to_dict()}))
    else:
        say(*_about(report), "", *_table(report, verdict), "", *_verdict(report, verdict))


_NAMES = {
    "read": "read from the file as it was found, and checked",
    "views": "handed over as views, nothing touched",
    "copies": "copied out of memory, and checked",
    "decode": "whole images decoded",
    "load": "loader: random crop, flip",
}


def _about(report: Report) -> list[str]:
    sides = ""
    if report.mean_width is not None:
        kinds = ", ".join(f"{100 * share:.0f} % {name}" for name, share in report.formats.items())
        sides = f", {report.mean_width:.0f} x {report.mean_height:.0f} pixels on average; {kinds}"
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
    names = {
        "decode": "decoding, on the CPU",
        "resize": "resizing, on the CPU",
        "read": "copying out of memory",
        "disk": "the disk",
        "cpu": "CPUs that are busy elsewhere",
    }
    lines = [f"Expect {verdict.expected:,.0f} {_unit(report)}/s. The limit is {names[verdict.limit]}."]
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
