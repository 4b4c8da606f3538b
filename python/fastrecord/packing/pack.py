"""`pack`: the records of a source into one file or several."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from fastrecord._core import Reader
from fastrecord.checks import choice
from fastrecord.errors import Code
from fastrecord.interchange.format import Format
from fastrecord.interchange.registry import load, recognise
from fastrecord.interchange.source import Source
from fastrecord.interchange.stored import is_stored, located
from fastrecord.packing.fields import convert, plan_fields, source_names
from fastrecord.packing.job import Job, Known
from fastrecord.packing.options import BadFiles, Fields, Input, Mode, Output, PathLike
from fastrecord.packing.packer import Packer
from fastrecord.packing.summary import PackProgress, PackSummary
from fastrecord.packing.target import resumes_append
from fastrecord.recode import Recode
from fastrecord.schema import FieldType
from fastrecord.schema.classes import class_names
from fastrecord.store import is_url
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.files.publish.upload import Upload

_Report = Callable[[PackProgress], None]
_SHOWN = 3


def pack(
    source: Any,
    out: PathLike,
    *,
    fields: Fields = Fields(),
    recode: Recode = Recode(),
    output: Output = Output(),
    bad_files: BadFiles = "stop",
    progress: _Report | None = None,
) -> PackSummary:
    """Store the records of a source in one file, or in shards: images, or any recognised format.

    A folder with one sub-folder per class is packed in the order of `torchvision.datasets.ImageFolder`:
    a record has an image, byte for byte unless `recode` requests changes, a label (int64), and a key,
    its path in the folder. docs/formats.md has the other formats, and what each comes in as. Records
    keep the order of the source. A field "label" of names is stored as int64, numbered by sorted name;
    the names become the file's classes. Before its last commit a file has `complete: false`.

    The items of a data set of torch or Hugging Face, or of any iterable, are dicts, tuples or lists,
    named tuples, dataclasses, or single values. Images of Pillow are encoded, arrays and tensors become
    array fields, with open dimensions if the first 64 items differ in shape. Names of classes
    (`dataset.classes`, or a ClassLabel) become the file's classes if there is an integer field "label".

    Args:
        source: A path or URL, several of them, or a data set; or an `Input`, which names its format
            and settings.
        out: File to write. With shards, `train.frec` stands for `train-00000-of-00004.frec` and so
            on. Or a URL: the folder of a data set in an object store, or one .frec file
            (docs/stores.md).
        fields: Which fields are stored, and as what.
        recode: How images are stored.
        output: How many files, and what happens to existing ones.
        bad_files: "stop": a file that is not an image, or a record that cannot be read, ends the pack.
            "skip": it is left out, and listed in the summary and under "skipped" in the metadata.
        progress: Called a few times a second; an exception in it ends the pack.

    Raises:
        TypeError, ValueError: options contradict each other, or items have no field type.
        FileExistsError: `out` exists, with the mode "create".
        FileNotFoundError: it does not exist, with the mode "append".
        LockedError: another process writes to `out`.
        FastRecordError: the source, a record of it, or `out` is not valid for this pack; the message
            has the name and the way out.
        OSError: reading or writing failed. A file without any commit is removed; else it stays at its
            last commit.
        KeyboardInterrupt: Ctrl-C. The packed records are committed (or dropped, if they were to
            replace a file), and the mode "resume" continues after them. A second Ctrl-C does not wait
            for the commit: the file stays at its previous commit.
        What a data set raises is raised as it is.
    """
    started = time.perf_counter()
    choice("bad_files", bad_files, get_args(BadFiles))
    given, path = source if isinstance(source, Input) else Input(source), os.fspath(out)
    skip = bad_files == "skip"
    output.check(path)
    if output.mode == "append" and fields.classes_from is not None:
        raise ValueError("with append the file keeps its own classes: leave out classes_from")
    if output.shard_size is not None and (recode.changes or fields.compression is not None):
        raise ValueError("changed images and compressed values have no known size before: give shards, not shard_size")
    with (
        destination(path, output) as (target, mode, upload),
        open_source(given, fields, exact=output.shards is not None, skip=skip) as found,
    ):
        found.refuse_output(target)
        known, stored = _known(target, output, fields, upload)

        def report(done: int) -> None:
            if progress is not None:
                progress(PackProgress(done, found.count(), 0, "sizes"))

        found.prepare(stored if output.mode == "append" else None, skip=skip, progress=report)
        job = Job.of(found, fields, recode, known, bad_files)
        parts = job.parts(target, output, upload)
        summary = Packer(job, output.commit_bytes, progress, upload).run(parts, target, mode)
    if hasattr(found, "empty_classes"):
        summary.empty_classes = found.empty_classes({key for key, _ in summary.skipped})
    summary.format, summary.recognised = found.format, found.why or None
    summary.left_out = list(found.left_out)
    summary.seconds = time.perf_counter() - started
    return summary


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pack would store, as `preview` returns it.

    Attributes:
        format: Name of the format.
        why: Why the source was taken for it; empty if the caller named it.
        fields: For each field its name, its type, its name in the source, and what it is there.
        records: Number of records, or None if it is not known without reading them all.
        classes: Number of class names; None if labels have no names.
        first: The first good records.
        numbers: Their numbers in the source.
        bad: Number in the source -> why the record is bad, up to the last of the first records.
        nulls: Name of a field -> number of nulls in it, where it is known without reading all records.
        left_out: What the source holds and does not give, and why.
    """

    format: str
    why: str
    fields: list[tuple[str, FieldType, str, str]]
    records: int | None
    classes: int | None
    first: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    left_out: Sequence[str] = ()


def preview(source: Any, *, fields: Fields = Fields(), bad_files: BadFiles = "stop", records: int = _SHOWN) -> Preview:
    """Return what `pack` would store, and write nothing.

    Args:
        source: As for `pack`, as are the others.
        fields: Likewise.
        bad_files: Likewise.
        records: Number of records to return.

    Raises:
        As `pack` does.
    """
    given, skip = source if isinstance(source, Input) else Input(source), bad_files == "skip"
    with open_source(given, fields, exact=False, skip=skip) as found:
        found.prepare(None, skip=skip, progress=lambda _: None)
        chosen = plan_fields(found, fields.names, fields.parsed, fill=fields.fill)
        first: list[dict[str, Any]] = []
        numbers: list[int] = []
        bad: dict[int, str] = {}
        for rows in found.read(0, source_names(chosen)):
            columns, unfit = convert(chosen, rows)
            wrong = {**rows.bad, **unfit}
            good = [i for i, number in enumerate(rows.numbers) if number not in wrong][: records - len(first)]
            first += [{name: values[i] for name, values in columns.items()} for i in good]
            numbers += [rows.numbers[i] for i in good]
            bad |= wrong
            if len(first) >= records:
                break
        bad = {number: reason for number, reason in sorted(bad.items()) if not numbers or number < numbers[-1]}
        described = [(planned.name, planned.type, planned.source.name, planned.source.origin) for planned in chosen]
        known = found.class_names()
        nulls = {planned.name: count for planned in chosen if (count := found.nulls().get(planned.source.name))}
        classes = None if known is None else len(known)
        return Preview(
            found.format, found.why, described, found.count(), classes, first, numbers, bad, nulls, found.left_out
        )


@contextmanager
def open_source(given: Input, fields: Fields, *, exact: bool, skip: bool) -> Iterator[Source]:
    """Open a source.

    Args:
        given: What the caller has given.
        fields: The fields to store.
        exact: Whether the number of its records must be right from the beginning.
        skip: Whether bad records are left out.
    """
    named = given.paths
    if named is None or given.format == "dataset":
        from fastrecord.packing.datasets import open_dataset

        with open_dataset(given, fields, exact=exact, skip=skip) as source:
            source.where, source.format = type(given.source).__name__, "dataset"
            yield source
        return
    located_at = [located(Url(path), given.store) for path in named]
    paths: str | list[str] = located_at[0] if len(located_at) == 1 else located_at
    found, why = _recognised(paths) if given.format == "auto" else (load(given.format), "")
    if not found.stored and any(map(is_stored, located_at)):
        raise Code.SOURCE.error(
            f"{located_at[0]}: {found.title} is read from files of this machine: copy it here first"
        )
    settings = found.check_settings(given.settings)
    with found.open(paths, settings) as source:
        source.where, source.format, source.why = located_at[0], found.name, why
        source.recorded = {name: value for name, value in settings.items() if found.settings[name].recorded}
        yield source


def _recognised(paths: str | list[str]) -> tuple[Format, str]:
    try:
        return recognise(paths)
    except FileNotFoundError:
        if not str(paths).endswith("/"):
            raise
        return load("folder"), "it holds no files, only folders"


@contextmanager
def destination(out: str, output: Output) -> Iterator[tuple[str, Mode, Upload | None]]:
    """Yield the path to pack to, what to do with files there, and the way to a store if `out` is a URL.

    Raises:
        FileExistsError, FastRecordError: as `Upload`.
    """
    if not is_url(out):
        yield out, output.mode, None
        return
    from fastrecord.files.publish.upload import Upload

    with Upload(out, output.mode, sharded=output.sharded, staging=output.staging, store=output.store) as upload:
        yield upload.base, "resume", upload


def _known(out: str, output: Output, fields: Fields, upload: Upload | None) -> tuple[Known, Mapping[str, Any] | None]:
    """Return the classes that keep their numbers, and the metadata of what records are added to."""
    stored: Mapping[str, Any] | None = None
    if upload is not None:
        if output.mode == "append":
            stored = upload.metadata()
        if upload.classes is not None:
            return Known(upload.classes, upload.url, extend=True), stored
    elif output.mode == "append" or (output.mode == "resume" and resumes_append(out)):
        with Reader(out) as reader:
            names, stored = class_names(reader), reader.metadata
            return Known(names, out, extend=True, labelled=names is None and bool(len(reader))), stored
    return known_classes(fields), stored


def known_classes(fields: Fields) -> Known:
    """Return the classes of `Fields.classes_from`.

    Raises:
        SchemaError: the file has no class names.
    """
    if fields.classes_from is None:
        return Known()
    where = os.fspath(fields.classes_from)
    with Reader(where) as reader:
        names = class_names(reader)
    if names is None:
        raise Code.NO_CLASSES.error(f"{where}: the file names no classes, so they cannot be taken from it")
    return Known(names, where)
