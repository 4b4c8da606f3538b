"""`Job`: the source of a pack, the fields to store, and the numbers of its classes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from fastrecord.checks import digest
from fastrecord.errors import Code, FastRecordError
from fastrecord.files.division import FILE_BYTES, Part, ends_by_size, even_ends, parts_of
from fastrecord.files.read_ahead import ReadAhead
from fastrecord.interchange.source import Rows, Source, value_bytes
from fastrecord.names import name_some, readable
from fastrecord.packing.fields import LABEL, PlannedField, number_labels, plan_fields, schema_of, source_names
from fastrecord.packing.options import BadFiles, Fields, Output
from fastrecord.recode import Recode
from fastrecord.schema import Schema

if TYPE_CHECKING:
    from fastrecord.files.publish.upload import Upload

# `commit_bytes` of a writer: a pack commits between its runs, when the list of skipped files is
# complete; the writer must not commit by itself.
NEVER = 1 << 62
# Metadata of a source that would say something else of the new file.
_OWN = ("classes", "shard", "made_of", "packs", "skipped")
# Index entries and alignment of a value.
_PER_VALUE = 64
# What a record takes besides its image and key: alignment, two extents, width, height and label. They count twice,
# because closing a file may rewrite its columns.
_PER_RECORD = 7 + 2 * (32 + 4 + 4 + 8 + 32)
# Of a shard in an object store: large enough for requests of 8 MiB, small enough to wait for.
_USUAL_SHARD = 256 << 20


@dataclass(frozen=True, slots=True)
class Known:
    """The classes that are known before a pack.

    Attributes:
        names: Position = label; None: there are none.
        where: What has them, for errors.
        extend: Whether new classes get the next numbers; else they are an error.
        labelled: Whether records are there whose labels are numbers without names.
    """

    names: list[str] | None = None
    where: str = ""
    extend: bool = False
    labelled: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A source, and how its records are stored.

    Attributes:
        source: The source.
        fields: The fields to store.
        classes: Class names, position = label; None if labels are plain numbers or absent.
        recode: How images are stored.
        bad_files: Whether a bad record ends the pack.
        entry: What the metadata says of this pack, which a resumed one must match.
    """

    source: Source
    fields: list[PlannedField]
    classes: list[str] | None
    recode: Recode
    bad_files: BadFiles
    entry: Mapping[str, Any]

    @classmethod
    def of(cls, source: Source, chosen: Fields, recode: Recode, known: Known, bad_files: BadFiles) -> Self:
        """Choose the fields to store and number the classes.

        Args:
            source: The source, which is prepared.
            chosen: What the caller has chosen.
            recode: As for `Job`, as is `bad_files`.
            known: Classes that keep their numbers.
            bad_files: Likewise.
        """
        types, mapping = chosen.parsed, chosen.names
        fields = plan_fields(source, mapping, types, chosen.compression, chosen.fill)
        images = [field.name for field in fields if field.type.name == "image"]
        if recode.changes and len(images) != 1:
            raise ValueError(f"images are changed in one field, and these records have {len(images)} of them")
        fields, classes = _numbered(source, fields, known, named=not source.live and LABEL not in types)
        own = None if mapping or types or chosen.fill else source.entry(chosen.compression)
        if own is None:
            names = {field.name: [field.source.name, str(field.type)] for field in fields}
            settings = {**source.recorded, **{f"fill {name}": str(value) for name, value in chosen.fill.items()}}
            identity = digest(json.dumps(source.identity()))
            own = {"import": {"format": source.format, "digest": identity, "fields": names, "settings": settings}}
        return cls(source, fields, classes, recode, bad_files, own | recode.entry())

    @property
    def schema(self) -> Schema:
        """The schema of the files."""
        return schema_of(self.fields)

    @property
    def origin(self) -> str:
        """The source's own name: its location concerns this machine only."""
        return readable(os.path.basename(os.path.abspath(self.source.home or self.source.where)))

    @property
    def metadata(self) -> dict[str, Any]:
        """What the source says of all its records."""
        return {name: value for name, value in self.source.metadata.items() if name not in _OWN}

    def identity(self) -> list[Any]:
        """Return what tells this pack from others, JSON-able."""
        source = self.source
        known = [None if values is None else list(values) for values in (source.keys, source.labels, source.classes)]
        return [dict(self.entry), *known, dict(source.facts)]

    def cut(self, start: int, stop: int) -> Self:
        """Return the job of some of the files, which may also be pickled."""
        return replace(self, source=self.source.cut(start, stop))  # type: ignore[attr-defined]

    def stored_labels(self, start: int, stop: int) -> Sequence[int] | None:
        """Return the labels that some records get; None if they are not known."""
        field = next((field for field in self.fields if field.name == LABEL), None)
        if field is None or self.source.labels is None:
            return None
        return field.converted(self.source.labels[start:stop])[0]

    def parts(self, out: str, output: Output, upload: Upload | None) -> list[Part]:
        """Divide the records into runs, one for each file, in order."""
        source, total = self.source, self.source.count()
        shards = output.shards
        if shards is None and output.shard_size is None:
            if upload is None or upload.is_file:
                return [Part(out, 0, NEVER if source.keys is None else len(source.keys))]
            known = source.sizes()
            if known is None or total is None:
                return parts_of(out, [NEVER])
            shards = max(1, min(total, -(-sum(known) // _USUAL_SHARD)))
        if shards is not None:
            if total is None:
                total = sum(rows.count for rows in all_rows(source, []))
            return parts_of(out, even_ends(total, shards, source.where))
        sizes = source.sizes() or self._sizes()
        # The first and the last commit each write the class names.
        empty = FILE_BYTES + 2 * sum(len(name.encode()) + 4 for name in self.classes or ())
        return parts_of(out, ends_by_size((size + _PER_RECORD for size in sizes), output.shard_size or 0, empty))

    def _sizes(self) -> Iterator[int]:
        """Yield about how many bytes each record takes, never too few."""
        names = source_names(self.fields)
        for rows in all_rows(self.source, names):
            columns = [rows.columns[name] for name in names]
            values = zip(*columns, strict=True)
            for number in range(rows.start, rows.start + rows.count):
                yield 0 if number in rows.bad else sum(map(value_bytes, next(values))) + _PER_VALUE * len(names)


def all_rows(source: Source, names: Sequence[str]) -> Iterator[Rows]:
    """Yield all runs of a source."""
    with ReadAhead(source.read(0, names)) as runs:
        yield from runs


def _numbered(
    source: Source, fields: list[PlannedField], known: Known, *, named: bool
) -> tuple[list[PlannedField], list[str] | None]:
    """Number the labels of a source; return the fields and all class names."""
    label = next((field for field in fields if field.name == LABEL), None)
    classes = source.class_names()
    if label is None or not (label.type.name == "string" or label.type.shape == ()):
        if known.names is not None and label is None:
            raise Code.NO_LABELS.error(
                f"{source.where}: has no labels, and {known.where} names classes: add a field `label`"
            )
        return fields, known.names if known.extend else None
    if label.type.name == "string":
        if not named:
            return fields, known.names if known.extend else None
        classes = _names(source, label.source.name)
    if classes is None:
        if known.names is not None and source.labels is not None:
            _check_numbers(source, known)
        return fields, known.names
    if known.labelled:
        raise Code.NO_CLASSES.error(
            f"{known.where}: its labels are numbers without class names: append a source whose labels are numbers"
        )
    table = {name: number for number, name in enumerate(known.names if known.names is not None else classes)}
    unknown = [name for name in classes if name not in table]
    if unknown and not known.extend:
        what = "class" if len(unknown) == 1 else "classes"
        raise Code.UNKNOWN_CLASS.error(
            f"{source.where}: {what} {name_some(unknown)} not among the classes of {known.where}"
        )
    for name in unknown:
        table[name] = len(table)
    if label.type.name == "string":
        return number_labels(fields, table), list(table)
    if list(table)[: len(classes)] == list(classes):
        return fields, list(table)
    return number_labels(fields, {number: table[name] for number, name in enumerate(classes)}), list(table)


def _check_numbers(source: Source, known: Known) -> None:
    count = len(known.names or ())
    at = next((i for i, label in enumerate(source.labels or ()) if not 0 <= label < count), None)
    if at is not None and source.labels is not None:
        raise Code.UNKNOWN_LABEL.error(
            f"{source.place(at)}: no class has the label {source.labels[at]}: {known.where} names {count:,} classes"
        )


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
