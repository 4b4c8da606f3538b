"""`Verdict`: what limits the loading of a file, and what would help.

Judges the measurements of `fastrecord.inspect.benchmark`; measures nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastrecord.inspect.benchmark import Report, Row
from fastrecord.inspect.findings import Answer

_FITS = 0.8  # share of the free memory: a file up to this size stays in memory from epoch to epoch
_CACHED = 0.5  # share of the file: above it the first reading says little about the disk
_LOST = 0.3  # share of the CPU time available to the threads
_SCALES = 0.75  # minimum ratio of the rate to one thread's rate times the threads
_LARGE = 2.5  # ratio to the output's side


@dataclass(frozen=True)
class Verdict(Answer):
    """The interpretation of a report.

    Attributes:
        limit: "decode", "resize", "read" (copying from memory), "disk" or "cpu" (used by other
            programs).
        expected: Images (without images: records) per second to expect from the second epoch on,
            with the machine as busy as it was.
        undisturbed: The same if the threads had their CPUs for themselves, from the CPU time of
            each image; None if they had, or without images.
        efficiency: The loader's rate on all threads divided by one thread's rate times the threads;
            None for one thread.
        reasons: Sentences that explain why.
        advice: Sentences on what would help, the best first.
    """

    limit: str
    expected: float
    undisturbed: float | None
    efficiency: float | None
    reasons: tuple[str, ...]
    advice: tuple[str, ...]


def judge(report: Report) -> Verdict:
    """Determine what limits loading.

    Args:
        report: A return value of `bench`.
    """
    load = report.row("load")
    fits = report.memory is None or report.nbytes <= _FITS * report.memory
    best = load or report.row("copies")
    if best is None:
        raise ValueError("the report has no rows to judge by")
    disk = _disk(report)
    slow = disk if disk is not None and disk.records_per_second < best.records_per_second else None
    waits = () if slow is None else (_disk_text(report, slow, best, fits=fits),)
    efficiency, undisturbed = _efficiency(report), None
    if slow is not None and not fits:
        limit, expected, reasons = "disk", slow.records_per_second, waits
    elif load is None:
        limit, expected = "read", best.records_per_second
        reasons = ("Loading only copies out of memory and compares checksums.", *waits)
    else:
        expected = load.records_per_second
        limit = max(("read", "decode", "resize"), key=load.shares.__getitem__)
        if limit != "read" and _used(load) < 1 - _LOST:
            limit, undisturbed = "cpu", load.threads * load.records / load.cpu_seconds
        reasons = (_share_text(limit, load), *_scaling_text(efficiency, load, limit), *waits)
    return Verdict(limit, expected, undisturbed, efficiency, reasons, tuple(_advice(report, limit)))


def _used(load: Row) -> float:
    """Return the CPU time of the process as a share of the CPU time available to its threads."""
    return load.cpu_seconds / (load.threads * load.seconds) if load.seconds else 1.0


def _disk(report: Report) -> Row | None:
    """Return the first reading if it was from the disk, and restored no packed images, as the loader does not."""
    read = None if report.packed else report.row("read")
    return read if read is not None and report.cached is not None and report.cached < _CACHED else None


def _efficiency(report: Report) -> float | None:
    one, load = report.row("load", 1), report.row("load")
    if one is None or load is None or load.threads == 1 or not one.records_per_second:
        return None
    return load.records_per_second / (load.threads * one.records_per_second)


def _share_text(limit: str, load: Row) -> str:
    shares = {name: f"{100 * share:.0f} %" for name, share in load.shares.items()}
    if limit == "cpu":
        used = f"{100 * _used(load):.0f} % of the time of as many CPUs"
        why = "other programs are running, or there are fewer CPUs than threads"
        return f"The loader's {_threads(load)} had {used}: {why}."
    names = {"decode": "decoding", "resize": "cropping and resizing", "read": "reading and checking"}
    others = ", ".join(f"{names[name]} {shares[name]}" for name in names if name != limit)
    return f"{names[limit].capitalize()} takes {shares[limit]} of the threads' time ({others})."


def _threads(row: Row) -> str:
    return "1 thread" if row.threads == 1 else f"{row.threads} threads"


def _scaling_text(efficiency: float | None, load: Row, limit: str) -> tuple[str, ...]:
    if efficiency is None or efficiency >= _SCALES or limit == "cpu":
        return ()
    done = f"{_threads(load)} do the work of {efficiency * load.threads:.1f}"
    return (f"{done}: two CPUs that are one core, or the memory's bandwidth, give out before the threads do.",)


def _disk_text(report: Report, disk: Row, best: Row, *, fits: bool) -> str:
    rate = f"{disk.megabytes_per_second:.0f} MB/s, {disk.records_per_second:.0f} records/s"
    wanted = f"{best.records_per_second * report.mean_bytes / 1e6:.0f} MB/s"
    when = "the first epoch" if fits else "every epoch, as the file is larger than the free memory,"
    return f"From the disk come {rate}; loading could take {wanted}: {when} waits for the disk."


def _advice(report: Report, limit: str) -> list[str]:
    advice, size = [], report.size
    load = report.row("load")
    if limit == "disk":
        memory = f" ({(report.memory or 0) / 1e9:.1f} GB are free)" if report.memory is not None else ""
        advice.append(f"Memory for the {report.nbytes / 1e9:.1f} GB of the file{memory}, or a faster disk.")
    if limit == "cpu":
        fewer = ", or with fewer --threads" if load is not None and load.threads > 1 else ""
        advice.append(f"Measure again while nothing else runs{fewer}.")
    work = limit if limit != "cpu" or load is None else max(("decode", "resize"), key=load.shares.__getitem__)
    if load is not None and limit in ("decode", "resize"):
        if load.threads < report.cpus:
            advice.append(f"More threads: this process may use {report.cpus} CPUs.")
        elif report.cpus < report.machine_cpus:
            advice.append(f"More CPUs: this process may use {report.cpus} of the machine's {report.machine_cpus}.")
    if work == "decode" and report.formats.get("JPEG", 0.0) > 0.5 and not report.packed:
        if report.packed_gain is not None and report.packed_gain.worth_it:
            advice.append(f"`fastrecord compact --packed`: the same pixels, {report.packed_gain}.")
        elif not report.crop_index:
            advice.append("`fastrecord index`: the same pixels, and a crop decodes its own part alone.")
    short = min(report.mean_width or 0.0, report.mean_height or 0.0)
    if work in ("decode", "resize", "disk") and short > _LARGE * size:
        advice.append(
            f"Smaller images: their shorter side is {short:.0f} pixels, the output's {size}; "
            f"`fastrecord pack --short-side {round(size * 8 / 7)}` (which encodes them anew)."
        )
    return advice
