"""`merge`, `split`, `shuffle`, `select`, `compact`: new files from the records of others.

Payloads are copied, never decoded, and no source changes. `merge` and `compact` can store images in the
other form.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Unpack

from fastrecord._core import Reader, permute, stored_bytes
from fastrecord.checks import WORD, integer
from fastrecord.errors import Code
from fastrecord.files.copy_job import ROWS, Converting, Copying, Job, RewriteSummary, opened, steps
from fastrecord.files.division import (
    FILE_BYTES,
    Part,
    PathLike,
    as_set,
    ends_by_size,
    even_ends,
    name_files,
    parts_of,
    refuse_strays,
    sizes_of,
)
from fastrecord.files.merging import LABEL, check_same_fields, merge_labels, merge_metadata
from fastrecord.names import name_some
from fastrecord.schema.classes import class_names
from fastrecord.schema.roles import KEY
from fastrecord.schema.shard_sets import COMMANDS, without_origin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastrecord.dataset.dataset import FastRecordDataset
    from fastrecord.dataset.selection import Selection
    from fastrecord.dataset.shards import Paths, Shards
    from fastrecord.files.copy_job import Piece


def merge(paths: Iterable[PathLike], out: PathLike, **options: Unpack[Converting]) -> RewriteSummary:
    """Write the records of several files, one file after the other, into a new one.

    Classes are matched by name. The first file's classes keep their numbers, new names of later
    files get the next numbers, and the int64 field `label` is renumbered. Other metadata is kept if
    it is the same in all files. If it differs, the first file with the key provides the value, and
    the summary lists the key.

    Args:
        paths: The files, in order. They need the same fields, in any order; a field may be
            compressed in one file and not in another.
        out: File to write. It is committed, and becomes readable, when the copy is complete.
        options: As in `Converting`.

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
    with opened(paths, **options) as readers:
        if not readers:
            raise ValueError("paths is a sequence of at least one file, not an empty one")
        metadata, differing = merge_metadata(readers)
        classes, tables = merge_labels(readers, LABEL)
        job = Job(readers, [Part(os.fspath(out), 0, sum(map(len, readers)))], **options)
        pieces = [
            (reader, range(len(reader)), None if table is None else (LABEL, table))
            for reader, table in zip(readers, tables, strict=True)
        ]
        summary = job.run(lambda _: pieces, metadata, classes)
        summary.differing = differing
        return summary


def split(
    path: PathLike,
    out: PathLike | Sequence[PathLike] | None = None,
    *,
    shards: int | None = None,
    shard_size: int | None = None,
    fractions: Sequence[float | str | Fraction] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    **options: Unpack[Copying],
) -> RewriteSummary:
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
        fractions: Share of the records of each file, such as 0.9, 0.1, chosen at random: the records of
            the parts of `FastRecordDataset.split(fractions, seed)`. A sum below 1 leaves records out.
        names: With `fractions`: name of each file, such as train and val for `train.frec` and
            `val.frec`. Such files are not shards of one data set, so names are required, here or as
            paths of the outputs.
        seed: Seed of the choice for `fractions`, which takes a byte of memory a record.
        options: As in `Copying`.

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
    with opened([path], **options) as (reader,):
        if fractions is not None:
            ends = list(accumulate(sizes_of(len(reader), fractions)))
        elif shards is not None:
            ends = even_ends(len(reader), shards, reader.path)
        else:
            # Up to a thousandth of a long run may be padding to pages.
            limit = (shard_size or 0) - (shard_size or 0) // 1000
            ends = ends_by_size(_sizes(reader), limit, FILE_BYTES + len(repr(reader.metadata).encode()))
        target = reader.path if out is None else out
        parts = parts_of(target, ends)
        if isinstance(target, (str, os.PathLike)):
            refuse_strays(os.fspath(target), parts)
        chosen = None if fractions is None else _choose(len(reader), ends, seed)
        parts = as_set(parts) if chosen is None else parts

        def pieces(part: Part) -> Iterator[Piece]:
            if chosen is None:
                yield reader, range(part.start, part.stop), None
                return
            number = parts.index(part)
            for start in range(0, len(reader), ROWS):
                yield reader, (chosen[start : start + ROWS] == number).nonzero()[0] + start, None

        job = Job([reader], parts, **options)
        return job.run(pieces, without_origin(reader.metadata), class_names(reader))


def shuffle(path: PathLike, out: PathLike, seed: int = 0, **options: Unpack[Copying]) -> RewriteSummary:
    """Write the records of a file in random order into a new one, which then reads sequentially.

    For disks and network mounts that are slow at random reads. Record i of the new file is record
    `permute(n, seed, epoch=0)[i]` of the old one, and its payloads are stored in that order. The
    source's payloads are prefetched, and the output is written sequentially.

    Args:
        path: The file.
        out: File to write. It is committed, and becomes readable, when the copy is complete.
        seed: Seed of the order, in [0, 2**64).
        options: As in `Copying`.

    Raises:
        FileExistsError, LockedError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt:
            as `merge`.
    """
    integer("seed", seed, 0, WORD)
    with opened([path], whole=False, **options) as (reader,):
        count = len(reader)
        job = Job([reader], [Part(os.fspath(out), 0, count)], **options)
        order = ((reader, permute(count, seed, 0, positions), None) for positions in steps(count))
        return job.run(lambda _: order, reader.metadata, class_names(reader))


def compact(path: PathLike, out: PathLike | None = None, **options: Unpack[Converting]) -> RewriteSummary:
    """Rewrite a file without unused bytes, or with its images in another form.

    Unused bytes are old directories and indexes, replaced columns, and a torn tail.

    The new file has one commit and, for columns without missing values, one chunk a column. To
    readers it is another file: open readers continue with the old one, and data sets pickled before
    refuse the new one.

    Args:
        path: The file. It stays incomplete if its packing is.
        out: File to write. Default: `path` itself. The new file is then written beside it under
            another name and replaces it at the end, so there must be space for both; appending is
            refused meanwhile.
        options: As in `Converting`.

    Raises:
        LockedError: a writer has `path` open, and `path` is to be replaced.
        FileExistsError, CorruptFileError, FastRecordError, OSError, KeyboardInterrupt: as `merge`;
            `path` is unchanged.
    """
    with opened([path], whole=False, **options) as (reader,):
        # Replace the file, not a link to it.
        target = os.path.realpath(path) if out is None else os.fspath(out)
        job = Job([reader], [Part(target, 0, len(reader))], in_place=out is None, **options)
        job.paths = [os.fspath(path if out is None else out)]
        return job.run(
            lambda _: [(reader, range(len(reader)), None)],
            reader.metadata,
            class_names(reader),
            complete=reader.complete,
        )


def select(
    dataset: FastRecordDataset | Paths,
    out: PathLike,
    *,
    where: str | None = None,
    keys: Iterable[str] | None = None,
    drop_keys: Iterable[str] | None = None,
    shards: int | None = None,
    **options: Unpack[Copying],
) -> RewriteSummary:
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
        options: As in `Copying`; `allow_incomplete` is for paths. A lone shard stays a shard of its set.

    Raises:
        SchemaError: the condition cannot be parsed, a field does not exist, or the files differ in
            their fields; labels cannot be renumbered.
        FastRecordError: no record has a key of `keys` or `drop_keys` (names them); no record meets
            the conditions; more shards than records; a file is `out` itself.
        FileExistsError, LockedError, CorruptFileError, OSError, KeyboardInterrupt: as `merge`.

    After an error no new file is left, and with `overwrite` the old files stay.
    """
    path = os.fspath(out)
    if shards is not None:
        integer("shards", shards, 1)
    with _selected(dataset, allow_incomplete=options.get("allow_incomplete", False)) as selection:
        if where is not None:
            from fastrecord.dataset.where import find_matching

            selection = find_matching(selection, where)
        for wanted, op in ((keys, "in"), (drop_keys, "not in")):
            if wanted is not None:
                selection = _with_keys(selection, wanted, op)
        files, total = selection.shards, len(selection)
        if not total and (where, keys, drop_keys) != (None, None, None):
            raise Code.NOTHING_FOUND.error(f"{files.paths[0]}: no record meets the conditions: nothing is written")
        parts = [Part(path, 0, total)]
        if shards is not None:
            parts = as_set(parts_of(path, even_ends(total, shards, path)))
            refuse_strays(path, parts)
        used = _used(selection) or [0]
        readers = [files.readers[shard] for shard in used]
        for reader in readers[1:]:
            check_same_fields(readers[0], reader)
        lists, labels = files.class_lists(), selection.labels
        known = labels.classes if labels.given is not None or None not in lists else None
        label = selection.label_field or LABEL
        classes, tables = merge_labels(readers, label, known)
        numbered = {shard: None if table is None else (label, table) for shard, table in zip(used, tables, strict=True)}
        metadata, differing = (readers[0].metadata, []) if len(lists) == 1 else merge_metadata(readers)

        def pieces(part: Part) -> Iterator[Piece]:
            for positions in steps(part.stop - part.start):
                for shard, records in _runs(files, selection.take(positions + part.start)):
                    yield files.readers[shard], records, numbered[shard]

        job = Job(readers, parts, **options)
        summary = job.run(pieces, metadata if shards is None else without_origin(metadata), classes)
        summary.differing = differing
        return summary


def _sizes(reader: Reader) -> Iterator[int]:
    """Yield how many bytes each record of a file takes."""
    for positions in steps(len(reader)):
        yield from stored_bytes(reader, int(positions[0]), len(positions)).tolist()


def _choose(n: int, ends: Sequence[int], seed: int) -> NDArray[np.uint8]:
    """Return the number of each record's file; omitted records get the number of files."""
    import numpy as np

    from fastrecord.dataset.split import split_order

    chosen = np.empty(n, np.min_scalar_type(len(ends)))
    for positions in steps(n):
        chosen[split_order(n, seed, positions)] = np.searchsorted(ends, positions, side="right")
    return chosen


@contextmanager
def _selected(dataset: FastRecordDataset | Paths, *, allow_incomplete: bool) -> Iterator[Selection]:
    from fastrecord.dataset.selection import Selection
    from fastrecord.dataset.shards import Shards

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


def _used(selection: Selection) -> list[int]:
    """Return the positions of the files that have some of the records."""
    import numpy as np

    seen = np.zeros(len(selection.shards.ends), np.bool_)
    for positions in steps(len(selection)):
        seen[np.searchsorted(selection.shards.ends, selection.take(positions), side="right")] = True
    return [int(shard) for shard in np.flatnonzero(seen)]


def _runs(files: Shards, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield stretches of rows that one file has: its position, and the numbers of its records."""
    import numpy as np

    shards = np.searchsorted(files.ends, rows, side="right")
    for stretch in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(shards)) + 1):
        shard = int(shards[stretch[0]])
        yield shard, rows[stretch] - (int(files.ends[shard - 1]) if shard else 0)
