"""`StreamedFile`: a file in an object store that is read once: nothing of it is kept.

What opening reads, and the columns, lie in a sparse file without a name. Payloads come in windows
and their space is given back, so that a file of any size takes little room.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from fastrecord._core import (
    CorruptFileError,
    FastRecordError,
    Reader,
    check_field,
    damaged_payloads,
    field_parts,
    open_shard,
    payload_fields,
    payload_parts,
    punch_hole,
)
from fastrecord.errors import Code
from fastrecord.names import as_name
from fastrecord.store.cached_file import Head, Here
from fastrecord.store.ranges import Numbers, Ranges, merged, pairs_of
from fastrecord.store.requests import ATTEMPTS, PAGE, RemoteFolder
from fastrecord.store.store import Store
from fastrecord.store.threads import in_order

# Bytes of payloads that are brought at once; three times as many are here at a time.
_WINDOW = 32 << 20
# Records whose payloads are looked up at once.
_RUN = 1 << 17
# Gaps that are read too.
_GAP = PAGE
# As many errors as `Reader.verify` lists.
_MOST_ERRORS = 1000

# For each field with payloads: records, and where their payloads lie, int64 (N, 4).
_Parts = dict[str, tuple[Numbers, Numbers]]


class StreamedFile:
    """A file of which only the head is here; a context manager.

    Opening takes two requests, or three if the directory is not within the last 64 KiB.

    Args:
        store: The folder.
        name: The file.

    Attributes:
        where: Its URL.
        reader: Reads what is here.

    Raises:
        FileNotFoundError: it does not exist. CorruptFileError: it is not a .frec file, or does not end with a commit.
        FastRecordError: the store does not answer. OSError: no room for temporary files.
    """

    def __init__(self, store: RemoteFolder, name: str) -> None:
        self.where, self._store, self._name = as_name(store.where(name)), store, name
        head = Head.ask(store, name)
        shard, rest = head.commit(store, name)
        self._size, self._etag, self._start = head.size, head.etag, head.size - len(head.tail)
        self._file = tempfile.TemporaryFile(prefix="fastrecord-")  # noqa: SIM115 - closed by `close`
        try:
            self._file.truncate(head.size)
            for content, at in ((head.first, 0), (head.tail, self._start)):
                self._file.seek(at)
                self._file.write(content)
            self._file.flush()
            self._place = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
            self._bring_missing(rest)
            self.reader: Reader = open_shard(self.where, "mmap", False, shard.about, Here(self._place))
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def of(cls, url: str, store: Store | None = None) -> Self:
        """Open the file of a URL."""
        return cls(*RemoteFolder.of_file(url, store))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back."""
        self.reader.close()
        self._file.close()

    def verify(self, progress: Callable[[int, int], object] | None = None, *, deep: bool = False) -> dict[str, Any]:
        """Check every checksum, and return a report like that of `Reader.verify`.

        Each byte is read once, again only if it differs from its checksum. Of a damaged column, the
        first place is named.

        Args:
            progress: Called with the bytes done, and of all.
            deep: Check the values too. A copy of the whole file is then made for as long as this takes.

        Raises:
            FastRecordError: the store does not answer, or the file has been replaced.
        """
        report = _Report(self.reader)
        fields = self._bring_columns(report)
        payloads = set(payload_fields(self.reader))

        def bring(window: _Parts) -> _Parts:
            self._bring_missing(_ranges(window.values(), _GAP))
            return window

        windows = self._windows([name for name in fields if name in payloads], report)
        for window in in_order(bring, windows, 1, "fastrecord-verify"):
            self._check(window, report, keep=deep)
            if progress is not None:
                progress(report.bytes, self._size)
        return self.reader.verify(deep=True) if deep else report.to_dict()

    def _bring(self, ranges: Ranges) -> None:
        if ranges:
            self._store.download(self._name, ranges, self._place, self._etag)

    def _bring_missing(self, ranges: Ranges) -> None:
        """Bring ranges, but not what came with the end of the file."""
        self._bring([(at, min(length, self._start - at)) for at, length in ranges if at < self._start])

    def _bring_columns(self, report: _Report) -> list[str]:
        """Bring and check the columns of all fields; return the names of those whose columns are whole."""
        parts = {name: [one for one in field_parts(self.reader, name) if one[1]] for name in self.reader.schema}
        all_parts = [one for some in parts.values() for one in some]
        self._bring_missing(merged(np.array(all_parts, np.int64).reshape(-1, 2), _GAP))
        return [name for name, ranges in parts.items() if self._is_whole(name, ranges, report)]

    def _is_whole(self, name: str, ranges: Ranges, report: _Report) -> bool:
        """Return whether a field's columns are whole, and bring those again that are not."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                check_field(self.reader, name)
                return True
            except CorruptFileError as error:
                if attempt == ATTEMPTS:
                    report.note(str(error))
                    return False
            self._bring(ranges)
        return False

    def _windows(self, names: Sequence[str], report: _Report) -> Iterator[_Parts]:
        """Yield where the payloads of all records lie, some records at a time."""
        for start in range(0, len(self.reader), _RUN):
            records = np.arange(start, min(start + _RUN, len(self.reader)))
            found = {name: self._parts(name, records, report) for name in names}
            sizes = np.zeros(len(records), np.int64)
            for numbers, parts in found.values():
                sizes[numbers - start] += parts[:, 1] + parts[:, 3]
            window = np.cumsum(sizes) // _WINDOW
            for at in np.split(records, np.flatnonzero(np.diff(window)) + 1):
                if len(at):
                    chosen = {name: (one[0] >= at[0]) & (one[0] <= at[-1]) for name, one in found.items()}
                    yield {name: (found[name][0][mask], found[name][1][mask]) for name, mask in chosen.items()}

    def _parts(self, name: str, records: Numbers, report: _Report) -> tuple[Numbers, Numbers]:
        """Return the records whose payloads can be found, and where they lie."""
        with suppress(CorruptFileError):
            return records, payload_parts(self.reader, name, records).reshape(-1, 4)
        good: list[int] = []
        rows = [np.empty((0, 4), np.int64)]
        for record in records.tolist():
            try:
                rows.append(payload_parts(self.reader, name, [record]).reshape(1, 4))
                good.append(record)
            except CorruptFileError as error:
                report.note(str(error), record, name)
        return np.array(good, np.int64), np.concatenate(rows)

    def _check(self, window: _Parts, report: _Report, *, keep: bool) -> None:
        """Check the payloads of a window, and give their space back."""
        for name, (records, parts) in window.items():
            damaged = damaged_payloads(self.reader, name, records)
            for _ in range(1, ATTEMPTS):
                if len(damaged):
                    self._bring(_ranges([(records, parts[damaged])], _GAP))
                    damaged = damaged[damaged_payloads(self.reader, name, records[damaged])]
            for record in records[damaged].tolist():
                report.note_value(record, name)
            report.bytes += int(parts[:, 1].sum())
        if not keep:
            for offset, length in _ranges(window.values(), 0):
                first, end = -(-offset // PAGE) * PAGE, (offset + length) // PAGE * PAGE
                if end > first:
                    with suppress(OSError):  # a file system without holes keeps the space
                        punch_hole(self._file.fileno(), first, end - first)


class _Report:
    """What a verification has found."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._more = reader, 0
        self._errors: list[str] = []
        self._damaged: list[dict[str, Any]] = []
        self.bytes = 0
        self._has_keys = "key" in reader.schema and reader.schema["key"].name == "string"

    def note(self, error: str, record: int | None = None, field: str | None = None) -> None:
        """Note an error; with a record and a field, it is about one value."""
        if len(self._errors) >= _MOST_ERRORS:
            self._more += 1
            return
        self._errors.append(error)
        if record is not None:
            key = None
            if self._has_keys:
                with suppress(FastRecordError):  # its own checksum differs
                    key = self._reader.get(record, "key")
            self._damaged.append({"record": record, "field": field, "key": key, "error": error})

    def note_value(self, record: int, field: str) -> None:
        """Note a value that differs from its checksum, or whose side bytes do."""
        try:
            self._reader.get(record, field, verify=True, copy=True)
        except CorruptFileError as error:
            self.note(str(error), record, field)
            return
        where = f"{self._reader.path}: record {record}, field {field}"
        self.note(Code.BAD_SIDE.text(f"{where}: the crop index differs from its checksum"), record, field)

    def to_dict(self) -> dict[str, Any]:
        """Return the report, as `Reader.verify` does."""
        errors = list(self._errors)
        if self._more:
            errors.append(f"{self._reader.path}: {self._more} more damaged places are not listed")
        return {
            "ok": not errors,
            "records": len(self._reader),
            "bytes": self.bytes,
            "errors": errors,
            "damaged": self._damaged,
            "decoded": 0,
            "undecoded": 0,
            "tail_bytes": 0,
        }


def _ranges(parts: Iterable[tuple[Numbers, Numbers]], gap: int) -> Ranges:
    """Return the ranges of payloads, those that are at most `gap` bytes apart as one."""
    return merged(np.concatenate([np.empty((0, 2), np.int64), *(pairs_of(one) for _, one in parts)]), gap)
