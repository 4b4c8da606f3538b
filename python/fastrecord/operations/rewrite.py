"""New files out of the records of others: merge, split, shuffle, compact. Payloads are copied, never decoded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Reader, SchemaError, permute
from fastrecord.checks import check_count, check_seed
from fastrecord.operations.copy_job import ROWS, CopySummary, Job, PathLike, Progress, open_source, steps
from fastrecord.operations.division import choose, ends_by_size, name_files, name_parts, sizes_of
from fastrecord.operations.shard_names import as_set
from fastrecord.schema.classes import class_names, map_labels, merge_classes
from fastrecord.schema.roles import holds_classes
from fastrecord.schema.shard_sets import COMMANDS, check_together, without_origin

_LABEL = "label"


def merge(
    paths: Iterable[PathLike],
    out: PathLike,
    *,
    overwrite: bool = False,
    allow_incomplete: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> CopySummary:
    """Write the records of several files, one file after the other, into a new one.

    Classes are matched by name: those of the first file keep their numbers, names that later files add get the next
    ones, and the int64 field `label` is renumbered. Of the other metadata, what is the same in all files is kept; where
    they differ, the first file that has a key gives its value, and the summary lists the key.

    Args:
        paths: The files, at least one; the same one may come twice. They have the same fields (names and types); the
            first file's order of them is the new one's.
        out: File to write. It gets its commit, and so can be read, when all is copied.
        overwrite: Replace `out` if it exists, at the end.
        allow_incomplete: Take files, too, whose own import is under way or was stopped, shards of which some are
            missing, and files beside those that were made of them.
        verify: Compare the checksum of each payload on the way.
        progress: Called with bytes done and bytes in all, now and then; an exception in it ends the merge.

    Raises:
        SchemaError: the files differ in their fields, or only some of them name classes; names both files. A label has
            no class in its own file, and would get one of another.
        FileExistsError: `out` exists. LockedError: it is being written.
        CorruptFileError: a file is damaged. FastRecordError: one is incomplete, or is `out` itself; shards are missing.
        OSError: reading or writing failed. KeyboardInterrupt: Ctrl-C. After any of these `out` is as it was before.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths is a sequence of files, not one path: {os.fspath(paths)!r}")
    started = time.perf_counter()
    with ExitStack() as stack:
        readers = [stack.enter_context(open_source(path, allow_incomplete=allow_incomplete)) for path in paths]
        if not readers:
            raise ValueError("there is no file to merge")
        if not allow_incomplete:
            check_together(readers, option=COMMANDS)
        for reader in readers[1:]:
            _check_fields(readers[0], reader)
        metadata, differing = _merge_metadata(readers)
        classes, tables = _merge_labels(readers)
        if classes is not None:
            metadata["classes"] = classes
        job = Job(readers, [os.fspath(out)], overwrite=overwrite, verify=verify, progress=progress)
        with job:
            copier = job.begin(0, readers[0], sum(len(reader) for reader in readers))
            for reader, table in zip(readers, tables, strict=True):
                renumber = None if table is None else (_LABEL, table)
                copier.copy_run(reader, 0, len(reader), renumber=renumber, progress=job.report)
            job.finish(metadata)
        return job.summary(started, classes, differing)


def split(
    path: PathLike,
    out: PathLike | Sequence[PathLike] | None = None,
    *,
    shards: int | None = None,
    shard_size: int | None = None,
    fractions: Sequence[float | str | Fraction] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    allow_incomplete: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> CopySummary:
    """Write the records of a file into several new ones; each is in one of them at most, and each keeps the order.

    Args:
        path: The file.
        out: What the new files are called: one name, of which `train.frec` stands for `train-00000-of-00004.frec` and
            so on; or a list of paths, one for each. By default made of `path`. With `names` the folder to write into,
            by default that of `path`.
        shards: Number of files; each holds a run of the records, and their numbers differ by one at most.
        shard_size: Size in bytes that no file shall exceed (unless one record alone does); runs, too.
        fractions: Share of the records that each file gets, chosen at random: the records that the parts of
            `FastRecordDataset.split(fractions, seed)` have. Less than 1 in all leaves records out.
        names: With `fractions`: what each file is called, such as ["train", "val"] for `train.frec` and `val.frec`.
            Such files are not shards of one data set, so their names are asked for, here or as paths in `out`.
        seed: Of the choice for `fractions`. Takes a byte a record.
        overwrite: Replace files that exist, at the end.
        allow_incomplete: Take a file, too, whose own import is under way or was stopped, or that is a shard of several.
        verify: Compare the checksum of each payload on the way.
        progress: Called with bytes done and bytes in all, now and then; an exception in it ends the split.

    Raises:
        ValueError: not one of `shards`, `shard_size` and `fractions`, one that is out of range, names of another
            number, or none for `fractions`.
        FastRecordError: more shards than records; shards of another division lie beside them; the file is incomplete.
        FileExistsError, LockedError, CorruptFileError, OSError, KeyboardInterrupt: as `merge`; none of the new files is
            left, and with `overwrite` the old ones are. They get their commits one right after the other when all is
            copied, and with `overwrite` take their places when all are durable, so all are open until then.
    """
    started = time.perf_counter()
    if sum(choice is not None for choice in (shards, shard_size, fractions)) != 1:
        raise ValueError("give one of shards, shard_size and fractions")
    for name, value in (("shards", shards), ("shard_size", shard_size)):
        if value is not None:
            check_count(name, value)
    if names is not None and fractions is None:
        raise ValueError("names go with fractions: shards are numbered")
    check_seed(seed)
    if fractions is not None:
        sizes_of(0, fractions)  # refused before a file is opened
        out = name_files(os.fspath(path), out, names, len(fractions))
    with open_source(path, allow_incomplete=allow_incomplete) as reader:
        if not allow_incomplete:
            check_together([reader], option=COMMANDS)
        if fractions is not None:
            ends = np.cumsum(sizes_of(len(reader), fractions)).tolist()
        elif shards is not None:
            if shards > len(reader):
                raise FastRecordError(
                    f"{reader.path}: {shards:,} shards of {len(reader):,} records: ask for fewer shards [FR720]"
                )
            ends = [len(reader) * (i + 1) // shards for i in range(shards)]
        else:
            ends = ends_by_size(reader, shard_size or 0)
        parts = name_parts(reader.path if out is None else out, ends)
        if fractions is None:
            parts = as_set(parts)
        chosen = None if fractions is None else choose(len(reader), ends, seed)
        job = Job([reader], [part.path for part in parts], overwrite=overwrite, verify=verify, progress=progress)
        with job:
            for number, part in enumerate(parts):
                copier = job.begin(number, reader, part.stop - part.start)
                if chosen is None:
                    copier.copy_run(reader, part.start, part.stop - part.start, progress=job.report)
                else:
                    for start in range(0, len(reader), ROWS):
                        rows = np.flatnonzero(chosen[start : start + ROWS] == number) + start
                        copier.copy_rows(reader, rows, progress=job.report)
                copier.settle()
            metadata = without_origin(reader.metadata)
            job.finish(*(metadata | ({} if part.shard is None else part.shard.entry()) for part in parts))
        return job.summary(started, class_names(reader), [])


def shuffle(
    path: PathLike,
    out: PathLike,
    seed: int = 0,
    *,
    overwrite: bool = False,
    allow_incomplete: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> CopySummary:
    """Write the records of a file in random order into a new one: read from its start to its end it is shuffled.

    For disks and network mounts that are slow at anything but reading on and on. Record i of the new file is record
    `permute(n, seed, epoch=0)[i]` of the old one, and its payloads lie in that order. Payloads are asked for ahead, and
    written one behind the other.

    Args:
        path: The file.
        out: File to write. It gets its commit, and so can be read, when all is copied.
        seed: Of the order, in [0, 2**64).
        overwrite: Replace `out` if it exists, at the end.
        allow_incomplete: Take a file, too, whose own import is under way or was stopped.
        verify: Compare the checksum of each payload on the way.
        progress: Called with bytes done and bytes in all, now and then; an exception in it ends the shuffle.

    Raises:
        FileExistsError, LockedError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt: as `merge`.
    """
    started = time.perf_counter()
    check_seed(seed)
    with open_source(path, allow_incomplete=allow_incomplete) as reader:
        job = Job([reader], [os.fspath(out)], overwrite=overwrite, verify=verify, progress=progress)
        with job:
            copier = job.begin(0, reader, len(reader))
            for positions in steps(len(reader)):
                copier.copy_rows(reader, permute(len(reader), seed, 0, positions), progress=job.report)
            job.finish(reader.metadata)
        return job.summary(started, class_names(reader), [])


def compact(
    path: PathLike,
    out: PathLike | None = None,
    *,
    overwrite: bool = False,
    allow_incomplete: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> CopySummary:
    """Write a file anew without what no record names: old directories and indexes, replaced columns, a torn tail.

    What is written has one commit and, where no record lacks a value, one chunk a column. It is another file to
    readers: those that have the old one open go on with it, and data sets pickled before refuse the new one.

    Args:
        path: The file.
        out: File to write. By default `path` itself: under another name beside it, whose place is taken at the end, so
            both need room; nobody can append meanwhile.
        overwrite: Replace `out` if it exists, at the end.
        allow_incomplete: Take a file, too, whose own import is under way or was stopped; it stays incomplete.
        verify: Compare the checksum of each payload on the way.
        progress: Called with bytes done and bytes in all, now and then; an exception in it ends it.

    Raises:
        LockedError: a writer has `path` open, and it was to be replaced.
        FileExistsError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt: as `merge`; `path` stays as it
            was.
    """
    started = time.perf_counter()
    with open_source(path, allow_incomplete=allow_incomplete) as reader:
        # The file, not a link to it, is what is replaced.
        target = os.path.realpath(path) if out is None else os.fspath(out)
        job = Job([reader], [target], overwrite=overwrite, verify=verify, progress=progress, in_place=out is None)
        with job:
            copier = job.begin(0, reader, len(reader))
            # What was committed before the lock was taken must not be lost.
            while out is None and reader.refresh():
                copier = job.begin(0, reader, len(reader))
            copier.copy_run(reader, 0, len(reader), progress=job.report)
            job.finish(reader.metadata, complete=reader.complete)
        summary = job.summary(started, class_names(reader), [])
        if out is None:
            summary.paths = [os.fspath(path)]
        return summary


def _check_fields(first: Reader, other: Reader) -> None:
    for one, two in ((first, other), (other, first)):
        for name in one.schema:
            if name not in two.schema:
                raise SchemaError(f"{two.path}: no field {name!r}, which {one.path} has [FR410]")
    for name, kind in first.schema.items():
        # How a field is compressed is said of each value.
        if replace(other.schema[name], compression=None) != replace(kind, compression=None):
            raise SchemaError(
                f"field {name!r} is {kind!r} in {first.path}, but {other.schema[name]!r} in {other.path} [FR410]"
            )


def _merge_metadata(readers: Sequence[Reader]) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata but for the classes, and the keys that are not the same in all files."""
    all_metadata = [reader.metadata for reader in readers]
    merged: dict[str, Any] = {}
    for metadata in all_metadata:
        for key, value in metadata.items():
            merged.setdefault(key, value)
    merged.pop("classes", None)
    merged = without_origin(merged)
    absent = object()
    differing = [key for key, value in merged.items() if any(m.get(key, absent) != value for m in all_metadata)]
    return merged, differing


def _merge_labels(readers: Sequence[Reader]) -> tuple[list[str] | None, list[NDArray[np.int64] | None]]:
    """Return all class names, and for each file the new number of each of its labels, or None if they stay."""
    none: list[NDArray[np.int64] | None] = [None] * len(readers)
    if all(class_names(reader) is None for reader in readers):
        return None, none
    classes, tables = merge_classes(readers)
    schema = readers[0].schema
    if _LABEL not in schema or schema[_LABEL].name == "string":  # a name means the same in all files
        return classes, none
    if schema[_LABEL].name == "int64":
        return classes, tables
    for reader, table in zip(readers, tables, strict=True):
        if table is None:
            continue
        if not np.array_equal(table, np.arange(len(table))):
            raise SchemaError(
                f"{reader.path}: its classes have other numbers than in {readers[0].path}, and only labels of type "
                f"int64 can be renumbered, not {schema[_LABEL]!r} [FR408]"
            )
        if holds_classes(schema[_LABEL]):
            map_labels(reader.column(_LABEL).astype(np.int64), table, reader.path)
    return classes, none
