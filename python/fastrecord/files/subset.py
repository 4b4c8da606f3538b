"""`select`: a new file of some records of a data set, copied as they are stored.

Decodes nothing, and changes no source.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastrecord.checks import integer
from fastrecord.dataset.selection import Selection
from fastrecord.dataset.shards import Paths, Shards
from fastrecord.dataset.where import find_matching
from fastrecord.errors import Code
from fastrecord.files.copy_job import CopySummary, Job, PathLike, Progress, steps
from fastrecord.files.division import name_parts
from fastrecord.files.rewrite import LABEL, check_same_fields, merge_labels, merge_metadata, name_shards
from fastrecord.files.shard_names import Part, as_set
from fastrecord.names import name_some
from fastrecord.schema.roles import KEY
from fastrecord.schema.shard_sets import COMMANDS, without_origin

if TYPE_CHECKING:
    from fastrecord.dataset.dataset import FastRecordDataset


def select(
    dataset: FastRecordDataset | Paths,
    out: PathLike,
    *,
    where: str | None = None,
    keys: Iterable[str] | None = None,
    drop_keys: Iterable[str] | None = None,
    shards: int | None = None,
    overwrite: bool = False,
    allow_incomplete: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> CopySummary:
    """Write the records of a data set, or some of them, into a new file, in their order.

    Payloads are copied as they are stored, with their checksums, compression and side bytes, and so
    are all fields, also those that the data set does not read. The classes are the data set's, and
    labels have its numbers. The new file of a single file keeps its metadata; of several files it
    gets what `merge` gives it.

    Args:
        dataset: A data set or a view of one; or paths, as for `FastRecordDataset`.
        out: File to write. It is committed, and becomes readable, when the copy is complete.
        where: Only records that meet this condition, such as `label == "cat" and image.width > 500`:
            comparisons (==, !=, <, <=, >, >=, in, not in) of fields with numbers, texts and names of
            classes, joined by and, or, not.
        keys: Only records with these values of the field `key`.
        drop_keys: Only records without these values of the field `key`.
        shards: Number of files, as for `split`; each holds a run of the records. Default: one file.
        overwrite: Replace existing outputs once all is copied. Old and new files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets,
            and files together with files made from them.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels
            the copy.

    Raises:
        SchemaError: the condition cannot be parsed, a field does not exist, or the files differ in
            their fields; labels cannot be renumbered.
        FastRecordError: no record has a key of `keys` or `drop_keys` (names them); more shards than
            records; a file is `out` itself.
        FileExistsError, LockedError, CorruptFileError, OSError, KeyboardInterrupt: as `merge`.

    After an error no new file is left, and with `overwrite` the old files stay.
    """
    started = time.perf_counter()
    if shards is not None:
        integer("shards", shards, 1)
    with _opened(dataset, allow_incomplete=allow_incomplete) as selection:
        if where is not None:
            selection = find_matching(selection, where)
        for chosen, op in ((keys, "in"), (drop_keys, "not in")):
            if chosen is not None:
                selection = _with_keys(selection, chosen, op)
        return _write(selection, os.fspath(out), shards, started, overwrite=overwrite, verify=verify, progress=progress)


@contextmanager
def _opened(dataset: FastRecordDataset | Paths, *, allow_incomplete: bool) -> Iterator[Selection]:
    selection = getattr(dataset, "selection", None)
    if isinstance(selection, Selection):
        if allow_incomplete:
            raise ValueError("allow_incomplete belongs to paths: a data set has its own")
        yield selection
        return
    files = Shards.open(dataset, allow_incomplete=allow_incomplete)  # type: ignore[arg-type]
    try:
        if not allow_incomplete:
            files.refuse_incomplete(COMMANDS)
        yield Selection.whole(files)
    finally:
        files.close()


def _with_keys(selection: Selection, keys: Iterable[str], op: str) -> Selection:
    """Return the records that have, or do not have, one of some keys."""
    if isinstance(keys, str):
        raise TypeError(f"keys are a collection of strings, not one: {keys!r:.80}")
    wanted = set(keys)
    mask = selection.mask(KEY, "in", wanted)
    if unknown := wanted.difference(selection.subset(mask).column(KEY).tolist()):
        raise Code.NOTHING_FOUND.error(
            f"{selection.shards.paths[0]}: no record has the key {name_some(sorted(unknown))}: "
            f"{len(unknown):,} of the {len(wanted):,} keys are not in the data set"
        )
    return selection.subset(mask if op == "in" else ~mask)


def _write(
    selection: Selection,
    out: str,
    shards: int | None,
    started: float,
    *,
    overwrite: bool,
    verify: bool,
    progress: Progress | None,
) -> CopySummary:
    total, files = len(selection), selection.shards
    if (shards or 1) > max(total, 1):
        raise Code.TOO_MANY_SHARDS.error(f"{out}: {shards:,} shards of {total:,} records: ask for fewer shards")
    parts = [Part(out, 0, total)]
    if shards is not None:
        parts = as_set(name_parts(out, [total * (i + 1) // shards for i in range(shards)]))
    used = _used(selection) or [0]
    readers = [files.readers[shard] for shard in used]
    for reader in readers[1:]:
        check_same_fields(readers[0], reader)
    lists = files.class_lists()
    labels = selection.labels
    known = labels.classes if labels.given is not None or None not in lists else None
    label = selection.label_field or LABEL
    classes, tables = merge_labels(readers, label, known)
    numbered = dict(zip(used, tables, strict=True))
    metadata, differing = (readers[0].metadata, []) if len(lists) == 1 else merge_metadata(readers)
    if classes is not None:
        metadata["classes"] = classes
    job = Job(readers, [part.path for part in parts], overwrite=overwrite, verify=verify, progress=progress)
    job.total = job.total * total // max(sum(map(len, readers)), 1)
    with job:
        for number, part in enumerate(parts):
            copier = job.begin(number, readers[0], part.stop - part.start)
            for positions in steps(part.stop - part.start):
                rows = selection.take(positions + part.start)
                for shard, records in _runs(files, rows):
                    table = numbered[shard]
                    renumber = None if table is None else (label, table)
                    copier.copy_rows(files.readers[shard], records, renumber=renumber, progress=job.report)
            copier.settle()
        shared = metadata if shards is None else without_origin(metadata)
        job.finish(*(shared | ({} if part.shard is None else part.shard.entry()) for part in parts))
    summary = job.summary(started, classes, differing)
    if shards is not None:
        name_shards(summary)
    return summary


def _used(selection: Selection) -> list[int]:
    """Return the positions of the files that have some of the records."""
    seen = np.zeros(len(selection.shards.ends), np.bool_)
    for positions in steps(len(selection)):
        seen[np.searchsorted(selection.shards.ends, selection.take(positions), side="right")] = True
    return [int(shard) for shard in np.flatnonzero(seen)]


def _runs(files: Shards, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield stretches of rows that one file has: its position, and the numbers of its records."""
    shards = np.searchsorted(files.ends, rows, side="right")
    for stretch in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(shards)) + 1):
        shard = int(shards[stretch[0]])
        yield shard, rows[stretch] - (int(files.ends[shard - 1]) if shard else 0)
