"""`merge`, `split`, `shuffle`, `compact`: new files from the records of others.

Payloads are copied, never decoded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fastrecord._core import FastRecordError, Reader, permute
from fastrecord.checks import WORD, integer
from fastrecord.errors import Code
from fastrecord.files.copy_job import ROWS, CopySummary, Job, PathLike, Progress, open_source, steps
from fastrecord.files.division import choose, ends_by_size, name_files, name_parts, sizes_of
from fastrecord.files.manifest import name_new_shards
from fastrecord.files.shard_names import as_set
from fastrecord.schema.classes import class_names, map_labels, merge_classes
from fastrecord.schema.roles import holds_classes
from fastrecord.schema.shard_sets import COMMANDS, check_together, without_origin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL = "label"


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

    Classes are matched by name. The first file's classes keep their numbers, new names of later
    files get the next numbers, and the int64 field `label` is renumbered. Other metadata is kept if
    it is the same in all files. If it differs, the first file with the key provides the value, and
    the summary lists the key.

    Args:
        paths: The files, at least one; a file may come twice. They have the same fields (names and
            types); the new file has them in the order of the first file.
        out: File to write. It is committed, and becomes readable, when the copy is complete.
        overwrite: Replace existing outputs once all is copied. Old and new files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets,
            and files together with files made from them.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the merge.

    Raises:
        SchemaError: the files differ in their fields, or only some of them have class names; names
            both files. A label has no class in its own file, and would get another file's class.
        FileExistsError: `out` exists.
        LockedError: `out` is being written.
        CorruptFileError: a file is damaged.
        FastRecordError: a file is incomplete, or is `out` itself; shards are missing.
        OSError: reading or writing failed.
        KeyboardInterrupt: Ctrl-C.

    After an error `out` is as it was before.
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"paths is a sequence of files, not one path: {os.fspath(paths)!r}")
    started = time.perf_counter()
    with ExitStack() as stack:
        readers = [stack.enter_context(open_source(path, allow_incomplete=allow_incomplete)) for path in paths]
        if not readers:
            raise ValueError("paths is a sequence of at least one file, not an empty one")
        if not allow_incomplete:
            check_together(readers, option=COMMANDS)
        for reader in readers[1:]:
            check_same_fields(readers[0], reader)
        metadata, differing = merge_metadata(readers)
        classes, tables = merge_labels(readers, LABEL)
        if classes is not None:
            metadata["classes"] = classes
        job = Job(readers, [os.fspath(out)], overwrite=overwrite, verify=verify, progress=progress)
        with job:
            copier = job.begin(0, readers[0], sum(len(reader) for reader in readers))
            for reader, table in zip(readers, tables, strict=True):
                renumber = None if table is None else (LABEL, table)
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
    """Write the records of a file into several new files, in order and each at most once.

    Args:
        path: The file.
        out: Names of the new files. One name such as `train.frec` stands for
            `train-00000-of-00004.frec` and so on; a list has a path for each. By default derived
            from `path`. With `names`: the folder to write into, by default the folder of `path`.
        shards: Number of files; each holds a run of the records, and their numbers of records
            differ by at most one. The folder's `dataset.json` then names them, unless other .frec
            files lie there (docs/manifest.md).
        shard_size: Maximum size of a file in bytes (unless a single record is larger); each file
            holds a run of the records.
        fractions: Share of the records of each file, chosen at random: the records of the parts of
            `FastRecordDataset.split(fractions, seed)`. A sum below 1 leaves records out.
        names: With `fractions`: name of each file, such as train and val for `train.frec` and
            `val.frec`. Such files are not shards of one data set, so names are required, here or as
            paths of the outputs.
        seed: Seed of the choice for `fractions`, which takes a byte of memory a record.
        overwrite: Replace existing outputs once all is copied. Old and new files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets,
            and files together with files made from them.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the split.

    Raises:
        ValueError: not exactly one of `shards`, `shard_size` and `fractions` is given, or it is out
            of range; the number of names is wrong, or `fractions` has no names.
        FastRecordError: more shards than records; shards of another division exist there; the file
            is incomplete.
        FileExistsError, LockedError, CorruptFileError, OSError, KeyboardInterrupt: as `merge`.

    After an error no new file is left, and with `overwrite` the old files stay. The files are
    committed one right after the other when the copy is complete. With `overwrite` they replace the
    old files when all are durable, so all are open until then.
    """
    started = time.perf_counter()
    if sum(choice is not None for choice in (shards, shard_size, fractions)) != 1:
        raise ValueError("give one of shards, shard_size and fractions")
    for name, value in (("shards", shards), ("shard_size", shard_size)):
        if value is not None:
            integer(name, value, 1)
    if names is not None and fractions is None:
        raise ValueError("names belong to fractions: shards are numbered")
    integer("seed", seed, 0, WORD)
    if fractions is not None:
        sizes_of(0, fractions)  # refused before a file is opened
        out = name_files(os.fspath(path), out, names, len(fractions))
    with open_source(path, allow_incomplete=allow_incomplete) as reader:
        if not allow_incomplete:
            check_together([reader], option=COMMANDS)
        if fractions is not None:
            ends = list(accumulate(sizes_of(len(reader), fractions)))
        elif shards is not None:
            if shards > len(reader):
                raise Code.TOO_MANY_SHARDS.error(
                    f"{reader.path}: {shards:,} shards of {len(reader):,} records: ask for fewer shards"
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
                        rows = (chosen[start : start + ROWS] == number).nonzero()[0] + start
                        copier.copy_rows(reader, rows, progress=job.report)
                copier.settle()
            metadata = without_origin(reader.metadata)
            job.finish(*(metadata | ({} if part.shard is None else part.shard.entry()) for part in parts))
        summary = job.summary(started, class_names(reader), [])
    if fractions is None:
        name_shards(summary)
    return summary


def name_shards(summary: CopySummary, *, only_renew: bool = False) -> None:
    """Make the manifest of the folder name new shards."""
    try:
        new = name_new_shards(summary.paths, only_renew=only_renew)
    except (FastRecordError, OSError) as err:
        err.add_note(f"{summary.paths[0]}: all records are written; only the manifest of the folder is as before")
        raise
    if new is not None:
        summary.manifest, summary.not_named = new.manifest, new.left


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
    """Write the records of a file in random order into a new one, which then reads sequentially.

    For disks and network mounts that are slow at random reads. Record i of the new file is record
    `permute(n, seed, epoch=0)[i]` of the old one, and its payloads are stored in that order. The
    source's payloads are prefetched, and the output is written sequentially.

    Args:
        path: The file.
        out: File to write. It is committed, and becomes readable, when the copy is complete.
        seed: Seed of the order, in [0, 2**64).
        overwrite: Replace existing outputs once all is copied. Old and new files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets,
            and files together with files made from them.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the shuffle.

    Raises:
        FileExistsError, LockedError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt:
            as `merge`.
    """
    started = time.perf_counter()
    integer("seed", seed, 0, WORD)
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
    """Rewrite a file without unused bytes.

    These are old directories and indexes, replaced columns, and a torn tail.

    The new file has one commit and, for columns without missing values, one chunk a column. To
    readers it is another file: open readers continue with the old one, and data sets pickled before
    refuse the new one.

    Args:
        path: The file.
        out: File to write. Default: `path` itself. The new file is then written beside it under
            another name and replaces it at the end, so there must be space for both; appending is
            refused meanwhile.
        overwrite: Replace existing outputs once all is copied. Old and new files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets,
            and files together with files made from them.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the operation.

    Raises:
        LockedError: a writer has `path` open, and `path` is to be replaced.
        FileExistsError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt: as `merge`;
            `path` is unchanged.
    """
    started = time.perf_counter()
    with open_source(path, allow_incomplete=allow_incomplete) as reader:
        # Replace the file, not a link to it.
        target = os.path.realpath(path) if out is None else os.fspath(out)
        job = Job([reader], [target], overwrite=overwrite, verify=verify, progress=progress, in_place=out is None)
        with job:
            copier = job.begin(0, reader, len(reader))
            # Commits made before the lock was taken must not be lost.
            while out is None and reader.refresh():
                copier = job.begin(0, reader, len(reader))
            copier.copy_run(reader, 0, len(reader), progress=job.report)
            job.finish(reader.metadata, complete=reader.complete)
        summary = job.summary(started, class_names(reader), [])
        if out is None:
            summary.paths = [os.fspath(path)]
            name_shards(summary, only_renew=True)
        return summary


def check_same_fields(first: Reader, other: Reader) -> None:
    """Refuse files that differ in the names or types of their fields."""
    for one, two in ((first, other), (other, first)):
        for name in one.schema:
            if name not in two.schema:
                raise Code.FIELDS_DIFFER.error(f"{two.path}: no field {name!r}, which {one.path} has")
    for name, kind in first.schema.items():
        # The compression of a field is stored with each value.
        if replace(other.schema[name], compression=None) != replace(kind, compression=None):
            raise Code.FIELDS_DIFFER.error(
                f"field {name!r} is {kind!r} in {first.path}, but {other.schema[name]!r} in {other.path}"
            )


def merge_metadata(readers: Sequence[Reader]) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata without the classes, and the keys whose values differ between files."""
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


def merge_labels(
    readers: Sequence[Reader], label: str, given: Sequence[str] | None = None
) -> tuple[list[str] | None, list[NDArray[np.int64] | None]]:
    """Return all class names, and each file's table of new numbers for a field (None if unchanged).

    Args:
        readers: The files.
        label: The field.
        given: The names of all classes, if they are not those of the files.
    """
    none: list[NDArray[np.int64] | None] = [None] * len(readers)
    if given is None and all(class_names(reader) is None for reader in readers):
        return None, none
    classes, tables = merge_classes(readers, given)
    schema = readers[0].schema
    # a name means the same in all files
    if label not in schema or schema[label].name == "string":
        return classes, none
    if schema[label].name == "int64":
        return classes, tables
    import numpy as np

    for reader, table in zip(readers, tables, strict=True):
        if table is None:
            continue
        if not np.array_equal(table, np.arange(len(table))):
            raise Code.FIELD_TYPE.error(
                f"{reader.path}: its classes have other numbers than in {readers[0].path}, and only labels of type "
                f"int64 can be renumbered, not {schema[label]!r}"
            )
        if holds_classes(schema[label]):
            map_labels(reader.column(label).astype(np.int64), table, reader.path)
    return classes, none
