"""`RecordPacker`: stores the records of a source, run by run, with commits between them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastrecord._core import FastRecordError, Reader, Writer
from fastrecord.errors import Code, plain
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.shard_names import Part
from fastrecord.interchange import Rows, Source
from fastrecord.pack.ahead import ReadAhead
from fastrecord.pack.fields import KEY, PlannedField
from fastrecord.pack.keys import SeenKeys
from fastrecord.pack.output import Target
from fastrecord.pack.packer import COMMIT_RECORDS, BadFiles, Packer, PackProgress
from fastrecord.recode import Recode

_KEYS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """What an import does, as the file's metadata has it; a resumed one must do the same.

    Attributes:
        format: Name of the format.
        digest: Digest of the names of the source's files.
        fields: Name in the file -> [name in the source, type].
        settings: Settings of the format.
        recode: How images are stored.
    """

    format: str
    digest: str
    fields: Mapping[str, Sequence[str]]
    settings: Mapping[str, str]
    recode: Recode = field(default_factory=Recode)

    def entry(self) -> dict[str, Any]:
        """Return the entry for a file's metadata."""
        data = {"format": self.format, "digest": self.digest, "fields": {k: list(v) for k, v in self.fields.items()}}
        return {"import": data | {"settings": dict(self.settings)}, **self.recode.entry()}

    def __str__(self) -> str:
        """Return the settings for messages."""
        fields = ",".join(f"{name}={given}" for name, (given, _) in self.fields.items())
        return f"--format {self.format} --map {fields}, {self.recode}"

    @staticmethod
    def digest_of(source: Source) -> str:
        """Return a digest of what tells a source from another one."""
        return hashlib.sha256(json.dumps(source.identity()).encode()).hexdigest()[:32]


class RecordPacker(Packer):
    """Stores the records of a source.

    Args:
        source: The source.
        fields: The fields to store, with their conversions.
        recode: How images are stored; changes need exactly one field of images.
        bad_files: Whether a bad record ends the import.
        commit_bytes: Commit durably each time this many bytes have been written.
        progress: Called after each run of records.
        total: Number of records, or None.
        started: When the import began, by `time.perf_counter`.
    """

    def __init__(
        self,
        source: Source,
        where: str,
        fields: Sequence[PlannedField],
        recode: Recode,
        bad_files: BadFiles,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        *,
        total: int | None,
        started: float,
    ) -> None:
        super().__init__(bad_files, commit_bytes, progress, total=total, started=started)
        self.source, self.where, self.fields, self.recode = source, where, fields, recode
        self.seen = SeenKeys() if any(field.name == KEY and field.type.name == "string" for field in fields) else None
        self.bad: FastRecordError | None = None
        images = [field.name for field in fields if field.type.name == "image"]
        self.image = images[0] if images else None

    def learn_keys(self, path: str, first: int = 0) -> None:
        """Note the keys that a file holds already."""
        if self.seen is None:
            return
        with Reader(path) as reader:
            if KEY not in reader.schema:
                return
            for start in range(first, len(reader), _KEYS_AT_ONCE):
                numbers = range(start, min(start + _KEYS_AT_ONCE, len(reader)))
                self.seen.add(dict(zip(numbers, reader.read_batch(numbers, [KEY])[KEY], strict=True)))

    def fill(self, part: Part, target: Target, writer: Writer, interrupt: HeldInterrupt) -> bool:
        """Append the records that are not there yet."""
        position = target.position
        committed_bytes, committed_records = writer.bytes_written, len(writer)
        names = list(dict.fromkeys(field.source.name for field in self.fields))
        self.report(position)
        if position >= part.stop:
            return True
        runs = ReadAhead(self.source.read(position, names), interrupt)
        try:
            with runs:
                for rows in runs:
                    if interrupt.pending:
                        return False
                    rows = _cut(rows, part.stop)
                    before = writer.bytes_written
                    self._append(rows, target, writer)
                    self.summary.written += writer.bytes_written - before
                    position = rows.start + rows.count
                    bytes_since, records_since = writer.bytes_written - committed_bytes, len(writer) - committed_records
                    if bytes_since >= self.commit_bytes or records_since >= COMMIT_RECORDS:
                        self._commit(target, writer)
                        committed_bytes, committed_records = writer.bytes_written, len(writer)
                    self.report(position)
                    if position >= part.stop:
                        break
            if runs.interrupted:
                return False
        except Exception as err:
            # The records before a bad one stay, so that --resume continues behind them.
            if (err is runs.error or err is self.bad) and len(writer) > target.first_record:
                self._commit(target, writer)
            raise
        return True

    def nothing(self, part: Part, target: Target) -> FastRecordError | None:
        """Return the error for a source without any good record."""
        if not target.skipped:
            return Code.SOURCE.error(f"{self.where}: the source holds no records")
        key, reason = target.skipped[0]
        return Code.SOURCE.error(f"{part.path}: no record is good; the first, {key}: {reason}")

    def count(self, writer: Writer) -> None:
        """Add a writer's counts to the summary."""
        self.count_foreign(writer.foreign)
        if self.recode.changes:
            before = self.summary.recoded or {}
            self.summary.recoded = {name: count + before.get(name, 0) for name, count in writer.recoded.items()}

    def _commit(self, target: Target, writer: Writer) -> None:
        writer.metadata = target.metadata()
        writer.commit()

    def _append(self, rows: Rows, target: Target, writer: Writer) -> None:
        """Append a run; note or raise its bad records."""
        numbers = rows.numbers
        columns: dict[str, Sequence[Any]] = {}
        reasons = {number: Code.SOURCE_RECORD.error(reason) for number, reason in rows.bad.items()}
        for planned in self.fields:
            columns[planned.name], unfit = planned.converted(rows.columns[planned.source.name])
            reasons |= {numbers[i]: Code.MIXED_FIELDS.error(reason) for i, reason in unfit.items()}
        if self.seen is not None:
            keys = {numbers[i]: key for i, key in enumerate(columns[KEY]) if key is not None}
            for number in self.seen.add(keys):
                reasons.setdefault(number, Code.SAME_KEY.error(f"an earlier record has the key {keys[number]!r}"))
        if reasons:
            first = min(reasons)
            stop = first if self.bad_files == "stop" else rows.start + rows.count
            good = [i for i, number in enumerate(numbers) if number < stop and number not in reasons]
            columns = {name: [values[i] for i in good] for name, values in columns.items()}
            numbers = [numbers[i] for i in good]
        reasons |= self._store(columns, numbers, writer)
        if reasons and self.bad_files == "stop":
            self.bad = self._describe(min(reasons), reasons[min(reasons)])
            raise self.bad
        target.skipped += [(self.source.place(number), plain(reasons[number])) for number in sorted(reasons)]

    def _store(
        self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], writer: Writer
    ) -> dict[int, FastRecordError]:
        """Append columns; return the errors of the records that were left out."""
        reasons: dict[int, FastRecordError] = {}
        position = 0
        while position < len(numbers):
            rest = {name: values[position:] for name, values in columns.items()} if position else columns
            before = len(writer)
            try:
                self._write(rest, writer)
                break
            except FastRecordError as err:
                stored = len(writer) - before
                if err.code not in _OF_VALUE | _OF_IMAGE:
                    raise
                if err.code in _OF_VALUE and stored == 0 and len(numbers) > position + 1:
                    # The values of all records are looked at before the first one is appended.
                    return reasons | self._store_one_by_one(rest, numbers[position:], writer)
                code = Code.MIXED_FIELDS if err.code in _OF_VALUE else Code.SOURCE_RECORD
                reasons[numbers[position + stored]] = code.error(_PLACE.sub("", plain(err)))
                if self.bad_files == "stop":
                    break
                position += stored + 1
        return reasons

    def _write(self, columns: Mapping[str, Sequence[Any]], writer: Writer) -> None:
        """Append records; an error leaves the ones before the bad one appended."""
        if self.image is None:
            writer.extend(columns)
        else:
            rest = {name: values for name, values in columns.items() if name != self.image}
            writer.append_images(self.image, columns[self.image], rest, recode=self.recode)

    def _store_one_by_one(
        self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], writer: Writer
    ) -> dict[int, FastRecordError]:
        reasons: dict[int, FastRecordError] = {}
        for i, number in enumerate(numbers):
            reasons |= self._store({name: values[i : i + 1] for name, values in columns.items()}, [number], writer)
            if reasons and self.bad_files == "stop":
                break
        return reasons

    def _describe(self, number: int, reason: FastRecordError) -> FastRecordError:
        code = next(code for code in Code if code == reason.code)
        ways = {
            Code.SAME_KEY: "remove one of them, or store no keys by naming the other fields with --map",
            Code.MIXED_FIELDS: "store other fields with --map, give a type that fits all with --type",
        }
        if not self.source.paths:  # a data set
            fields = "name other fields, or types that fit all, by fields="
            ways = {Code.SAME_KEY: f"remove one of them, or {fields}", Code.MIXED_FIELDS: fields}
        way = ways.get(code, "repair the source, then --resume")
        return code.error(
            f"{self.source.place(number)}: {plain(reason)}: {way}; or leave out all such records with "
            "`--bad-files skip` (bad_files='skip')"
        )


# What the writer says of the place, which is not the one in the source.
_PLACE = re.compile(r"^.*?: record \d+, |^images\[\d+\]: ")
_OF_VALUE = {Code.BAD_VALUE, Code.LARGE_LABEL}
_OF_IMAGE = {Code.BAD_INPUT_IMAGE, Code.UNKNOWN_IMAGE}


def _cut(rows: Rows, stop: int) -> Rows:
    """Return the records of a run below number `stop`."""
    if rows.start + rows.count <= stop:
        return rows
    good = sum(number < stop for number in rows.numbers)
    columns = {name: values[:good] for name, values in rows.columns.items()}
    bad = {number: reason for number, reason in rows.bad.items() if number < stop}
    return Rows(rows.start, stop - rows.start, columns, bad)


def all_rows(source: Source, names: Sequence[str]) -> Iterator[Rows]:
    """Yield all runs of a source."""
    with ReadAhead(source.read(0, names)) as runs:
        yield from runs
