"""`verify`: checks a file in an object store, and keeps nothing of it.

Payloads come in windows and their space is given back, so that a file of any size takes little room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from fastrecord._core import CorruptFileError, FastRecordError, Reader, payload_fields, payload_parts
from fastrecord.errors import Code
from fastrecord.store.cached_file import CachedFile
from fastrecord.store.ranges import Numbers
from fastrecord.store.requests import RemoteFolder, asked_until_good
from fastrecord.store.shard_source import CachedFolder
from fastrecord.store.store import Store
from fastrecord.store.threads import in_order

# Bytes of payloads that are brought at once; three times as many are here at a time.
_WINDOW = 32 << 20
# Records whose payloads are looked up at once.
_RUN = 1 << 17
# As many errors as `Reader.verify` lists.
_MOST_ERRORS = 1000


def open_url(url: str, store: Store | None = None) -> CachedFile:
    """Open the file of a URL; what is brought of it is gone with the result.

    Opening takes two requests, or three if the directory is not within the last 64 KiB.

    Raises:
        FileNotFoundError: it does not exist. CorruptFileError: it is not a .frec file, or does not end with a commit.
        FastRecordError: the store does not answer. OSError: no room for temporary files.
    """
    folder, name = RemoteFolder.of_file(url, store)

    def ask() -> CachedFile:
        supply = CachedFolder(folder).examine(name)
        supply.open()
        return supply.file

    return asked_until_good(ask)


def verify(
    file: CachedFile, progress: Callable[[int, int], object] | None = None, *, deep: bool = False
) -> dict[str, Any]:
    """Check every checksum, and return the report that `Reader.verify` would return.

    Each byte is read once, again only if it differs from its checksum. Of a damaged column, the
    first place is named.

    Args:
        file: The file, as `open_url` opens it.
        progress: Called with the bytes done, and of all.
        deep: Check the values too. A copy of the whole file is then made for as long as this takes.

    Raises:
        FastRecordError: the store does not answer, or the file has been replaced.
    """
    report = _Report(file.reader)
    fields = [name for name in file.reader.schema if _has_columns(file, name, report)]
    fields = [name for name in fields if name in payload_fields(file.reader)]

    def bring(window: _Window) -> _Window:
        file.need(window.fields, window.records, tight=True)
        return window

    for window in in_order(bring, _windows(file.reader, fields), 1, "fastrecord-verify"):
        for one in window.lost:
            report.note(*one)
        for name, damaged in file.damaged(window.fields, window.records):
            for record in damaged.tolist():
                report.note_value(record, name)
        report.bytes += window.bytes
        if not deep:
            file.forget(window.fields, window.records)
            file.free(window.fields, window.records)
        if progress is not None:
            progress(report.bytes, file.shard.bytes)
    return file.reader.verify(deep=True) if deep else report.to_dict()


def _has_columns(file: CachedFile, name: str, report: _Report) -> bool:
    """Bring the columns of a field; return whether they are whole."""
    try:
        file.need([name], None, payloads=False)
        return True
    except CorruptFileError as error:
        report.note(str(error))
        return False


class _Window(NamedTuple):
    """Payloads that are brought together.

    Attributes:
        fields, records: Of these.
        bytes: Of their values.
        lost: What is wrong with payloads that cannot be found, with their records and fields.
    """

    fields: Sequence[str]
    records: Numbers
    bytes: int
    lost: Sequence[tuple[str, int, str]] = ()


def _windows(reader: Reader, fields: Sequence[str]) -> Iterator[_Window]:
    """Yield all records in portions. A record with a payload that cannot be found has a portion of its own."""
    for start in range(0, len(reader), _RUN):
        records = np.arange(start, min(start + _RUN, len(reader)))
        lost: dict[int, dict[str, str]] = {}
        parts = [_parts(reader, name, records, lost) for name in fields]
        values = sum((part[:, 1] for part in parts), np.zeros(len(records), np.int64))
        sides = sum((part[:, 3] for part in parts), np.zeros(len(records), np.int64))
        window = np.cumsum(values + sides) // _WINDOW
        whole = ~np.isin(records, list(lost))
        for at in np.split(np.arange(len(records)), np.flatnonzero(np.diff(window)) + 1):
            good = at[whole[at]]
            yield _Window(fields, records[good], int(values[good].sum()))
        for record, errors in lost.items():
            rest = [name for name in fields if name not in errors]
            notes = [(error, record, name) for name, error in errors.items()]
            yield _Window(rest, records[[record - start]], int(values[record - start]), notes)


def _parts(reader: Reader, name: str, records: Numbers, lost: dict[int, dict[str, str]]) -> Numbers:
    """Return where payloads lie, int64 (N, 4); those that cannot be found are added to `lost`, and have no bytes."""
    with suppress(CorruptFileError):
        return payload_parts(reader, name, records).reshape(-1, 4)
    parts = np.zeros((len(records), 4), np.int64)
    for at, record in enumerate(records.tolist()):
        try:
            parts[at] = payload_parts(reader, name, [record])
        except CorruptFileError as error:
            lost.setdefault(record, {})[name] = str(error)
    return parts


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
