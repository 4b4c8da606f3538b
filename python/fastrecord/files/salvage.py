"""`repair`: copies the intact records of a damaged file into a new one.

The damaged file is only read.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from fastrecord._core import Reader, Salvage, __version__
from fastrecord.errors import Code
from fastrecord.files.copy_job import ROWS, Job, Progress, check_target
from fastrecord.files.division import Part, PathLike
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.places import refuse_url
from fastrecord.schema.roles import read_key

REPAIRS = "repairs"
"""The metadata key under which losses are listed."""

# Limit in the summary and in the metadata; the list file has all of them.
_LISTED = 1000


@dataclass(frozen=True, slots=True)
class LostValue:
    """A record that could not be saved, and one reason for it.

    Attributes:
        record: Its number in the damaged file.
        field: The damaged field; None if nothing of the record is left.
        key: The value of its string field `key`, if it can be read.
        why: The reason, as a sentence.
    """

    record: int
    field: str | None
    key: str | None
    why: str


@dataclass(slots=True)
class RepairSummary:
    """Result of a repair.

    Attributes:
        path: The damaged file.
        out: The file written; None if nothing is damaged.
        records: Number of records that the damaged file had, as far as known.
        saved: Number of records in `out`.
        lost: Number of records that are not in `out`.
        unknown: Whether a later commit with an unknown number of records is lost.
        commit: The commit of the damaged file whose records were saved.
        complete: Whether the packing of `out` is marked as complete, as in that commit.
        notes: Parts of the file's structure that are damaged.
        values: What is lost, in record order; the first 1,000.
        lost_list: The file that lists all lost values, one JSON object a line; None if nothing is
            lost.
        bytes: Size of `out`.
        tail_bytes: Bytes after that commit in the damaged file: an unfinished or torn commit.
        seconds: Wall time.
    """

    path: str
    out: str | None = None
    records: int = 0
    saved: int = 0
    lost: int = 0
    unknown: bool = False
    commit: int = 0
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    values: list[LostValue] = field(default_factory=list)
    lost_list: str | None = None
    bytes: int = 0
    tail_bytes: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


def repair(
    path: PathLike,
    out: PathLike,
    *,
    lost: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RepairSummary:
    """Copy the intact records of a damaged file into a new one, in order, and list the others.

    The repair uses the newest commit with a readable footer, directory and metadata. Each of its
    records is saved whole, as stored, or is lost: one damaged value is enough. The new file's metadata
    also lists the losses under `repairs`: each repair adds a dict with `lost`, `records` (the
    number before), `runs` (the first 1,000 runs of lost records, as [first, last]), `commit`,
    `unknown` and `fastrecord` (the version).

    Args:
        path: The damaged file. It is only read.
        out: File to write. It cannot be read before the copy is complete.
        lost: File that lists the losses, one JSON object a line: `record`, `field`, `key`, `why`. By
            default the output's name with the suffix `.lost.jsonl`. Not written if nothing is lost.
        overwrite: Replace the output and the list once all is copied; by default they are refused. Old
            and new files need room together.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the repair.

    Returns:
        The result; `out` is None if nothing is damaged. Then nothing is written.

    Raises:
        CorruptFileError: nothing can be saved.
        UnsupportedVersionError: a newer fastrecord wrote the file.
        FileExistsError: `out` or the list exists.
        FastRecordError: one of them is the damaged file.
        OSError: reading or writing failed.
        KeyboardInterrupt: Ctrl-C.

    After an error no new file is left. The exception: if only the final rename of the list fails,
    `out` stays, whole, and a note reports it.
    """
    started = time.perf_counter()
    source, target = os.fspath(path), os.fspath(out)
    refuse_url(source)
    listing = f"{target}.lost.jsonl" if lost is None else os.fspath(lost)
    if os.path.abspath(listing) == os.path.abspath(target):
        raise Code.SAME_OUTPUT.error(f"{target}: cannot be both the output and the list of losses")
    for name in (target, listing):
        check_target(name, [source], overwrite=overwrite)
        folder = os.path.dirname(name) or os.curdir
        if not os.path.isdir(folder):  # an error with the caller's path
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    salvage = Salvage(source, progress=None if progress is None else lambda done, total: progress(done, 2 * total))
    with salvage.reader() as reader:
        summary = RepairSummary(source, records=salvage.records, saved=salvage.saved_records)
        summary.lost = summary.records - summary.saved
        summary.unknown, summary.notes = salvage.lost_unknown, salvage.notes
        summary.commit, summary.complete, summary.tail_bytes = reader.commit, reader.complete, reader.tail_bytes
        if not salvage.damaged:
            summary.seconds = time.perf_counter() - started
            return summary
        if summary.saved == 0 and summary.records > 0:
            raise Code.NOTHING_LEFT.error(
                f"{source}: nothing can be saved: each of its {summary.records:,} records is damaged"
            )

        def report(done: int, total: int) -> None:
            # not after the last byte: an exception would come too late
            if progress is not None and done < total:
                progress(total + done, 2 * total)

        job = Job([reader], [Part(target, 0, summary.saved)], overwrite=overwrite, verify=True, progress=report)
        job.total = reader.nbytes
        kept = "is as it was before" if os.path.lexists(target) else "nothing is written"
        temporary = f"{listing}.tmp-{secrets.token_hex(4)}"
        try:
            with job:
                copier = job.begin(0)
                for first in range(0, len(reader), ROWS):
                    rows = salvage.saved(first, first + ROWS)
                    if len(rows):
                        copier.copy_rows(reader, rows, progress=job.report)
                metadata = reader.metadata
                if summary.lost or summary.unknown:
                    _note_repair(metadata, salvage, summary)
                if summary.lost:
                    with _named(listing, f"{target}: {kept}"):
                        _write_list(temporary, salvage, reader, summary)
                # Rename both or none, whenever Ctrl-C comes.
                with HeldInterrupt() as interrupt:
                    job.finish(metadata, complete=reader.complete)
                    if summary.lost:
                        with _named(listing, f"{target}: is complete, but its list is not written"):
                            os.replace(temporary, listing)
                        summary.lost_list = listing
                    elif overwrite:
                        with suppress(FileNotFoundError):
                            # the list of an earlier repair would be taken for this repair's list
                            os.unlink(listing)
            if interrupt.pending:
                raise KeyboardInterrupt(f"{target}: everything is written")
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        summary.out, summary.bytes = target, os.path.getsize(target)
        summary.seconds = time.perf_counter() - started
        return summary


@contextmanager
def _named(listing: str, left: str) -> Iterator[None]:
    """Name the list, not the temporary file, in a system error; add a note about what is left."""
    try:
        yield
    except OSError as err:
        named = OSError(err.errno, f"the list of losses cannot be written: {err.strerror}", listing)
        named.add_note(left)
        raise named from err


def _lost_values(salvage: Salvage, reader: Reader) -> Iterator[LostValue]:
    for first, end, name, why in salvage.losses:
        for record in range(first, end):
            yield LostValue(record, name, read_key(reader, record) if record < len(reader) else None, why)


def _write_list(path: str, salvage: Salvage, reader: Reader, summary: RepairSummary) -> None:
    with open(path, "x", encoding="utf-8") as file:
        for value in _lost_values(salvage, reader):
            if len(summary.values) < _LISTED:
                summary.values.append(value)
            file.write(json.dumps(asdict(value)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _note_repair(metadata: dict[str, Any], salvage: Salvage, summary: RepairSummary) -> None:
    before = metadata.get(REPAIRS, [])
    entry = {
        "lost": summary.lost,
        "records": summary.records,
        "runs": _lost_runs(salvage, summary.records),
        "commit": summary.commit,
        "unknown": summary.unknown,
        "fastrecord": __version__,
    }
    metadata[REPAIRS] = [*(before if isinstance(before, list) else [before]), entry]


def _lost_runs(salvage: Salvage, records: int) -> list[list[int]]:
    """Return the first runs of lost records, as [first, last]."""
    runs: list[list[int]] = []
    for first, end, _, _ in salvage.losses:
        if runs and first <= runs[-1][1] + 1:
            runs[-1][1] = max(runs[-1][1], end - 1)
        elif len(runs) == _LISTED:
            break
        else:
            runs.append([first, min(end, records) - 1])
    return runs
