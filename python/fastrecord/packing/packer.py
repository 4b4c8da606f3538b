"""`Packer`: stores the records of a source in files, run by run, with commits between them.

Leaves files in a known state after errors and Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from fastrecord._core import Reader, Writer, foreign_kind
from fastrecord.dataset.manifest import NAME
from fastrecord.errors import Code, FastRecordError
from fastrecord.files.division import Part, as_set, as_set_begun, refuse_strays
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.manifest import name_new_shards
from fastrecord.files.places import refuse_irregular
from fastrecord.files.read_ahead import ReadAhead
from fastrecord.interchange.files.listing import BAD_WAY_OUT, UNREADABLE
from fastrecord.interchange.source import Files, Rows
from fastrecord.packing.fields import KEY, convert, source_names
from fastrecord.packing.keys import SeenKeys
from fastrecord.packing.options import Mode
from fastrecord.packing.summary import PackProgress, PackSummary, foreign_text
from fastrecord.packing.target import Target, column_of, open_target

if TYPE_CHECKING:  # what packs into files does without it
    from fastrecord.files.publish.upload import Upload
    from fastrecord.packing.job import Job

_log = logging.getLogger("fastrecord.pack")

# Maximum number of skipped files named in the log.
_NAMED = 20
# A writer commits by itself, within a run, when its index takes 64 MiB of memory; this limit comes
# long before.
_COMMIT_RECORDS = 1 << 18
# One call into the core reads about so much of files, so that progress and Ctrl-C work a few times a
# second. If images are changed, the time of a call depends on CPUs, not on disks.
_FILES_BYTES = 64 << 20
_FILES = range(16, 1025)
_FIRST_FILES, _FIRST_CHANGED_FILES = 64, 2
_CHANGED_SECONDS = 0.3
_OF_VALUE = {Code.BAD_VALUE, Code.LARGE_LABEL}
# Number of a record in the source -> what is wrong with it.
_Reasons = dict[int, tuple[Code, str]]


class Packer:
    """Packs one part after the other, and sums up the results.

    Args:
        job: What is packed, and how.
        commit_bytes: Commit durably each time this many bytes have been written.
        progress: Called a few times a second.
        upload: The way to an object store, if the files go there.
        may_be_empty: Whether a file without any record is good.

    Attributes:
        seen: The keys so far, if the source does not know that they differ.
    """

    def __init__(
        self,
        job: Job,
        commit_bytes: int = 1 << 30,
        progress: Callable[[PackProgress], None] | None = None,
        upload: Upload | None = None,
        *,
        may_be_empty: bool = False,
    ) -> None:
        self.job, self.upload, self.may_be_empty = job, upload, may_be_empty
        self.commit_bytes, self.progress, self.total = commit_bytes, progress, job.source.count()
        self.summary = PackSummary(ignored=job.source.ignored, scale=job.source.facts.get("scale"))
        keyed = any(field.name == KEY and field.type.name == "string" for field in job.fields)
        self.seen = SeenKeys() if keyed and job.source.keys is None else None
        self.images = [field.name for field in job.fields if field.type.name == "image"]
        self._interrupt = HeldInterrupt()
        self._bad: FastRecordError | None = None
        self._started = time.perf_counter()
        self._files = _FIRST_CHANGED_FILES if job.recode.changes else _FIRST_FILES

    def run(self, parts: Sequence[Part], out: str, mode: Mode) -> PackSummary:
        """Pack all parts.

        Args:
            parts: The files to write.
            out: The caller's name for them.
            mode: What to do with existing files.
        """
        with self._interrupt:
            if self.upload is None:
                self._write(parts, out, mode)
            else:
                out = self.upload.url
                self._send(self.upload, parts, mode)
        if self._interrupt.pending:
            raise KeyboardInterrupt(f"{out}: the pack is complete")
        self._log_summary()
        return self.summary

    def _write(self, parts: Sequence[Part], out: str, mode: Mode) -> None:
        """Pack all parts. Files that replace others are renamed when all are whole; until then the old ones stay."""
        summary, replaces = self.summary, mode == "overwrite"
        refuse_strays(out, parts)
        for part in parts:
            refuse_irregular(part.path)
            if mode == "create" and os.path.lexists(part.path):
                raise FileExistsError(
                    f'{part.path}: exists already: `--resume` (mode="resume") continues a killed pack, `--append` '
                    '(mode="append") adds records, `--overwrite` (mode="overwrite") replaces it'
                )
        if parts[0].path != out:
            parts = as_set_begun(parts) if mode == "resume" else as_set(parts)
        targets: Iterable[Target] = (open_target(self.job, part, mode) for part in parts)
        with ExitStack() as stack:
            if replaces:  # find obstacles to the final rename before hours of work
                targets = [stack.enter_context(target) for target in targets]
            try:
                for part, target in zip(parts, targets, strict=True):
                    self._pack(part, target, replaces=replaces)
            except BaseException as err:
                whole = summary.paths
                if whole and len(parts) > 1 and not replaces:
                    to = f" to {whole[-1]}" if len(whole) > 1 else ""
                    what = f"{len(whole):,} of {len(parts):,} shards are whole, {whole[0]}{to}"
                    err.add_note(f"{what}: `--resume` packs the others")
                raise
            for part, target in zip(parts, targets, strict=True) if replaces else ():
                if target.writer is not None:
                    with _explained(part.path, target.writer):
                        target.writer.close()
        try:
            new = name_new_shards([part.path for part in parts], only_renew=parts[0].path == out)
        except (FastRecordError, OSError) as err:
            folder = os.path.dirname(os.path.abspath(parts[0].path))
            err.add_note(f"{out}: all records are packed; only the manifest of {folder} is as it was before")
            raise
        if new is not None:
            summary.manifest, summary.not_named = new.manifest, new.left
        summary.bytes = sum(map(os.path.getsize, summary.paths))

    def _send(self, upload: Upload, parts: Sequence[Part], mode: Mode) -> None:
        """Pack all parts and send each; together they become a data set in the end."""
        summary = self.summary
        begun = upload.begin(parts, self.job.identity())
        for part in begun:
            if (sent := upload.sent(part.path)) is None:
                target = open_target(self.job, part, mode)
                self._pack(part, target)
                upload.send(part.path, target.skipped, lambda: self._interrupt.pending)
                continue
            entry, skipped = sent
            summary.paths.append(part.path)
            summary.classes = entry.classes
            summary.records += entry.records
            summary.skipped += skipped
            if self.total is not None:
                self._report(min(part.stop, self.total))
        if begun:
            entries = upload.finish([part.path for part in begun], lambda: self._interrupt.pending)
        else:
            entries = upload.stored()
            summary.records, summary.classes = sum(entry.records for entry in entries), entries[0].classes
        summary.paths = [upload.where(entry.name) for entry in entries]
        summary.bytes = sum(entry.bytes for entry in entries)
        summary.manifest = None if upload.is_file else upload.where(NAME)

    def _log_summary(self) -> None:
        summary = self.summary
        for key, reason in summary.skipped[:_NAMED]:
            _log.warning("skipped: %s: %s", key, reason)
        if len(summary.skipped) > _NAMED:
            _log.warning("skipped %d more files", len(summary.skipped) - _NAMED)
        if summary.foreign:
            _log.warning("%s: %s", summary.paths[0], foreign_text(summary.foreign))
        if summary.not_named is not None:
            _log.warning("%s", summary.not_named)
        counts = summary.packed, summary.records, len(summary.paths), time.perf_counter() - self._started
        _log.info("%s: %d records packed, of %d in %d file(s), in %.1f s", summary.paths[0], *counts)

    def _report(self, position: int) -> None:
        """Tell the caller how much of the input is done."""
        if self.progress is not None:
            self.progress(PackProgress(position, self.total, self.summary.written))

    def _pack(self, part: Part, target: Target, *, replaces: bool = False) -> None:
        """Pack one part; a file that replaces another one is then durable, but not yet renamed."""
        summary, writer = self.summary, target.writer
        if target.records and self.seen is not None:
            with Reader(os.path.realpath(part.path)) as reader:
                for numbers, keys in column_of(reader, KEY) if KEY in reader.schema else ():
                    self.seen.add(dict(zip(numbers, keys, strict=True)))
        if writer is not None:
            before = len(writer)
            with _explained(part.path, writer):
                finished = self._fill(part, target, writer)
                if not finished and (replaces or len(writer) == target.first_record):
                    raise KeyboardInterrupt
                if len(writer) == 0 and not self.may_be_empty:
                    self._refuse_empty(part, target)
                writer.metadata = target.metadata()
                writer.complete = finished
                summary.packed += len(writer) - before
                target.records = len(writer)
                if replaces:
                    writer._finish()
                else:
                    writer.close()
                summary.count(writer.foreign, writer.recoded if self.job.recode.changes else None)
            if not finished:
                raise KeyboardInterrupt(
                    f"{part.path}: {target.records:,} records are committed: `--resume` continues from there"
                )
        summary.paths.append(part.path)
        summary.classes = self.job.classes
        summary.records += target.records
        summary.skipped += target.skipped

    def _fill(self, part: Part, target: Target, writer: Writer) -> bool:
        """Append what the file lacks; return whether everything was done, or Ctrl-C came first."""

        def commit() -> tuple[int, int]:
            writer.metadata = target.metadata()
            writer.commit()
            return writer.bytes_written, len(writer)

        committed_bytes, committed_records = writer.bytes_written, len(writer)
        self._report(target.position)
        if target.position >= part.stop:
            return True
        runs = ReadAhead(self.job.source.read(target.position, source_names(self.job.fields)), self._interrupt)
        try:
            with runs:
                for rows in self._pieces(runs, part.stop):
                    if self._interrupt.pending:
                        return False
                    before, started = writer.bytes_written, time.perf_counter()
                    self._append(rows, target, writer)
                    grown = writer.bytes_written - before
                    self.summary.written += grown
                    self._files = self._next_files(rows.count, grown, time.perf_counter() - started)
                    bytes_since, records_since = writer.bytes_written - committed_bytes, len(writer) - committed_records
                    if bytes_since >= self.commit_bytes or records_since >= _COMMIT_RECORDS:
                        committed_bytes, committed_records = commit()
                    self._report(rows.start + rows.count)
        except Exception as err:
            # The records before a bad one stay, so that --resume continues after them.
            if (err is runs.error or err is self._bad) and len(writer) > target.first_record:
                commit()
            raise
        return not runs.interrupted

    def _pieces(self, runs: Iterable[Rows], stop: int) -> Iterator[Rows]:
        """Yield runs up to a record; runs of files in pieces of which one call takes a moment."""
        for rows in runs:
            end = min(rows.start + rows.count, stop)
            at = rows.start
            while at < end:
                step = self._files if any(isinstance(each, Files) for each in rows.columns.values()) else rows.count
                yield rows.cut(at, min(at + step, end))
                at += step
            if end == stop:
                return

    def _next_files(self, files: int, grown: int, seconds: float) -> int:
        """Return how many files to take next, from the cost of these."""
        by_bytes = int(_FILES_BYTES * files / max(grown, 1))
        if not self.job.recode.changes:
            return min(max(by_bytes, _FILES.start), _FILES.stop - 1)
        by_time = int(_CHANGED_SECONDS * files / max(seconds, 1e-9))
        return min(max(min(by_bytes, by_time, 4 * files), 1), _FILES.stop - 1)

    def _refuse_empty(self, part: Part, target: Target) -> None:
        source = self.job.source
        if not target.skipped:
            raise Code.SOURCE.error(f"{source.where}: the source holds no records")
        key, reason = target.skipped[0]
        if source.keys is None:
            raise Code.SOURCE.error(f"{part.path}: no record is good; the first, {key}: {reason}")
        if len(target.skipped) == len(source.keys):
            count = part.stop - part.start
            raise Code.NO_IMAGES.error(f"{part.path}: none of its {count:,} inputs is good; the first, {key}: {reason}")

    def _append(self, rows: Rows, target: Target, writer: Writer) -> None:
        """Append a run; note or raise its bad records."""
        source, stops = self.job.source, self.job.bad_files == "stop"
        numbers = rows.numbers
        columns, unfit = convert(self.job.fields, rows)
        bad = Code.SOURCE_RECORD if source.keys is None else Code.BAD_FILE
        reasons: _Reasons = {number: (bad, reason) for number, reason in rows.bad.items()}
        reasons |= {number: (Code.MIXED_FIELDS, reason) for number, reason in unfit.items()}
        if self.seen is not None:
            keys = {numbers[i]: key for i, key in enumerate(columns[KEY]) if key is not None}
            for number in self.seen.add(keys):
                reasons.setdefault(number, (Code.SAME_KEY, f"an earlier record has the key {keys[number]!r}"))
        if reasons:
            stop = min(reasons) if stops else rows.start + rows.count
            good = [i for i, number in enumerate(numbers) if number < stop and number not in reasons]
            columns = {
                name: type(values)(some) if isinstance(values, Files) else some
                for name, values in columns.items()
                for some in ([values[i] for i in good],)
            }
            numbers = [numbers[i] for i in good]
        reasons |= self._store(columns, numbers, writer)
        if reasons and stops:
            first = min(reasons)
            error = self._describe(first, *reasons[first])
            # Files after a bad one are appended before it is known: no commit may keep them.
            self._bad = None if reasons[first][0] == Code.BAD_FILE else error
            raise error
        target.skipped += [(source.key(number), reasons[number][1]) for number in sorted(reasons)]

    def _store(self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], writer: Writer) -> _Reasons:
        """Append columns; return what is wrong with the records that were left out.

        If bad records stop the pack, nothing after the first one need be appended.
        """
        before = len(writer)
        files = next((name for name, values in columns.items() if isinstance(values, Files)), None)
        try:
            if files is not None:
                values = {name: values for name, values in columns.items() if name != files}
                paths = list(columns[files])
                failed = writer.append_files(files, paths, values, on_error="skip", recode=self.job.recode)
                return {numbers[at]: (Code.BAD_FILE, _reason(err)) for at, err in failed}
            if not self.images:
                writer.extend(columns)
                return {}
            image, *others = self.images
            values = {name: values for name, values in columns.items() if name != image}
            on_error = "raise" if self.job.bad_files == "stop" else "skip"
            bad = writer.append_images(image, columns[image], values, on_error=on_error, recode=self.job.recode)
            for name in others:
                self.summary.count(Counter(filter(None, map(foreign_kind, columns[name]))))
            return {numbers[at]: (Code.SOURCE_RECORD, _reason(err)) for at, err in bad}
        except FastRecordError as err:
            stored = len(writer) - before
            if err.code in _OF_VALUE and stored == 0 and len(numbers) > 1:
                # The values of all records are looked at before the first one is appended.
                return self._store_one_by_one(columns, numbers, writer)
            if err.code not in _OF_VALUE | {Code.BAD_INPUT_IMAGE}:
                raise
            code = Code.MIXED_FIELDS if err.code in _OF_VALUE else Code.SOURCE_RECORD
            return {numbers[stored]: (code, _reason(err))}

    def _store_one_by_one(
        self, columns: Mapping[str, Sequence[Any]], numbers: Sequence[int], writer: Writer
    ) -> _Reasons:
        reasons: _Reasons = {}
        for i, number in enumerate(numbers):
            reasons |= self._store({name: values[i : i + 1] for name, values in columns.items()}, [number], writer)
            if reasons and self.job.bad_files == "stop":
                break
        return reasons

    def _describe(self, number: int, code: Code, reason: str) -> FastRecordError:
        source = self.job.source
        text = f"{source.place(number)}: {reason}"
        if code == Code.BAD_FILE:
            return code.error(text, way_out=BAD_WAY_OUT)
        ways = {
            Code.SAME_KEY: "remove one of them, or store no keys by naming the other fields with --map",
            Code.MIXED_FIELDS: "store other fields with --map, give a type that fits all with --type",
        }
        if not source.paths:  # a data set
            fields = "name other fields, or types that fit all, by Fields(mapping=, types=)"
            ways = {Code.SAME_KEY: f"remove one of them, or {fields}", Code.MIXED_FIELDS: fields}
        way = ways.get(code, "repair the source, then --resume")
        others = "or leave out all such records with `--bad-files skip` (bad_files='skip')"
        return code.error(text, way_out=f"{way}; {others}")


def _reason(err: Exception) -> str:
    """Return what is wrong with an input, without the writer's place of it."""
    if isinstance(err, FastRecordError):
        return err.text if err.field is None else f"field {err.field}: {err.text}"
    return f"{UNREADABLE}: {getattr(err, 'strerror', None) or err}"


@contextmanager
def _explained(path: str, writer: Writer) -> Iterator[None]:
    """Abort a writer after an error, and add a note about what is left."""
    try:
        yield
    except BaseException as err:
        writer.abort()
        # An error of this code names the location of the records, which the path does not lead to.
        if not (isinstance(err, FastRecordError) and err.code == Code.NAME_LOST):
            _explain(path, err)
        raise


def _explain(path: str, err: BaseException) -> None:
    """Add a note to an error about what remains."""
    if isinstance(err, OSError):
        err.__notes__ = []  # the writer's own notes, which do not mention `--resume`
    room = "make room, then " if isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    try:
        with Reader(path) as reader:
            records, complete = len(reader), reader.complete
    except FileNotFoundError:
        err.add_note(f"{path}: nothing was committed, and no file is left{room and ': make room, then pack again'}")
        return
    except (FastRecordError, OSError):
        return  # the original error matters more
    if complete:
        err.add_note(f"{path}: the file is as it was before, with {records:,} records")
    else:
        kept = f"{path}: the file is readable up to its last commit, {records:,} records"
        err.add_note(f"{kept}: {room}`--resume` continues from there")
