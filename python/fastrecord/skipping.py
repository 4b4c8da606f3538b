"""What becomes of records that give no image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError
from fastrecord.dataset import FastRecordDataset
from fastrecord.fields import read_key

# Enough to look for the cause; a disk that fails every read must not fill the memory.
_LISTED = 1000


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A record that was left out of its batch.

    Attributes:
        path: Of its file.
        record: Its number in the file.
        key: Its key; None if it has none, or one that can not be read.
        reason: What was wrong, in a sentence that names file and record too.
    """

    path: str
    record: int
    key: str | None
    reason: str


OnError: TypeAlias = Literal["raise", "skip"] | Callable[[Exception, SkippedRecord], object]


class Skipper:
    """Decides about failed records as `on_error` says, and lists those that were skipped.

    Raises:
        ValueError: `on_error` is none of its values.
    """

    def __init__(self, on_error: OnError, dataset: FastRecordDataset) -> None:
        if on_error not in ("raise", "skip") and not callable(on_error):
            raise ValueError(f'on_error is "raise", "skip" or a callable, not {on_error!r}')
        self._on_error = on_error
        self._dataset = dataset
        self.records: list[SkippedRecord] = []

    def keep(self, rows: NDArray[np.int64], failures: Sequence[tuple[int, Exception]]) -> NDArray[np.int64]:
        """Return the positions in a batch that stay, int64 (at least 1,).

        Args:
            rows: The batch, numbers over all files, int64 (N,).
            failures: Positions in it, and why they have no image.

        Raises:
            FastRecordError, OSError: a failure that may not be skipped, or nothing is left of the batch.
        """
        for position, failure in failures:
            error, record = self._describe(int(rows[position]), failure)
            # A disk that does not answer is no matter of this record.
            if self._on_error == "raise" or not isinstance(failure, FastRecordError):
                raise error
            if callable(self._on_error):
                self._on_error(error, record)
            if len(self.records) < _LISTED:
                self.records.append(record)
        if len(failures) == len(rows):
            raise FastRecordError(
                f"none of the {len(rows)} records of a batch could be loaded; the last one: {record.reason}"
            )
        return np.delete(np.arange(len(rows)), [position for position, _ in failures])

    def _describe(self, row: int, failure: Exception) -> tuple[Exception, SkippedRecord]:
        shard, number = self._dataset._shards.locate(row)
        reader = self._dataset.readers[shard]
        key = read_key(reader, number)
        named = "" if key is None else f", key {key!r}"
        if isinstance(failure, FastRecordError):
            # That of a whole file names no record.
            which = "" if f"record {number}" in str(failure) else f", record {number}"
            failure = type(failure)(f"{failure}{which}{named}")
        else:
            failure.add_note(f"{reader.path}: record {number}{named}")
        return failure, SkippedRecord(reader.path, number, key, str(failure))
