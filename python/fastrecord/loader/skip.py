"""`Skipper`: records that cannot be loaded: which errors are raised, which records are skipped."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, SchemaError
from fastrecord.checks import integer
from fastrecord.dataset.dataset import FastRecordDataset
from fastrecord.dataset.decode import if_bytes
from fastrecord.errors import Code
from fastrecord.schema.roles import read_key

_log = logging.getLogger("fastrecord.loader")

# Maximum number of skipped records in the log.
_TOLD = 20
# Enough to find the cause; a disk that fails every read must not fill the memory.
_LISTED = 1000
# Any share except 0.0 allows this many: a few bad records of a small file are not a reason to end a
# run.
_AT_LEAST = 10
# Maximum number of records named in the error that ends an epoch.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A record that was left out of its batch.

    Attributes:
        path: Path of its file.
        record: Its number in the file.
        key: Its key; None if it has none, or if the key cannot be read.
        reason: The error, as a sentence that also names file and record.
    """

    path: str
    record: int
    key: str | None
    reason: str


Handler: TypeAlias = Callable[[Exception, SkippedRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Leave records that cannot be loaded out of their batches; a loader's `on_error`.

    Attributes:
        limit: How many records an iteration may skip; one more ends it with an error. A float: a
            share of this rank's records of an epoch, but at least 10 if it is not 0.0. With a
            foreign batch sampler, it is a share of the rank's part of the data set, or of the
            records so far if they are more. An int: a number. None: no limit. An intact
            data set loses far less than the default; a wrong file or a dying disk loses far more.
        handler: Called with the error and a `SkippedRecord`, in the consumer's thread; the record
            is skipped if it returns. None: the first records are logged as warnings.

    Raises:
        TypeError, ValueError: a value is not allowed; the message says what is.
    """

    limit: float | int | None = 0.05
    handler: Handler | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, (float, np.floating)):
            if not 0 <= self.limit <= 1:
                raise ValueError(
                    f"limit is a share of an epoch's records from 0.0 to 1.0, or a number of records as an int, "
                    f"not {self.limit!r}"
                )
        elif self.limit is not None:
            integer("limit", self.limit, 0)
        if self.handler is not None and not callable(self.handler):
            raise TypeError(f"handler is a callable, not {self.handler!r}")

    def allowed(self, records: int) -> float:
        """Return how many of an epoch's records may be skipped."""
        if self.limit is None:
            return math.inf
        if not isinstance(self.limit, (float, np.floating)):
            return self.limit
        # 0.57 * 1000 is slightly less than 570.
        return max(math.floor(self.limit * records + 1e-9), _AT_LEAST if self.limit else 0)


OnError: TypeAlias = Literal["raise", "skip"] | Handler | Skip


def as_skip(on_error: OnError) -> Skip | None:
    """Return what `on_error` stands for; None if errors are raised.

    Raises:
        ValueError: it is not allowed.
    """
    if isinstance(on_error, Skip) or on_error == "raise":
        return None if on_error == "raise" else on_error
    if on_error == "skip":
        return Skip()
    if callable(on_error):
        return Skip(handler=on_error)
    raise ValueError(f'on_error is "raise", "skip", a callable or a fastrecord.Skip, not {on_error!r}')


class Skipper:
    """Applies a `Skip` to failed records; counts the skipped ones and lists the first of them.

    Attributes:
        records: The first 1000 skipped records.
        total: Number of skipped records.
    """

    def __init__(self, skip: Skip | None, dataset: FastRecordDataset) -> None:
        self.allows = skip
        self._dataset = dataset
        self.records: list[SkippedRecord] = []
        self.total = 0

    def skip(self, row: int, failure: Exception) -> SkippedRecord:
        """Skip a record, or raise its error.

        Raises:
            FastRecordError, OSError: a failure that may not be skipped.
        """
        error, record = self._describe(row, failure)
        # I/O errors and labels without a class are never skipped: they are not about one record.
        if self.allows is None or isinstance(failure, SchemaError) or not isinstance(failure, FastRecordError):
            raise error
        if self.allows.handler is not None:
            self.allows.handler(error, record)
        elif self.total < _TOLD:
            _log.warning("skipped: %s", record.reason)
        elif self.total == _TOLD:
            _log.warning("skipped more records: further ones are only counted")
        self.total += 1
        if len(self.records) < _LISTED:
            self.records.append(record)
        return record

    def _describe(self, row: int, failure: Exception) -> tuple[Exception, SkippedRecord]:
        shard, number = self._dataset.selection.shards.locate(row)
        reader = self._dataset.readers[shard]
        key = read_key(reader, number)
        if isinstance(failure, FastRecordError):
            # The error of a whole file does not name a record.
            failure.record, failure.key = number, key
            if not self._dataset.fields:
                failure.way_out = if_bytes(reader, str(self._dataset.image_field), failure.code) or failure.way_out
        else:
            named = "" if key is None else f", key {key!r}"
            failure.add_note(f"{reader.path}: record {number}{named}")
        return failure, SkippedRecord(reader.path, number, key, str(failure))


class EpochSkips:
    """The skipped records of one iteration.

    Args:
        skipper: Skips them.
        records: Number of records of the whole epoch as far as known; the epoch may be longer.
        may_fall_short: Whether a batch without any remaining record may be left out.

    Attributes:
        seen: Records of the batches so far; the batch maker counts them.
    """

    def __init__(self, skipper: Skipper, records: int, *, may_fall_short: bool) -> None:
        self._skipper, self._records, self._may_fall_short = skipper, records, may_fall_short
        self.seen = 0
        self._count = 0
        self._last: deque[SkippedRecord] = deque(maxlen=_NAMED)

    def keep(self, rows: NDArray[np.int64], failures: Sequence[tuple[int, Exception]]) -> NDArray[np.int64]:
        """Return the slots of a batch to keep, int64 (K,); none if the batch may be left out.

        Args:
            rows: The batch, record numbers over all files, int64 (N,).
            failures: Slots of the batch, with their errors.

        Raises:
            FastRecordError, OSError: a failure may not be skipped; an epoch has more failures than
                allowed; or nothing is left of a batch that may not be left out.
        """
        for slot, failure in failures:
            self._last.append(self._skipper.skip(int(rows[slot]), failure))
            self._count += 1
        skip = self._skipper.allows
        if skip is not None and self._count > (allowed := skip.allowed(max(self.seen, self._records))):
            raise Code.TOO_MANY_SKIPPED.error(self._too_many(skip, allowed))
        if len(failures) == len(rows) and not self._may_fall_short:
            raise Code.NONE_LOADED.error(
                f"none of the {len(rows)} records of a batch could be loaded, and ranks that take equally many batches "
                f"(drop_last='pad' or True) cannot leave one out: use larger batches; the last one: "
                f"{self._last[-1].reason}"
            )
        return np.delete(np.arange(len(rows)), [slot for slot, _ in failures])

    def end(self) -> None:
        """End the iteration after its last batch.

        Raises:
            FastRecordError: no record could be loaded.
        """
        if self._count and self._count == self.seen:
            raise Code.NONE_LOADED.error(
                f"none of the {self._count} records of an iteration could be loaded; the last one: "
                f"{self._last[-1].reason}"
            )

    def _too_many(self, skip: Skip, allowed: float) -> str:
        names = [
            f"{skipped.path}: record {skipped.record}" + ("" if skipped.key is None else f", key {skipped.key!r}")
            for skipped in self._last
        ]
        path = self._last[-1].path
        return (
            f"{self._count} of the epoch's first {self.seen} records could not be loaded: "
            f"limit={skip.limit} allows {allowed} to be skipped in an epoch; the last ones: "
            f"{'; '.join(names)}; the reason of the last: {self._last[-1].reason}; `fastrecord verify --deep {path}` "
            "finds every bad record of a file, `fastrecord repair` saves the others into a new one, and a larger limit "
            "(fastrecord.Skip(limit=...), --max-skipped of the trainer) continues without them"
        )
