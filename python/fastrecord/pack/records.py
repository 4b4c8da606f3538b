"""`import_records`: stores the records of another format."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastrecord._core import FastRecordError, Reader
from fastrecord.errors import Code
from fastrecord.files.shard_names import Part
from fastrecord.interchange import Source
from fastrecord.interchange.format import Format
from fastrecord.interchange.registry import load, recognise
from fastrecord.interchange.source import value_bytes
from fastrecord.interchange.stored import is_stored, located
from fastrecord.names import name_some
from fastrecord.pack.division import ends_by_size, even_ends, parts_of
from fastrecord.pack.fields import LABEL, PlannedField, number_labels, plan_fields, schema_of
from fastrecord.pack.output import (
    NEVER,
    Target,
    check_schema,
    class_table,
    create,
    last_pack,
    other_input,
    removed_without_commit,
    reopen,
)
from fastrecord.pack.packer import BadFiles, Mode, PackProgress, PackSummary, check_options, destination
from fastrecord.pack.record_packer import ImportSettings, RecordPacker, all_rows
from fastrecord.recode import Recode
from fastrecord.schema import FieldType, Schema
from fastrecord.schema.classes import class_names
from fastrecord.schema.parse import parse_type
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.files.upload import Upload

# Metadata of a source that would say something else of the new file.
_OWN = ("classes", "shard", "made_of", "packs", "skipped")
_SHOWN = 3
# Index entries and alignment of a value.
_PER_VALUE = 64


@dataclass(frozen=True, slots=True)
class Preview:
    """What an import would store, as `preview_records` returns it.

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


def import_records(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    format: str = "auto",  # noqa: A002 - the name that users know
    *,
    mapping: Mapping[str, str] | None = None,
    types: Mapping[str, FieldType | str] | None = None,
    fill: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    append: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    classes_from: str | os.PathLike[str] | None = None,
    bad_files: BadFiles = "stop",
    shards: int | None = None,
    shard_size: int | None = None,
    compression: str | None = None,
    short_side: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    raw: bool = False,
    crop_ready: str | None = None,
    crop_index: bool = False,
    sixteen_bit: str | None = None,
    commit_bytes: int = 1 << 30,
    staging: str | os.PathLike[str] | None = None,
    store_options: Mapping[str, Any] | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Store the records of another format in one file, or in shards.

    docs/formats.md lists the formats, and what each of them comes in as. Records keep the order of
    the source. A field "label" of names is stored as int64, numbered by sorted name; the names
    become the file's classes. This reads the labels twice.

    Args:
        source: A file, a folder, a pattern such as "train-{000..146}.tar" or "shards/*.parquet", or
            several of them. Or URLs of stores, of the web or of the Hugging Face hub, for WebDataset,
            TFRecord, RecordIO, Parquet and MDS.
        path: File to write. With shards, `train.frec` stands for `train-00000-of-00004.frec` and so
            on. Or a URL, as in `fastrecord.pack_folder`; one shard by default.
        format: Name of the format; "auto" looks at the source.
        mapping: Name in the file -> name in the source, such as {"image": "jpg", "label": "cls"}.
            Other fields are left out. By default all fields are stored.
        types: Name in the file -> type, as a `FieldType` or a text such as "int32", for fields that
            get another type than by default.
        fill: Name in the file -> value for nulls of the source, or its text, such as {"label": -1}.
            By default a record with a null is bad.
        settings: Settings of the format; see docs/formats.md.
        append: Add records to `path`, as in `fastrecord.pack_folder`.
        resume: Continue a killed or interrupted import of the same source; begin if there is
            nothing yet.
        overwrite: Replace `path`, or all its shards, once all is stored.
        classes_from: .frec file whose classes define the label numbers.
        bad_files: "stop": a record that cannot be read ends the import; the records before it stay,
            and `resume` continues. "skip": it is left out and listed in the summary, and under
            "skipped" in the metadata.
        shards: Number of files to write, whose numbers of records differ by at most one. Reads the
            source once more if its number of records is not known.
        shard_size: Maximum size of a shard in bytes (unless a single record is larger). Reads the
            source once more.
        compression: Compress arrays, bytes, json and lists: "lz4", "zstd" or "auto".
        short_side: As in `fastrecord.pack_folder`, as are the other options about images; for
            sources with one field of images.
        max_side: Likewise.
        quality: Likewise.
        raw: Likewise.
        crop_ready: Likewise.
        crop_index: Likewise.
        sixteen_bit: Likewise.
        commit_bytes: Commit durably each time this many bytes have been written.
        staging: As in `fastrecord.pack_folder`.
        store_options: Likewise, and for a source in a store.
        progress: Called a few times a second; an exception in it ends the import.

    Raises:
        ValueError: options contradict each other.
        FileExistsError: `path` exists, without `append`, `resume` or `overwrite`.
        LockedError: another process writes to `path`.
        FastRecordError: the source, or a record of it, is damaged or not what the options demand;
            the message names shard and record. Or `path` is not valid for this import.
        OSError: reading or writing failed.
        KeyboardInterrupt: Ctrl-C; as for `fastrecord.pack_folder`.
    """
    started = time.perf_counter()
    mode = check_options(append, resume, overwrite, bad_files, shards, shard_size, commit_bytes, path, staging)
    recode = Recode(
        short_side=short_side,
        max_side=max_side,
        quality=quality,
        raw=raw,
        crop_ready=crop_ready,
        crop_index=crop_index,
        sixteen_bit=sixteen_bit,
    )
    out = os.fspath(path)
    with opened(source, format, settings, store_options) as (found, each, where, why):
        for name in (where, *each.paths):
            if os.path.realpath(name) == os.path.realpath(out):
                raise Code.OUTPUT_IS_INPUT.error(f"{out}: is what is to be imported: choose another path")
        summary = store(
            each,
            out,
            where,
            mode,
            Chosen(found.name, mapping, types, settings or {}, compression, recode, fill or {}),
            classes_from=None if classes_from is None else os.fspath(classes_from),
            bad_files=bad_files,
            shards=shards,
            shard_size=shard_size,
            commit_bytes=commit_bytes,
            staging=staging,
            store_options=store_options,
            progress=progress,
            started=started,
        )
        summary.format, summary.recognised = found.name, why or None
        summary.left_out = list(each.left_out)
        return summary


def preview_records(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str = "auto",  # noqa: A002 - the name that users know
    *,
    mapping: Mapping[str, str] | None = None,
    types: Mapping[str, FieldType | str] | None = None,
    fill: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    records: int = _SHOWN,
    store_options: Mapping[str, Any] | None = None,
) -> Preview:
    """Return what `import_records` would store, and write nothing.

    Args:
        source: As for `import_records`, as are the other arguments.
        format: Likewise.
        mapping: Likewise.
        types: Likewise.
        fill: Likewise.
        settings: Likewise.
        records: Number of records to return.
        store_options: Likewise.

    Raises:
        As `import_records` does.
    """
    with opened(source, format, settings, store_options) as (found, each, where, why):
        fields = plan_fields(each, where, mapping, _types(types), fill=fill)
        first: list[dict[str, Any]] = []
        numbers: list[int] = []
        bad: dict[int, str] = {}
        names = [planned.source.name for planned in fields]
        for rows in each.read(0, list(dict.fromkeys(names))):
            wrong = dict(rows.bad)
            columns = {}
            for planned in fields:
                columns[planned.name], unfit = planned.converted(rows.columns[planned.source.name])
                wrong |= {rows.numbers[i]: reason for i, reason in unfit.items()}
            good = [i for i, number in enumerate(rows.numbers) if number not in wrong][: records - len(first)]
            first += [{name: values[i] for name, values in columns.items()} for i in good]
            numbers += [rows.numbers[i] for i in good]
            bad |= wrong
            if len(first) >= records:
                break
        bad = {number: reason for number, reason in sorted(bad.items()) if not numbers or number < numbers[-1]}
        described = [(planned.name, planned.type, planned.source.name, planned.source.origin) for planned in fields]
        known = each.class_names()
        nulls = {planned.name: count for planned in fields if (count := each.nulls().get(planned.source.name))}
        classes = None if known is None else len(known)
        return Preview(found.name, why, described, each.count(), classes, first, numbers, bad, nulls, each.left_out)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the caller of an import has chosen."""

    format: str
    mapping: Mapping[str, str] | None
    types: Mapping[str, FieldType | str] | None
    settings: Mapping[str, str]
    compression: str | None
    recode: Recode
    fill: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def opened(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    name: str,
    settings: Mapping[str, str] | None,
    store_options: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Format, Source, str, str]]:
    """Open a source; yield its format, the source, its name for messages, and why it has this format."""
    named = [source] if isinstance(source, (str, os.PathLike)) else source
    given: list[str] = [Url(os.fspath(each)) for each in named]
    if not given:
        raise ValueError("source is empty: give a path")
    given = [located(each, store_options) for each in given]
    paths: str | list[str] = given[0] if len(given) == 1 else given
    found, why = recognise(paths) if name == "auto" else (load(name), "")
    if not found.reads:
        raise Code.UNKNOWN_FORMAT.error(f"records cannot be read from the format {found.name}")
    if not found.stored and any(map(is_stored, given)):
        raise Code.SOURCE.error(f"{given[0]}: {found.title} is read from files of this machine: copy it here first")
    check_settings(found, settings or {})
    with found.open(paths, settings or {}) as each:
        yield found, each, given[0], why


def check_settings(found: Format, settings: Mapping[str, str]) -> None:
    """Refuse settings that a format does not have.

    Raises:
        ValueError: the message names the setting, and the ones that there are.
    """
    for name, value in settings.items():
        if name not in found.settings:
            known = f": it has {', '.join(found.settings)}" if found.settings else ""
            raise ValueError(f"the format {found.name} has no setting {name!r}{known}")
        choices = found.settings[name].choices
        if choices and value not in choices:
            raise ValueError(f"the setting {name} of {found.name} is {', '.join(choices)}, not {value!r}")


def store(
    source: Source,
    out: str,
    where: str,
    mode: Mode,
    chosen: Chosen,
    *,
    classes_from: str | None,
    bad_files: BadFiles,
    shards: int | None,
    shard_size: int | None,
    commit_bytes: int,
    staging: str | os.PathLike[str] | None,
    store_options: Mapping[str, Any] | None,
    progress: Callable[[PackProgress], None] | None,
    started: float,
    number_names: bool = True,
) -> PackSummary:
    """Store the records of an open source.

    Args:
        source: The source.
        out: The file, or a URL.
        where: The source's name, for messages.
        mode: What to do with existing files.
        chosen: Fields and settings.
        classes_from: As for `import_records`, as are the others.
        bad_files: Likewise.
        shards: Likewise.
        shard_size: Likewise.
        commit_bytes: Likewise.
        staging: Likewise.
        store_options: Likewise.
        progress: Likewise.
        started: When the import began, by `time.perf_counter`.
        number_names: Whether labels that are names become numbers.
    """
    sharded = shards is not None or shard_size is not None
    with destination(out, mode, sharded=sharded, staging=staging, options=store_options) as (path, how, upload):
        return _store(
            source,
            path,
            where,
            how,
            chosen,
            upload,
            classes_from=classes_from,
            bad_files=bad_files,
            shards=shards,
            shard_size=shard_size,
            commit_bytes=commit_bytes,
            progress=progress,
            started=started,
            number_names=number_names,
        )


def _store(
    source: Source,
    out: str,
    where: str,
    mode: Mode,
    chosen: Chosen,
    upload: Upload | None,
    *,
    classes_from: str | None,
    bad_files: BadFiles,
    shards: int | None,
    shard_size: int | None,
    commit_bytes: int,
    progress: Callable[[PackProgress], None] | None,
    started: float,
    number_names: bool,
) -> PackSummary:
    """Store the records in files of this machine, as `store` says."""
    recode, types = chosen.recode, _types(chosen.types)
    fields = plan_fields(source, where, chosen.mapping, types, chosen.compression, chosen.fill)
    if shard_size is not None and (recode.changes or chosen.compression is not None):
        raise ValueError("changed images and compressed values have no known size before: give shards, not shard_size")
    images = [planned.name for planned in fields if planned.type.name == "image"]
    if recode.changes and len(images) != 1:
        raise ValueError(f"images are changed in one field, and these records have {len(images)} of them")
    known = class_table(classes_from) if classes_from is not None else None
    if upload is not None:
        extend = upload.classes is not None
        known = upload.classes if extend else known
    else:
        extend = mode == "append" or (mode == "resume" and _resumes_append(out))
        if extend:
            with Reader(out) as reader:
                known = class_names(reader)
    named = number_names and LABEL not in types
    fields, classes = _numbered(source, where, fields, known, extend=extend, named=named)
    schema = schema_of(fields)
    names = {planned.name: [planned.source.name, str(planned.type)] for planned in fields}
    digest = ImportSettings.digest_of(source)
    fill = {f"fill {name}": str(value) for name, value in chosen.fill.items()}
    this = ImportSettings(chosen.format, digest, names, {**chosen.settings, **fill}, recode)
    total = source.count()
    if shards is not None:
        if total is None:
            total = sum(rows.count for rows in all_rows(source, []))
        parts = parts_of(out, even_ends(total, shards, where, "records"))
    elif shard_size is not None:
        parts = parts_of(out, ends_by_size(_sizes(source, fields), shard_size, classes or ()))
    else:
        parts = [Part(out, 0, NEVER)] if upload is None or upload.is_file else parts_of(out, [NEVER])
    packer = RecordPacker(
        source, where, fields, recode, bad_files, commit_bytes, progress, total=total, started=started
    )
    packer.upload, packer.identity = upload, this.entry()
    kept = {name: value for name, value in source.metadata.items() if name not in _OWN}
    origin = os.path.basename(os.path.abspath(where))

    def open_part(part: Part) -> Target:
        if mode == "append":
            target = _append(part, schema, classes)
        elif mode == "resume" and (path := _begun(part)) is not None:
            target = _resume(replace(part, path=path), schema, classes, this)
            if number_names:  # items of a data set may be made anew each time
                _compare_last(source, fields, target, path)
        else:
            target = Target(
                None, classes, None, part.start, kept=kept | ({} if part.shard is None else part.shard.entry())
            )
            target.source, target.settings = origin, this
            return create(target, part.path, schema, overwrite=mode == "overwrite")
        target.source, target.settings = origin, this
        packer.learn_keys(part.path)
        return target

    return packer.run(parts, out, mode, open_part)


def _types(types: Mapping[str, FieldType | str] | None) -> dict[str, FieldType]:
    return {name: parse_type(kind) if isinstance(kind, str) else kind for name, kind in (types or {}).items()}


def _numbered(
    source: Source, where: str, fields: list[PlannedField], known: list[str] | None, *, extend: bool, named: bool
) -> tuple[list[PlannedField], list[str] | None]:
    """Number the labels of a source; return the fields and all class names."""
    label = next((planned for planned in fields if planned.name == LABEL), None)
    classes = source.class_names()
    if label is None or not (label.type.name == "string" or label.type.shape == ()):
        return fields, known if extend else None
    if label.type.name == "string":
        if not named:
            return fields, known if extend else None
        classes = _names(source, label.source.name)
    if classes is None:
        return fields, known
    table = {name: number for number, name in enumerate(known if known is not None else classes)}
    unknown = [name for name in classes if name not in table]
    if unknown and not extend:
        what = "class" if len(unknown) == 1 else "classes"
        raise Code.UNKNOWN_CLASS.error(f"{where}: {what} {name_some(unknown)} not among the classes of the given file")
    for name in unknown:
        table[name] = len(table)
    if label.type.name == "string":
        return number_labels(fields, table), list(table)
    if list(table) == list(classes):
        return fields, list(classes)
    return number_labels(fields, {number: table[name] for number, name in enumerate(classes)}), list(table)


def _names(source: Source, name: str) -> list[str]:
    """Return the distinct labels of a source, sorted."""
    found: set[str] = set()
    try:
        for rows in all_rows(source, [name]):
            found.update(rows.columns[name])
    except FastRecordError as err:
        err.add_note("nothing is stored: the names of all labels are read first, to number them by sorted name")
        raise
    return sorted(found)


def _sizes(source: Source, fields: Sequence[PlannedField]) -> Iterator[int]:
    """Yield about how many bytes each record takes, never too few."""
    names = list(dict.fromkeys(planned.source.name for planned in fields))
    for rows in all_rows(source, names):
        columns = [rows.columns[name] for name in names]
        values = zip(*columns, strict=True)
        for number in range(rows.start, rows.start + rows.count):
            yield 0 if number in rows.bad else sum(map(value_bytes, next(values))) + _PER_VALUE * len(names)


def _resumes_append(path: str) -> bool:
    """Return whether a file's last pack added to records that were there before."""
    with suppress(FastRecordError, OSError), Reader(path) as reader:
        last, _ = last_pack(path, reader.metadata)
        return bool(last["first_record"])
    return False


def _append(part: Part, schema: Schema, classes: list[str] | None) -> Target:
    with Reader(part.path) as reader:
        if not reader.complete:
            raise Code.INCOMPLETE.error(
                f"{part.path}: its own pack is not complete: `--resume` finishes that one first"
            )
        check_schema(reader, schema)
        records, kept = len(reader), reader.metadata
    target = Target(None, classes, None, 0, records, records, kept=kept)
    target.writer = reopen(part.path, records)
    return target


def _begun(part: Part) -> str | None:
    """Return the path of a part that was begun and has a commit; remove one that has none."""
    path = os.path.realpath(part.path)
    return path if os.path.exists(path) and not removed_without_commit(path) else None


def _compare_last(source: Source, fields: Sequence[PlannedField], target: Target, path: str) -> None:
    """Refuse a source whose record before the next one is not the last one that a file holds."""
    number = target.position - 1
    if target.records == target.first_record or (
        target.skipped and target.skipped[-1][0] == source.place(number)  # the last one was left out
    ):
        return
    exact = [each for each in fields if each.type.name.startswith(("string", "bool", "int", "uint"))]
    rows = next(source.read(number, list({each.source.name for each in exact})), None)
    with Reader(path) as reader:
        if rows is None:
            raise other_input(reader, f"it has no record {number:,}")
        if number in rows.bad:
            return
        for each in exact:
            values, bad = each.converted(rows.columns[each.source.name][:1])
            stored = reader.get(target.records - 1, each.name)
            if 0 in bad or stored != values[0]:
                found = f"{each.name} is {values[0]!r:.80}, where the file has {stored!r:.80}"
                raise other_input(reader, f"{source.place(number)}: {found}")


def _resume(part: Part, schema: Schema, classes: list[str] | None, this: ImportSettings) -> Target:
    with Reader(part.path) as reader:
        check_schema(reader, schema)
        kept = reader.metadata
        last, skipped = last_pack(part.path, kept)
        entry = last.get("import")
        if not isinstance(entry, dict):
            raise Code.NOT_PACKED.error(f"{part.path}: was not written by `fastrecord import`, so it cannot be resumed")
        mine = this.entry()
        if entry.get("digest") != this.digest:
            raise other_input(reader, "its files have other names")
        if {name: last.get(name) for name in ("import", "recode")} != {
            name: mine.get(name) for name in ("import", "recode")
        }:
            raise Code.OTHER_SETTINGS.error(
                f"{part.path}: was begun with other fields or settings than this import, {this}: give the same, "
                "or begin again with `--overwrite`"
            )
        if class_names(reader) != classes:
            raise other_input(reader, "its classes are others")
        records, complete = len(reader), reader.complete
    first = int(last["first_record"])
    position = part.start + records - first + len(skipped)
    target = Target(None, classes, None, position, records, first, skipped, kept)
    if not complete:
        target.writer = reopen(part.path, records)
    return target
