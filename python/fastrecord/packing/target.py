"""`Target`: the output file of a pack, new, appended to, or resumed after a kill."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

from fastrecord._core import Reader, Writer, __version__
from fastrecord.errors import Code, FastRecordError, NoCommitError
from fastrecord.files.division import Part
from fastrecord.names import name_some
from fastrecord.packing.fields import source_names
from fastrecord.packing.job import NEVER, Job
from fastrecord.packing.options import Mode
from fastrecord.recode import Recode
from fastrecord.schema import FieldType, Schema
from fastrecord.schema.classes import class_names

_BATCH = 4096
_ENTRIES = ("import", "pairs", "recode")


@dataclass(slots=True)
class Target:
    """An output file and its state; a context manager that aborts its writer, unless it is closed.

    Attributes:
        job: What is packed.
        writer: Open for appending; None if the file is already complete.
        position: Position of the next input record.
        records: Number of records in the file when it was opened.
        first_record: Number of the first record that this pack adds, over all its runs.
        skipped: (key, reason) for the input records that this pack has skipped.
        kept: Metadata from outside this pack.
    """

    job: Job
    writer: Writer | None
    position: int
    records: int = 0
    first_record: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.writer is not None:
            self.writer.abort()

    def metadata(self) -> dict[str, Any]:
        """Return the metadata to commit, which records the progress of the pack."""
        this: dict[str, Any] = {"source": self.job.origin, "fastrecord": __version__, "first_record": self.first_record}
        this |= self.job.entry
        this_skipped = [{"key": key, "reason": reason} for key, reason in self.skipped]
        data = dict(self.kept)
        if self.job.classes is not None:
            data["classes"] = self.job.classes
        data["skipped"] = [*data.get("skipped", []), *this_skipped]
        data["packs"] = [*data.get("packs", []), this | {"skipped": len(this_skipped)}]
        return data


def open_target(job: Job, part: Part, mode: Mode) -> Target:
    """Open the file of a part.

    Raises:
        FastRecordError: a file to append to, or to continue, does not fit the input.
        LockedError: it has a writer.
    """
    if mode == "append":
        return _append(job, part)
    path = os.path.realpath(part.path)  # a link stays a link to the written file
    if mode == "resume":
        if os.path.exists(path) and not removed_without_commit(path):
            return _resume(job, part, path)
        part = replace(part, path=path)
    target = Target(job, None, part.start, kept=_with_facts(job.metadata | part.entry, job.source.facts))
    how = "w" if mode == "overwrite" else "x"
    target.writer = Writer(part.path, job.schema, how, target.metadata(), complete=False, commit_bytes=NEVER)
    return target


def _append(job: Job, part: Part) -> Target:
    """Open a file to add records to."""
    with Reader(part.path) as reader:
        if not reader.complete:
            raise Code.INCOMPLETE.error(
                f"{part.path}: its own pack is not complete: `--resume` finishes that one first"
            )
        _check_schema(reader, job.schema)
        new = set(job.source.keys or ())
        for _, keys in column_of(reader, "key") if new else ():
            if taken := new.intersection(keys):
                raise Code.KEY_TAKEN.error(
                    f"{part.path}: {min(taken)!r} is in the file already: name a folder further up as the source, "
                    "which gives other keys"
                )
        records, kept = len(reader), _with_facts(reader.metadata, job.source.facts)
        for name in ("skipped", "packs"):
            if not isinstance(kept.get(name, []), list):
                raise Code.NOT_PACKED.error(
                    f"{part.path}: metadata {name!r} is not the list that `fastrecord pack` keeps there: give it "
                    f"another name, or remove it with fastrecord.files.set_metadata(path, {name}=None)"
                )
    return Target(job, _reopen(part.path, records), 0, records, records, kept=kept)


def _resume(job: Job, part: Part, path: str) -> Target:
    """Open a file that a killed pack has left, and find where to continue."""
    with Reader(path) as reader:
        _check_schema(reader, job.schema)
        kept = reader.metadata
        last, skipped = last_pack(path, kept)
        mine = {name: job.entry.get(name) for name in _ENTRIES}
        found = {name: last.get(name) for name in _ENTRIES}
        digests = [each["import"].get("digest") for each in (found, mine) if isinstance(each["import"], dict)]
        if len(digests) == 2 and digests[0] != digests[1]:
            raise _other_input(reader, "its files have other names")
        if found != mine:
            raise Code.OTHER_SETTINGS.error(
                f"{path}: {'is complete, and was packed' if reader.complete else 'was begun'} with other settings: "
                f"{_settings_text(found)}, but this pack has {_settings_text(mine)}: give the same, or begin again "
                "with `--overwrite`"
            )
        if (names := class_names(reader)) != job.classes:
            raise _other_input(reader, f"its pack began with other classes: {_differ(names, job.classes)}")
        records, first, complete = len(reader), int(last["first_record"]), reader.complete
        position = part.start + records - first + len(skipped)
        if job.source.keys is not None:
            _compare_keys(job, reader, part, first, {key for key, _ in skipped})
            if complete and position < part.stop:
                raise _other_input(reader, f"{job.source.keys[position]!r} is not in the file")
        elif not job.source.live and records > first:
            _compare_last(job, reader, position - 1, skipped)
    return Target(job, None if complete else _reopen(path, records), position, records, first, skipped, kept)


def _settings_text(entry: Mapping[str, Any]) -> str:
    texts = []
    if isinstance(given := entry["import"], dict):
        names = ",".join(f"{name}={source}" for name, (source, _) in given.get("fields", {}).items())
        texts += [f"--format {given.get('format')} --map {names}", *_set_texts(given.get("settings") or {})]
    if isinstance(pairs := entry["pairs"], dict):
        texts += ["--format pairs", *_set_texts(pairs)]
    return ", ".join([*texts, str(Recode.from_json(entry["recode"] or {}))])


def _set_texts(settings: Mapping[str, Any]) -> list[str]:
    return [f"--set {name}={'yes' if value is True else value}" for name, value in settings.items()]


def resumes_append(path: str) -> bool:
    """Return whether a file's last pack added to records that were there before."""
    try:
        with Reader(path) as reader:
            return bool(last_pack(path, reader.metadata)[0]["first_record"])
    except (FastRecordError, OSError):
        return False


def _with_facts(metadata: dict[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (metadata | dict(facts)).items() if value is not None or name not in facts}


def removed_without_commit(path: str) -> bool:
    """Remove a file whose writer was killed before its first commit; return whether it was one."""
    if os.path.getsize(path) > 0:
        try:
            Reader(path).close()
        except NoCommitError:
            pass
        else:
            return False
    with open(path, "rb") as file:
        # Take the writer's lock: a running pack without a commit must not lose its file.
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise Code.LOCKED.error(f"{path}: another pack is writing this file now") from err
        os.unlink(path)
    return True


def last_pack(path: str, metadata: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Remove the last pack's entry from a file's metadata; return it and its skipped files.

    Raises:
        FastRecordError: no pack has written the file.
    """
    try:
        this = metadata["packs"].pop()
        entry = this | {"first_record": int(this["first_record"]), "source": str(this["source"])}
        Recode.from_json(this.get("recode", {}))
        rows, count = metadata["skipped"], int(this["skipped"])
        skipped = [(str(row["key"]), str(row["reason"])) for row in rows[len(rows) - count :]]
        metadata["skipped"] = rows[: len(rows) - count]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as err:
        raise Code.NOT_PACKED.error(f"{path}: was not written by `fastrecord pack`, so it cannot be resumed") from err
    return entry, skipped


def _compare_keys(job: Job, reader: Reader, part: Part, first: int, skipped: set[str]) -> None:
    """Refuse an input whose keys and labels are not those of a pack's records."""
    keys = job.source.keys or ()
    labelled = job.source.labels is not None and "label" in reader.schema
    labels = (label for _, values in column_of(reader, "label", first) for label in values) if labelled else None
    stored = chain.from_iterable(values for _, values in column_of(reader, "key", first))
    wanted = ((at, keys[at]) for at in range(part.start, part.stop) if keys[at] not in skipped)
    mine = job.stored_labels(0, len(keys)) if labelled else None
    for number, key in enumerate(stored, first):
        at, expected = next(wanted, (0, None))
        if key != expected:
            found = "nothing" if expected is None else repr(expected)
            raise _other_input(reader, f"record {number} is {key!r}, where the input has {found}")
        if labels is not None and mine is not None and (label := next(labels)) != mine[at]:
            raise _other_input(reader, f"record {number}, {key!r}, has the label {label}, the input says {mine[at]}")


def _compare_last(job: Job, reader: Reader, number: int, skipped: list[tuple[str, str]]) -> None:
    """Refuse a source whose record before the next one is not the last one that a file holds."""
    source = job.source
    if skipped and skipped[-1][0] == source.place(number):  # the last one was left out
        return
    exact = [each for each in job.fields if each.type.name.startswith(("string", "bool", "int", "uint"))]
    rows = next(source.read(number, source_names(exact)), None)
    if rows is None:
        raise _other_input(reader, f"it has no record {number:,}")
    if number in rows.bad:
        return
    for each in exact:
        values, bad = each.converted(rows.columns[each.source.name][:1])
        stored = reader.get(len(reader) - 1, each.name)
        if 0 in bad or stored != values[0]:
            found = f"{each.name} is {values[0]!r:.80}, where the file has {stored!r:.80}"
            raise _other_input(reader, f"{source.place(number)}: {found}")


def _other_input(reader: Reader, what: str) -> FastRecordError:
    """Return the error for a file that was packed from another input."""
    if reader.complete:
        found = "is complete, and was packed from another input"
        ways_out = "`--append` adds files to it, `--overwrite` replaces it"
    else:
        found = "cannot be resumed: it was begun with another input"
        ways_out = "give that one, or begin again with `--overwrite`"
    return Code.OTHER_INPUT.error(f"{reader.path}: {found}: {what}: {ways_out}")


def _differ(names: list[str] | None, classes: list[str] | None) -> str:
    if names is None or classes is None:
        return "only one of them has class names"
    added, gone = sorted(set(classes) - set(names)), sorted(set(names) - set(classes))
    if added:
        return f"new {name_some(added)}"
    return f"without {name_some(gone)}" if gone else "in another order"


def _reopen(path: str, records: int) -> Writer:
    """Open a file for appending, if it still has this number of records."""
    writer = Writer(path, None, "a", complete=False, commit_bytes=NEVER)
    found = len(writer)
    if found != records:
        writer.abort()
        raise Code.PACK_RUNNING.error(
            f"{path}: went from {records:,} to {found:,} records just now: wait until the other pack has finished"
        )
    return writer


def _check_schema(reader: Reader, schema: Schema) -> None:
    """Raise SchemaError unless a file has the fields of a schema."""
    found = reader.schema
    if list(found) != list(schema) or not all(_holds(found[name], kind) for name, kind in schema.items()):
        texts = (", ".join(f"{name} ({kind})" for name, kind in fields.items()) for fields in (found, schema))
        raise Code.SCHEMA_MISMATCH.error(
            f"{reader.path}: the file has the fields {next(texts)}; this input gives {next(texts)}"
        )


def _holds(found: FieldType, given: FieldType) -> bool:
    """Return whether values of one type fit another, whose shape may have more open dimensions.

    Compression is ignored here; the options of a pack are compared with its settings.
    """
    if found.shape is None or given.shape is None or len(found.shape) != len(given.shape):
        return found == given
    wide = all(dim is None or dim == other for dim, other in zip(found.shape, given.shape, strict=True))
    return wide and replace(found, shape=given.shape, compression=given.compression) == given


def column_of(reader: Reader, name: str, first: int = 0) -> Iterator[tuple[range, Sequence[Any]]]:
    """Yield numbers and values of the records from `first` on."""
    for start in range(first, len(reader), _BATCH):
        numbers = range(start, min(start + _BATCH, len(reader)))
        values = reader.read_batch(numbers, [name])[name]
        yield numbers, values.tolist() if hasattr(values, "tolist") else values
