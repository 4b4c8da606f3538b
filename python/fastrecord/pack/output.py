"""`Target`: the output file of a pack, new, appended to, or resumed after a kill."""

from __future__ import annotations

import fcntl
import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from fastrecord._core import FastRecordError, NoCommitError, Reader, Writer, __version__
from fastrecord.errors import Code
from fastrecord.files.shard_names import Part
from fastrecord.names import name_some
from fastrecord.pack.listing import Listing
from fastrecord.pack.pair_listing import Pairing
from fastrecord.recode import Recode
from fastrecord.schema import FieldType, Schema
from fastrecord.schema.classes import class_names

Labels: TypeAlias = "array[int]"


class Settings(Protocol):
    """How a pack stores its records; compared when one is resumed."""

    def entry(self) -> dict[str, Any]:
        """Return the entries for the file's metadata."""


# `commit_bytes` of a writer: a pack commits between its chunks, when the list of skipped files is
# complete; the writer must not commit by itself.
NEVER = 1 << 62
_BATCH = 4096


@dataclass(slots=True)
class Target:
    """An output file and its state.

    Attributes:
        writer: Open for appending; None if the file is already complete.
        classes: Class names, position = label; None if labels are plain numbers or absent.
        labels: Label of each input file in this file's numbers, int64 (N,), or None.
        position: Position of the next input file.
        records: Number of records in the file when it was opened.
        first_record: Number of the first record that this pack adds, over all its runs.
        skipped: (key, reason) for the input files that this pack has skipped.
        kept: Metadata from outside this pack.
        source: Name of the source folder.
        settings: How this pack stores images.
    """

    writer: Writer | None
    classes: list[str] | None
    labels: Labels | None
    position: int
    records: int = 0
    first_record: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    settings: Settings = field(default_factory=Recode)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata to commit, which records the progress of the pack."""
        this: dict[str, Any] = {"source": self.source, "fastrecord": __version__, "first_record": self.first_record}
        this |= self.settings.entry()
        this_skipped = [{"key": key, "reason": reason} for key, reason in self.skipped]
        data = dict(self.kept)
        if self.classes is not None:
            data["classes"] = self.classes
        data["skipped"] = [*data.get("skipped", []), *this_skipped]
        data["packs"] = [*data.get("packs", []), this | {"skipped": len(this_skipped)}]
        return data


def class_table(path: str) -> list[str]:
    """Return the class names of a file, position = label.

    Raises:
        SchemaError: the file has no class names.
    """
    with Reader(path) as reader:
        names = class_names(reader)
    if names is None:
        raise Code.NO_CLASSES.error(f"{path}: the file names no classes, so they cannot be taken from it")
    return names


def number_labels(
    listing: Listing, known: list[str] | None, where: str, *, extend: bool = False
) -> tuple[Labels | None, list[str] | None]:
    """Map the labels of a listing to known classes.

    Args:
        listing: The input.
        known: Class names, position = label; None to number the classes as in the listing.
        where: The file with the known classes, for errors.
        extend: Add unknown classes at the end, instead of refusing them.

    Returns:
        The labels, int64 (N,), or None; all class names, or None.

    Raises:
        SchemaError: a class or a label number is unknown, or there are known classes but no labels.
    """
    if listing.labels is None:
        if known is not None:
            raise Code.NO_LABELS.error(
                f"{listing.list_path}: the list has no labels, and {where} names classes: add a column `class`"
            )
        return None, None
    labels = listing.labels
    if known is None:
        return labels, listing.classes
    if listing.classes is None:
        at = next((i for i, label in enumerate(labels) if not 0 <= label < len(known)), None)
        if at is not None:
            raise Code.UNKNOWN_LABEL.error(
                f"{listing.describe(at)}: no class has the label {labels[at]}: {where} names {len(known):,} classes"
            )
        return labels, known
    numbers = {name: number for number, name in enumerate(known)}
    unknown = [name for name in listing.classes if name not in numbers]
    if unknown and not extend:
        what = "class" if len(unknown) == 1 else "classes"
        raise Code.UNKNOWN_CLASS.error(
            f"{listing.list_path or listing.source}: {what} {name_some(unknown)} not among the classes of {where}"
        )
    for name in unknown:
        numbers[name] = len(numbers)
    table = [numbers[name] for name in listing.classes]
    return array("q", [table[label] for label in labels]), list(numbers)


def open_target(
    part: Part,
    mode: str,
    listing: Listing,
    schema: Schema,
    labels: Labels | None,
    classes: list[str] | None,
    settings: Settings,
    facts: Mapping[str, Any] | None = None,
) -> Target:
    """Open the file of one part and find where to continue.

    Args:
        part: The file and its run of the input.
        mode: What to do with an existing file.
        listing: The input.
        schema: Schema of its records.
        labels: Its labels for a new file, int64 (N,), or None.
        classes: Class names for a new file, or None.
        settings: How images are stored.
        facts: Metadata about all records; None removes an entry.

    Raises:
        FastRecordError: the file does not fit the input, or its state does not allow this mode.
        LockedError: it has a writer.
    """
    if mode == "append":
        return _append(part, listing, schema, settings, facts or {})
    path = part.path
    if mode == "resume":
        path = os.path.realpath(path)  # a link stays a link to the written file
        if os.path.exists(path) and not removed_without_commit(path):
            return _resume(part, listing, schema, labels, classes, settings)
    kept = _with_facts({} if part.shard is None else part.shard.entry(), facts or {})
    target = Target(None, classes, labels, part.start, kept=kept, source=_source(listing), settings=settings)
    return create(target, path, schema, overwrite=mode == "overwrite")


def create(target: Target, path: str, schema: Schema, *, overwrite: bool) -> Target:
    """Create the file of a target and return the target."""
    mode = "w" if overwrite else "x"
    target.writer = Writer(path, schema, mode, target.metadata(), complete=False, commit_bytes=NEVER)
    return target


def _with_facts(metadata: dict[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (metadata | dict(facts)).items() if value is not None or name not in facts}


def _source(listing: Listing) -> str:
    # Only the folder's own name: its location concerns this machine only.
    return os.fsencode(os.path.basename(os.path.abspath(listing.source))).decode(errors="backslashreplace")


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


def _append(part: Part, listing: Listing, schema: Schema, settings: Settings, facts: Mapping[str, Any]) -> Target:
    with Reader(part.path) as reader:
        if not reader.complete:
            raise Code.INCOMPLETE.error(
                f"{part.path}: its own pack is not complete: `--resume` finishes that one first"
            )
        check_schema(reader, schema)
        names = class_names(reader)
        if names is None and listing.classes is not None and len(reader):
            raise Code.NO_CLASSES.error(
                f"{part.path}: its labels are numbers without class names: append with a list that has a column `label`"
            )
        labels, classes = number_labels(listing, names, part.path, extend=True)
        new = set(listing.keys)
        for _, key, _ in _records(reader, 0):
            if key in new:
                raise Code.KEY_TAKEN.error(
                    f"{part.path}: {key!r} is in the file already; to give other files of that name keys of their own, "
                    f"{listing.other_keys()}"
                )
        records, kept = len(reader), _with_facts(reader.metadata, facts)
        for name in ("skipped", "packs"):
            if not isinstance(kept.get(name, []), list):
                raise Code.NOT_PACKED.error(
                    f"{part.path}: metadata {name!r} is not the list that `fastrecord pack` keeps there: give it "
                    f"another name, or remove it with fastrecord.files.set_metadata(path, {name}=None)"
                )
    target = Target(None, classes, labels, 0, records, records, kept=kept, source=_source(listing), settings=settings)
    target.writer = reopen(part.path, records)
    return target


def _resume(
    part: Part,
    listing: Listing,
    schema: Schema,
    labels: Labels | None,
    classes: list[str] | None,
    settings: Settings,
) -> Target:
    with Reader(part.path) as reader:
        check_schema(reader, schema)
        kept = reader.metadata
        this, skipped = last_pack(part.path, kept)
        was = _settings(part.path, this)
        if was != settings:
            found = "is complete, and was packed" if reader.complete else "cannot be resumed: it was begun"
            raise Code.OTHER_SETTINGS.error(
                f"{part.path}: {found} with other settings: {was}, but this pack has {settings}: "
                "give the same, or begin again with `--overwrite`"
            )
        names = class_names(reader)
        if this["first_record"] > 0:  # an append: its class numbers are the file's
            labels, classes = number_labels(listing, names, part.path)
        elif names != classes:
            raise other_input(reader, f"its pack began with other classes: {_differ(names, classes)}")
        position = _match(reader, part, listing, labels, this["first_record"], {key for key, _ in skipped})
        records, complete = len(reader), reader.complete
        if complete and position < part.stop:
            raise other_input(reader, f"{listing.keys[position]!r} is not in the file")
    target = Target(
        None, classes, labels, position, records, this["first_record"], skipped, kept, this["source"], settings
    )
    if not complete:
        target.writer = reopen(part.path, records)
    return target


def last_pack(path: str, metadata: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Remove the last pack's entry from a file's metadata; return it and its skipped files.

    Raises:
        FastRecordError: no pack has written the file.
    """
    try:
        this = metadata["packs"].pop()
        entry = this | {"first_record": int(this["first_record"]), "source": str(this["source"])}
        rows, count = metadata["skipped"], int(this["skipped"])
        skipped = [(str(row["key"]), str(row["reason"])) for row in rows[len(rows) - count :]]
        metadata["skipped"] = rows[: len(rows) - count]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as err:
        raise _not_packed(path) from err
    return entry, skipped


def _settings(path: str, this: dict[str, Any]) -> Settings:
    if "import" in this:
        raise Code.NOT_PACKED.error(
            f"{path}: was written by `fastrecord import`, so it is resumed by `fastrecord import --resume`"
        )
    try:
        return Pairing.from_json(this["pairs"]) if "pairs" in this else Recode.from_json(this.get("recode", {}))
    except (TypeError, ValueError, AttributeError) as err:
        raise _not_packed(path) from err


def _not_packed(path: str) -> FastRecordError:
    return Code.NOT_PACKED.error(f"{path}: was not written by `fastrecord pack`, so it cannot be resumed")


def _match(reader: Reader, part: Part, listing: Listing, labels: Labels | None, first: int, skipped: set[str]) -> int:
    """Compare a pack's records with its input; return the position of the next input file."""
    keys = listing.keys
    position = part.start
    for number, key, label in _records(reader, first):
        while position < part.stop and keys[position] in skipped:
            position += 1
        expected = keys[position] if position < part.stop else None
        if key != expected:
            found = "nothing" if expected is None else repr(expected)
            raise other_input(reader, f"record {number} is {key!r}, where the input has {found}")
        if labels is not None and label != labels[position]:
            raise other_input(
                reader, f"record {number}, {key!r}, has the label {label}, the input says {labels[position]}"
            )
        position += 1
    while position < part.stop and keys[position] in skipped:
        position += 1
    return position


def other_input(reader: Reader, what: str) -> FastRecordError:
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


def reopen(path: str, records: int) -> Writer:
    """Open a file for appending, if it still has this number of records."""
    writer = Writer(path, None, "a", complete=False, commit_bytes=NEVER)
    found = len(writer)
    if found != records:
        writer.abort()
        raise Code.PACK_RUNNING.error(
            f"{path}: went from {records:,} to {found:,} records just now: wait until the other pack has finished"
        )
    return writer


def check_schema(reader: Reader, schema: Schema) -> None:
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


def _records(reader: Reader, first: int) -> Iterator[tuple[int, str, int]]:
    """Yield number, key and label (0 without labels) of the records from `first` on."""
    fields = ["key", "label"] if "label" in reader.schema else ["key"]
    for start in range(first, len(reader), _BATCH):
        numbers = range(start, min(start + _BATCH, len(reader)))
        batch = reader.read_batch(numbers, fields)
        labels = batch["label"].tolist() if "label" in fields else [0] * len(numbers)
        yield from zip(numbers, batch["key"], labels, strict=True)
