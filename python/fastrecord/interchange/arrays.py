"""`ArraySource`: arrays with one first length, whose rows are records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange.source import ROWS, ROWS_BYTES, Rows, Source, SourceField
from fastrecord.schema import FieldType, array

_LABELS = ("label", "labels", "target", "targets", "y")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# A chunk is read whole where it takes at most this much.
_LARGEST_CHUNK = 64 << 20


class ArrayError(Exception):
    """Rows cannot be read.

    Args:
        reason: Why.
        ends: Whether nothing after them can be read either.
    """

    def __init__(self, reason: str, *, ends: bool = False) -> None:
        super().__init__(reason)
        self.ends = ends


@dataclass(frozen=True, slots=True)
class Column:
    """An array, or a part of one, that is a field.

    Attributes:
        type: The field's type.
        origin: What it is, for people.
        count: Number of rows.
        row_bytes: Size of a row, about.
        read: Returns rows start to end as `Rows.columns` takes them; raises `ArrayError`.
        chunk: Rows that are stored together.
    """

    type: FieldType
    origin: str
    count: int
    row_bytes: int
    read: Callable[[int, int], Sequence[Any]]
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """The arrays of one file or folder.

    Attributes:
        path: Where it is.
        columns: Its arrays, by name.
        metadata: What it says beside them, JSON-able.
        close: Releases it.
        own: Whether the names and their order are the ones that a .frec file had.
    """

    path: str
    columns: Mapping[str, Column]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    own: bool = False


class ArraySource(Source):
    """Records that are rows of arrays, in one or several files.

    Args:
        shards: The files, in order.
        chosen: Names of the arrays that are read; empty: all.

    Raises:
        FastRecordError: arrays have different lengths, or files different arrays.
    """

    def __init__(self, shards: Sequence[Shard], chosen: Sequence[str] = ()) -> None:
        self.paths = [shard.path for shard in shards]
        self._shards = list(shards)
        try:
            self._describe(chosen)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, items: Iterable[Any], open_one: Callable[[Any], Shard], chosen: Sequence[str] = ()) -> Self:
        """Open several files; if one cannot be opened, the others are closed."""
        shards: list[Shard] = []
        try:
            for item in items:
                shards.append(open_one(item))  # noqa: PERF401 - the ones before an error are closed
        except BaseException:
            for shard in shards:
                shard.close()
            raise
        return cls(shards, chosen)

    def _describe(self, chosen: Sequence[str]) -> None:
        self._shards = [_chosen(shard, chosen) for shard in self._shards]
        for shard in self._shards:
            _check_lengths(shard)
            _check_same(self._shards[0], shard)
        counts = [next(iter(shard.columns.values())).count for shard in self._shards]
        self._starts = np.cumsum([0, *counts]).tolist()
        columns = self._shards[0].columns
        fields = [SourceField(name, column.type, column.origin) for name, column in columns.items()]
        self.fields = fields if self._shards[0].own else renamed(fields)
        self.metadata = self._shards[0].metadata

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records, in whole chunks where they are small."""
        for at, shard in enumerate(self._shards):
            first = self._starts[at]
            local, count = max(start - first, 0), self._starts[at + 1] - first
            columns = {name: shard.columns[name] for name in names}
            step = _step(list(columns.values()))
            while local < count:
                end = min(local // step * step + step, count)
                for rows in _rows(columns, local, end):
                    if isinstance(rows, ArrayError):
                        raise Code.SOURCE.error(f"{self.place(first + local)}: {rows}") from rows
                    bad = {first + number: why for number, why in rows.bad.items()}
                    yield replace(rows, start=first + rows.start, bad=bad)
                    local = rows.start + rows.count

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._starts[-1])

    def place(self, number: int) -> str:
        """Return the file and the row."""
        at = max(sum(start <= number for start in self._starts[:-1]) - 1, 0)
        return f"{self.paths[at]}: record {number - self._starts[at]:,}"

    def close(self) -> None:
        """Release all files."""
        for shard in self._shards:
            shard.close()


def number_type(dtype: Any, shape: Sequence[int]) -> FieldType | None:
    """Return the type of rows of numbers; None if a field cannot hold them."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        return None
    return array(dtype, shape) if shape else FieldType(array(dtype, ()).dtype or "")


def renamed(fields: Sequence[SourceField]) -> list[SourceField]:
    """Return fields with the names that they get by default: the one image, and the one label."""
    names = {each.name for each in fields}
    images = [each for each in fields if each.type.name == "image"]
    labels = [
        each for each in fields if each.type.name in _INTEGERS and each.name.rpartition("/")[2].lower() in _LABELS
    ]
    wanted = {found[0].name: name for name, found in (("image", images), ("label", labels)) if len(found) == 1}
    return [
        replace(each, rename=new) if (new := wanted.get(each.name)) and new not in names else each for each in fields
    ]


def _chosen(shard: Shard, names: Sequence[str]) -> Shard:
    for name in names:
        if name not in shard.columns:
            raise Code.SOURCE.error(f"{shard.path}: it has no array {name!r}: it has {', '.join(shard.columns)}")
    if not shard.columns:
        raise Code.SOURCE.error(f"{shard.path}: it holds no arrays with records")
    return replace(shard, columns={name: shard.columns[name] for name in names}) if names else shard


def _check_lengths(shard: Shard) -> None:
    lengths: dict[int, list[str]] = {}
    for name, column in shard.columns.items():
        lengths.setdefault(column.count, []).append(name)
    if len(lengths) > 1:
        counts = "; ".join(f"{length:,}: {', '.join(names[:5])}" for length, names in sorted(lengths.items())[:10])
        largest = ",".join(lengths[max(lengths)][:5])
        raise Code.MIXED_FIELDS.error(
            f"{shard.path}: its arrays have different first lengths ({counts}): name the ones that belong together, "
            f"such as --set arrays={largest}"
        )


def _check_same(first: Shard, other: Shard) -> None:
    mine, its = ({name: str(column.type) for name, column in shard.columns.items()} for shard in (first, other))
    if mine != its:
        differing = sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
        raise Code.MIXED_FIELDS.error(
            f"{other.path}: its arrays differ from the ones of {first.path}: "
            + ", ".join(f"{name} ({its.get(name)}, not {mine.get(name)})" for name in differing[:5])
            + ": import them one by one, or name the ones that all have with --set arrays=..."
        )


def _step(columns: Sequence[Column]) -> int:
    """Return how many rows to read at once: whole chunks where they are small enough."""
    row = sum(column.row_bytes for column in columns) + 1
    step = min(max(ROWS_BYTES // row, 1), ROWS)
    chunk = max((c.chunk for c in columns if c.chunk * row <= _LARGEST_CHUNK), default=1)
    return step // chunk * chunk if chunk <= step else chunk


def _rows(columns: Mapping[str, Column], start: int, end: int) -> Iterator[Rows | ArrayError]:
    """Yield rows; where some cannot be read, the others, and which ones are bad."""
    try:
        found = {name: column.read(start, end) for name, column in columns.items()}
    except ArrayError as err:
        if end - start > 1:
            middle = (start + end) // 2
            for half in (_rows(columns, start, middle), _rows(columns, middle, end)):
                for rows in half:
                    yield rows
                    if isinstance(rows, ArrayError):
                        return
        else:
            yield err if err.ends else Rows(start, 1, {name: [] for name in columns}, {start: str(err)})
        return
    for at in range(0, end - start, max(ROWS, 1)):
        stop = min(at + ROWS, end - start)
        part = found if stop - at == end - start else {name: values[at:stop] for name, values in found.items()}
        yield Rows(start + at, stop - at, part)
