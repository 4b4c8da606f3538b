"""`Source`: the records of another format, in order, from any position."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from types import TracebackType
from typing import Any, Self, TypeVar

from fastrecord.errors import Code
from fastrecord.schema import FieldType

T = TypeVar("T")
# A run of records is handed over when it holds this much: enough to fill several threads, little
# enough for a few of them to wait in memory.
ROWS_BYTES = 8 << 20
ROWS = 4096


@dataclass(frozen=True, slots=True)
class SourceField:
    """A field of a source.

    Attributes:
        name: Its name in the source, such as "jpg" or "__key__".
        type: The type of its values in a .frec file.
        origin: What it is there, for people: "files *.jpg".
        rename: Its name in a .frec file by default, such as "image"; None: the same name.
    """

    name: str
    type: FieldType
    origin: str
    rename: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that cannot be read, though the ones after it can.

    Attributes:
        reason: Why, without the place: "its CRC is wrong".
    """

    reason: str


@dataclass(slots=True)
class Rows:
    """A run of records of a source.

    Attributes:
        start: Number of the first record in the source.
        count: Number of records, good and bad.
        columns: The values of the good records: name of the field in the source -> one value each,
            as `Writer.extend` takes them for the field's type. An array with a first dimension
            counts as a sequence of its rows.
        bad: Number in the source -> why the record cannot be read.
    """

    start: int
    count: int
    columns: Mapping[str, Sequence[Any]]
    bad: Mapping[int, str] = field(default_factory=dict)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the good records in the source."""
        every = range(self.start, self.start + self.count)
        return [number for number in every if number not in self.bad] if self.bad else every

    def cut(self, start: int, stop: int) -> Rows:
        """Return the records from number `start` on, up to number `stop`."""
        start, stop = max(start, self.start), min(stop, self.start + self.count)
        if (start, stop) == (self.start, self.start + self.count):
            return self
        good = self.numbers
        first, last = bisect_left(good, start), bisect_left(good, stop)
        columns = {name: values[first:last] for name, values in self.columns.items()}
        bad = {number: reason for number, reason in self.bad.items() if start <= number < stop}
        return Rows(start, stop - start, columns, bad)


class Files(list[str]):
    """A column of images by the paths of their files, which are read when they are stored."""

    def __getitem__(self, at: Any) -> Any:
        found = list.__getitem__(self, at)
        return Files(found) if isinstance(at, slice) else found


class Source(ABC):
    """A source that has been opened; a context manager that closes it.

    Attributes:
        fields: Its fields, in the order in which a file has them.
        paths: The files that it reads, in order. Their names tell one source from another when an
            import is resumed.
        classes: Names of the classes of the field that is renamed to "label", position = label;
            None without names.
        metadata: Entries for the metadata of a .frec file, JSON-able.
        left_out: What it holds and does not read, and why: "link (a link to another file)".
        ignored: Number of files beside its own.
        home: The folder that its keys are relative to, whose name files keep; None: its first path.
        keys: The keys of all records, if they are known and differ.
        labels: The labels of all records, if they are known.
        facts: Entries for the metadata that hold for all records of a file; None removes one.
        where: Its name, for messages; `open_source` of a pack sets it and the next three.
        format: Name of its format.
        why: Why it has this format; empty if the caller named it.
        recorded: Its settings, as the metadata of a file has them.
        live: Whether its records may be made anew each time. They are then not compared when a pack is resumed, and
            labels that are names stay names, as two passes might differ.
    """

    fields: Sequence[SourceField]
    paths: Sequence[str]
    classes: Sequence[str] | None = None
    metadata: Mapping[str, Any] = {}
    left_out: Sequence[str] = ()
    ignored: int = 0
    home: str | None = None
    keys: Sequence[str] | None = None
    labels: Sequence[int] | None = None
    facts: Mapping[str, Any] = {}
    where: str = ""
    format: str = ""
    why: str = ""
    recorded: Mapping[str, Any] = {}
    live: bool = False

    @abstractmethod
    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield the records from number `start` on, in order and without gaps.

        Values of fields that are not in `names` need not be read. Memory stays bounded, whatever the
        size of the source: a run has about `ROWS` records, or `ROWS_BYTES`.

        The caller may use a run while the next one is read in another thread: values must not be
        views of a buffer that is used again.

        Raises:
            FastRecordError: the source is damaged or cut short, so that nothing after this place
                can be read: `Code.SOURCE.error(...)` with shard, record, reason and way out. All
                records before it have been yielded.
        """

    def read_as(self, name: str, kind: FieldType) -> bool:
        """Read a field as another type from now on, if more is stored than its own type holds.

        Returns:
            Whether the source does. By default it does not, and values are converted.
        """
        del name, kind
        return False

    def fill(self, name: str, value: Any) -> bool:
        """Put a value in the place of nulls of a field, in what is read from now on.

        Returns:
            Whether the source does. By default it does not.
        """
        del name, value
        return False

    def nulls(self) -> Mapping[str, int]:
        """Return the number of nulls by field, where it is known without reading all records."""
        return {}

    def count(self) -> int | None:
        """Return the number of records if it is known without reading all of them."""
        return None

    def class_names(self) -> Sequence[str] | None:
        """Return `classes`, or else those in `metadata`, as exports by fastrecord have them."""
        names = self.metadata.get("classes")
        if self.classes is not None or not isinstance(names, list):
            return self.classes
        return names if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) else None

    def place(self, number: int) -> str:
        """Return where a record is, for messages: "train-0001.tar: record 12 (n01440764_10026)"."""
        return f"{self.paths[0] if self.paths else 'source'}: record {number}"

    def prepare(  # noqa: B027 - by default all is known when it is open
        self, stored: Mapping[str, Any] | None, *, skip: bool, progress: Callable[[int], None]
    ) -> None:
        """Look at the whole source before anything is stored; afterwards `fields` and `facts` are right.

        Args:
            stored: The metadata of the file or data set that records are added to; None: there is none.
            skip: Leave out bad records; else one that is known to be bad is an error.
            progress: Called with the number of records that have been looked at.
        """

    def sizes(self) -> Iterator[int] | None:
        """Return the bytes of each record's values, where that is known without reading them."""
        return None

    def refuse_output(self, out: str) -> None:
        """Refuse to write to a path inside this source.

        Raises:
            FastRecordError: `Code.OUTPUT_IS_INPUT`.
        """
        for name in self.paths:
            if os.path.realpath(name) == os.path.realpath(out):
                raise Code.OUTPUT_IS_INPUT.error(f"{out}: is what is to be packed: choose another path")

    def entry(self, compression: str | None) -> dict[str, Any] | None:
        """Return what a file's metadata says of this source and its settings; None: what it says of any format."""
        del compression
        return None

    def key(self, number: int) -> str:
        """Return the name under which a record is listed if it is skipped."""
        return self.place(number) if self.keys is None else self.keys[number]

    def close(self) -> None:  # noqa: B027 - by default there is nothing to release
        """Release files and memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def identity(self) -> list[Any]:
        """Return what tells this source from another one, JSON-able: the names of its files.

        Not their sizes: a file that was cut short has another one when it is whole.
        """
        return [os.path.basename(path) for path in self.paths]


class DamageError(Exception):
    """A file cannot be read further; the message says why, without the place."""


class ShardedSource(Source):
    """A source of several files, one after the other, whose numbers of records are not known before.

    Attributes:
        firsts: The number of the first record of each file, as far as `shards` has come.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self.firsts = [0]

    def shards(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield the files from the one with record `start` on, and the number of each one's first.

        Files are named by their place in `paths`. The caller calls `end_shard` at the end of each.
        """
        for at in range(bisect_right(self.firsts, start) - 1, len(self.paths)):
            yield at, self.firsts[at]

    def end_shard(self, at: int, number: int) -> None:
        """Note the number of the first record after a file.

        Raises:
            DamageError: it holds no record.
        """
        if number == self.firsts[at]:
            raise DamageError("the file holds no record")
        if len(self.firsts) == at + 1:
            self.firsts.append(number)

    def runs(self, start: int, read: Callable[[str, int], Iterator[tuple[int, T | None]]]) -> Iterator[tuple[int, T]]:
        """Yield the number of the first record of each run from record `start` on, and the run.

        Args:
            start: A record's number.
            read: Takes a file and how many of its records to skip; yields the number of records in
                each run, and the run, None for what is skipped. Raises `DamageError`.

        Raises:
            FastRecordError: a file is damaged, or holds no record.
        """
        for at, number in self.shards(start):
            first = number
            try:
                for count, run in read(self.paths[at], max(start - first, 0)):
                    if run is not None:
                        yield number, run
                        del run  # its memory is used again for the next one
                    number += count
                self.end_shard(at, number)
            except DamageError as err:
                raise self.damaged(number, err) from err

    def damaged(self, number: int, reason: object) -> Exception:
        """Return the error for a file that cannot be read from a record on."""
        return Code.SOURCE.error(
            f"{self.place(number)}: {reason}", way_out="copy or download this file again, then continue with `--resume`"
        )

    def place(self, number: int) -> str:
        """Return the file of a record and its number in the source."""
        at = min(bisect_right(self.firsts, number), len(self.paths)) - 1
        return f"{self.paths[at]}: record {number}"


class CountedSource(ShardedSource):
    """A source of several files, one after the other, whose numbers of records are known."""

    def __init__(self, paths: Sequence[str], counts: Iterable[int]) -> None:
        super().__init__(paths)
        self.firsts = list(accumulate(counts, initial=0))

    def shards(self, start: int) -> Iterator[tuple[int, int]]:
        """See `ShardedSource.shards`; `end_shard` need not be called."""
        at = bisect_right(self.firsts, start) - 1
        yield from enumerate(self.firsts[at:-1], at)

    def end_shard(self, at: int, number: int) -> None:
        """Do nothing: all is known."""

    def count(self) -> int:
        """Return the number of records."""
        return self.firsts[-1]

    def locate(self, number: int) -> tuple[int, int]:
        """Return the file of a record, by its place in `paths`, and the record's number in it."""
        at = min(bisect_right(self.firsts, number), len(self.firsts) - 1) - 1
        return at, number - self.firsts[at]

    def place(self, number: int) -> str:
        """Return the file of a record and its number in it."""
        at, local = self.locate(number)
        return f"{self.paths[at]}: record {local:,}"


class EndError(ValueError):
    """Neither a record nor anything after it can be read.

    Attributes:
        row: The record's place in the run that was read.
    """

    row = 0


def converted(
    start: int,
    count: int,
    readers: Mapping[str, Callable[[int, int], Sequence[Any]]],
    bad: Mapping[int, str] | None = None,
) -> Iterator[Rows]:
    """Read a run, and find the records that are bad if it cannot be read as a whole.

    Args:
        start: Number of its first record.
        count: How many records it has.
        readers: Name of a field -> returns the values of rows a to b of the run. Raises `ValueError`
            if one of them is bad, and `EndError` if nothing after it can be read.
        bad: What is wrong with records that are bad anyway.
    """
    wrong = {number - start: reason for number, reason in (bad or {}).items()}
    parts: list[dict[str, Any]] = []
    end: EndError | None = None
    try:
        parts.extend(_good_rows(readers, 0, count, wrong))
    except EndError as err:
        end, count = err, err.row
    if count:
        columns = parts[0] if len(parts) == 1 else {name: _joined([part[name] for part in parts]) for name in readers}
        yield Rows(start, count, columns, {start + row: reason for row, reason in sorted(wrong.items())})
    if end is not None:
        raise end


def _good_rows(
    readers: Mapping[str, Callable[[int, int], Sequence[Any]]], first: int, end: int, wrong: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """Yield the values of rows, by field, without the ones that are wrong, which are added to `wrong`."""
    name = ""
    try:
        if not (wrong and any(row in wrong for row in range(first, end))):
            values = {}
            for name, read in readers.items():
                values[name] = read(first, end)
            yield values
            return
    except (ValueError, RecursionError) as err:
        if end - first == 1 and isinstance(err, EndError):
            err.row = first
            raise
        if end - first == 1:
            wrong[first] = f"field {name!r}: {err}"
    if end - first > 1:
        middle = (first + end) // 2
        yield from _good_rows(readers, first, middle, wrong)
        yield from _good_rows(readers, middle, end, wrong)


def _joined(parts: Sequence[Any]) -> Any:
    import numpy as np  # a folder of images needs none

    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def gather(records: Iterable[Sequence[Any] | Bad], start: int, names: Sequence[str]) -> Iterator[Rows]:
    """Group single records into runs.

    If `records` raises, the records before the error are yielded first.

    Args:
        records: For each record its values, in the order of `names`, or why it is bad.
        start: Number of the first record.
        names: The fields.
    """
    columns: list[list[Any]] = [[] for _ in names]
    bad: dict[int, str] = {}
    count = nbytes = 0
    error: BaseException | None = None
    iterator = iter(records)
    while True:
        try:
            record = next(iterator, None)
        except Exception as err:  # noqa: BLE001 - raised below, after the records before it
            record, error = None, err
        if record is None:
            break
        if isinstance(record, Bad):
            bad[start + count] = record.reason
        else:
            for column, value in zip(columns, record, strict=True):
                column.append(value)
                nbytes += value_bytes(value)
        count += 1
        if count == ROWS or nbytes >= ROWS_BYTES:
            yield Rows(start, count, dict(zip(names, columns, strict=True)), bad)
            start, count, nbytes, bad, columns = start + count, 0, 0, {}, [[] for _ in names]
    if count:
        yield Rows(start, count, dict(zip(names, columns, strict=True)), bad)
    if error is not None:
        raise error


def value_bytes(value: object) -> int:
    """Return about how much memory a value takes, in bytes."""
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    return len(value) if isinstance(value, (bytes, str)) else 64
