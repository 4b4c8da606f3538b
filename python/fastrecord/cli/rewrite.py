"""The commands that make files from files, or change one: merge, split, shuffle, compact, repair, index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastrecord.cli.command import command
from fastrecord.cli.text import bytes_text, say, shard_lines, speed
from fastrecord.files import indexing, rewrite, salvage

if TYPE_CHECKING:
    from fastrecord.files.copy_job import RewriteSummary
    from fastrecord.files.indexing import IndexSummary
    from fastrecord.files.salvage import RepairSummary

# Further lost records are counted, and are in the list file.
_SHOWN = 20


def copied(summary: RewriteSummary) -> Iterator[str]:
    """Yield what a copy of records has made."""
    for path, count in zip(summary.paths, summary.counts, strict=True) if len(summary.paths) > 1 else ():
        yield f"{path}: {count:,} records"
    where = summary.paths[0] if len(summary.paths) == 1 else f"{len(summary.paths):,} files"
    classes = "" if summary.classes is None else f" in {len(summary.classes):,} classes"
    yield (
        f"{where}: {summary.records:,} records{classes}, {bytes_text(summary.source_bytes)} -> "
        f"{bytes_text(summary.bytes)}, {speed(summary.bytes, summary.seconds)}"
    )
    yield from shard_lines(summary.manifest, summary.not_named)
    counts = {"packed": summary.packed, "unpacked": summary.unpacked, "as they were": summary.unchanged}
    if any(counts.values()):
        yield f"images: {', '.join(f'{count:,} {name}' for name, count in counts.items() if count)}"
    if summary.differing:
        keys = ", ".join(summary.differing)
        yield f"metadata that differs between the files, taken from the first file that has it: {keys}"


@command(rewrite.merge, "FILE... OUT")
def merge(summary: RewriteSummary) -> Iterator[str]:
    """Write the records of all FILEs, one file after the other, into OUT. No pixel is decoded; FILEs do not change.

    All FILEs need the same fields; OUT has them in the order of the first FILE. Classes are matched by name. The first
    FILE's classes keep their numbers, new names get the next ones, and the int64 field `label` is renumbered. Where
    other metadata differs, the first FILE's value counts, and the key is listed.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    return copied(summary)


@command(rewrite.split, "FILE [OUT...]")
def split(summary: RewriteSummary) -> Iterator[str]:
    """Write the records of FILE into several files, in the order that they have in FILE. FILE does not change.

    OUT is one name, where train.frec means train-00000-of-00002.frec and so on, or one path for each file. Default:
    FILE's name. The files of --fractions have different uses and are not numbered: give --names (OUT is then the
    folder to write into, by default FILE's), or a path for each.

    The new files can be read only when everything is copied. After an error or Ctrl-C none of them is left.
    """
    return copied(summary)


@command(rewrite.shuffle, "FILE OUT")
def shuffle(summary: RewriteSummary) -> Iterator[str]:
    """Write the records of FILE in random order into OUT, for disks that are fast only at sequential reads.

    FILE does not change. It is read at random, with prefetching; OUT is written sequentially, with its payloads in the
    order of its records. A sequential read of OUT then delivers shuffled records.

    OUT can be read only when everything is copied. After an error or Ctrl-C it is absent, or with --overwrite the old
    file.
    """
    return copied(summary)


@command(rewrite.compact, "FILE [OUT]")
def compact(summary: RewriteSummary) -> Iterator[str]:
    """Rewrite FILE without its unused bytes: old indexes, replaced columns, a torn tail.

    With --packed its JPEGs are then packed, and with --no-packed they are again the files that they were. Readers give
    the same bytes in both forms.

    The new file replaces FILE once everything is copied, so both need room together. With OUT it is written there, and
    FILE does not change. Open readers continue with the old file; a FILE that a writer has open is refused. After an
    error or Ctrl-C FILE is as it was before.
    """
    return copied(summary)


@command(salvage.repair, "BAD OUT", failed=lambda summary: summary.lost or summary.unknown)
def repair(summary: RepairSummary) -> Iterator[str]:
    """Write the records of BAD that can be saved into OUT, in their order, and list the others. BAD is only read.

    Each record is saved whole, as it is stored, or is lost: one damaged value is enough. The newest commit with a
    readable footer, directory and metadata counts.

    If nothing is damaged, nothing is written. OUT can be read only when everything is copied. After an error or Ctrl-C
    it is absent, or with --overwrite the old file.

    Exit status: 0 every record is saved, or BAD is good; 1 records are lost, or nothing can be saved; 2 wrong usage;
    130 Ctrl-C.
    """
    say(*(f"damage: {note}" for note in summary.notes), err=True)
    for value in summary.values[:_SHOWN]:
        key = "" if value.key is None else f" (key {value.key})"
        say(f"lost: record {value.record}{key}: {value.why}", err=True)
    if len(summary.values) > _SHOWN:
        say(f"lost: more; {summary.lost_list} lists all", err=True)
    if summary.unknown:
        say(f"lost: what was committed after commit {summary.commit}: an unknown number of records", err=True)
    if summary.out is None:
        tail = f"; {summary.tail_bytes:,} bytes after the last commit, which the next writer cuts off"
        yield f"{summary.path}: good, nothing to repair, nothing was written{tail if summary.tail_bytes else ''}"
        return
    listed = f", listed in {summary.lost_list}" if summary.lost_list is not None else ""
    incomplete = "" if summary.complete else "; its packing is not complete"
    yield (
        f"{summary.out}: {summary.saved:,} of {summary.records:,} records saved, {summary.lost:,} lost{listed}; "
        f"{bytes_text(summary.bytes)}, {speed(summary.bytes, summary.seconds)}{incomplete}"
    )


@command(indexing.index, "FILE...", unit=" images", each=True)
def index(summary: IndexSummary) -> Iterator[str]:
    """Add the crop index to the JPEGs of each FILE, so that a crop is decoded without most of its image.

    The images keep their bytes, and nothing in FILE is rewritten: it grows by the index. Images that are small, packed,
    or of a kind without an index, are left alone. Works on all CPUs.

    A commit every 20 seconds makes the work durable: after a kill or Ctrl-C FILE is good, and the same command
    continues. Open readers are not disturbed, and see the index when they open FILE again.

    Exit status: 0 all files are indexed; 1 an error; 2 wrong usage; 130 Ctrl-C.
    """
    counts = f"{summary.indexed:,} indexed"
    counts += f", {summary.present:,} before" if summary.present else ""
    counts += f", {summary.without:,} without an index" if summary.without else ""
    counts += f", {summary.packed:,} packed, which need none" if summary.packed else ""
    rate = f"{summary.seconds:.1f} s, {summary.indexed / max(summary.seconds, 1e-9):,.0f} images/s"
    yield f"{summary.path}: {summary.images:,} images: {counts}; {bytes_text(summary.bytes)}, {rate}"
