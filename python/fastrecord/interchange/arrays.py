"""`ArraySource`: arrays with one first length, whose rows are records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.interchange.infer import renamed
from fastrecord.interchange.source import ROWS, ROWS_BYTES, CountedSource, EndError, Rows, SourceField, converted
from fastrecord.schema import FieldType, array

# A chunk is read whole where it takes at most this much.
_LARGEST_CHUNK = 128 << 20
# Characters of JSON.
_LARGEST_ENTRY = 100_000


@dataclass(frozen=True, slots=True)
class Column:
    """An array, or a part of one, that is a field.

    Attributes:
        type: The field's type.
        origin: What it is, for people.
        count: Number of rows.
        row_bytes: Size of a row, about.
        read: Returns rows start to end as `Rows.columns` takes them. Raises `ValueError` if it cannot
            read one, and `EndError` if nothing after it can be read.
        chunk: Rows that are stored together.
    """

    type: FieldType
    origin: str
    count: int
    row_bytes: int
    read: Callable[[int, int], Sequence[Any]]
    chunk: int = 1

    @classmethod
    def numbers(
        cls, path: str, origin: str, held: Any, read: Callable[[int, int], Any], chunk: int = 1
    ) -> Column | FastRecordError:
        """Return a field of numbers, or why a field cannot hold them.

        Args:
            path: The file, for the error.
            origin: What the array is, for people.
            held: Has the shape and the dtype of the whole array.
            read: Returns rows.
            chunk: Rows that are stored together.
        """
        kind = number_type(held.dtype, held.shape[1:])
        if kind is None:
            return not_held(path, origin, held.dtype, held.shape[1:])
        return cls(kind, origin, held.shape[0], math.prod(held.shape[1:]) * held.dtype.itemsize, read, chunk)

    def rows_after(self, first: int, start: int, end: int) -> Sequence[Any]:
        """Return rows by their places after a first one."""
        return self.read(first + start, first + end)


class Part(NamedTuple):
    """An array, or a member of one whose type is compound.

    Attributes:
        name: The member's name; None for the array.
        origin: What it is, for people.
        dtype: The type of its values.
        shape: Its shape.
    """

    name: str | None
    origin: str
    dtype: Any
    shape: tuple[int, ...]

    @classmethod
    def of(cls, origin: str, held: Any) -> list[Part]:
        """Return the members of an array with a dtype and a shape, or the array."""
        dtype, shape = held.dtype, tuple(held.shape)
        if dtype.kind != "V" or not dtype.names:
            return [cls(None, origin, dtype, shape)]
        inner = {name: dtype[name].subdtype or (dtype[name], ()) for name in dtype.names}
        return [cls(name, f"member {name} of {origin}", kind, shape + sub) for name, (kind, sub) in inner.items()]


@dataclass(frozen=True, slots=True)
class Shard:
    """The arrays of one file or folder.

    Attributes:
        path: Where it is.
        columns: Its arrays, by name, or why a field cannot hold one.
        metadata: What it says beside them, JSON-able.
        close: Releases it.
        own: Whether the names and their order are the ones that a .frec file had.
        left_out: As `Source.left_out`.
    """

    path: str
    columns: Mapping[str, Column | FastRecordError]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    own: bool = False
    left_out: Sequence[str] = ()

    @property
    def held(self) -> dict[str, Column]:
        """The arrays that a field can hold."""
        return {name: column for name, column in self.columns.items() if isinstance(column, Column)}

    @property
    def count(self) -> int:
        """Number of rows."""
        return next(iter(self.held.values())).count


class ArraySource(CountedSource):
    """Records that are rows of arrays, in one or several files.

    Args:
        shards: The files, in order; if one cannot be opened, the others are closed.
        chosen: Names of the arrays that are read; empty: all.

    Attributes:
        what: What an array is called, and the setting that names some.

    Raises:
        FastRecordError: arrays have different lengths, or files different arrays.
    """

    what = "array", "arrays"

    def __init__(self, shards: Iterable[Shard], chosen: Sequence[str] = ()) -> None:
        self._shards: list[Shard] = []
        try:
            for shard in shards:
                self._shards.append(shard)
            self._shards = [self._chosen(shard, chosen) for shard in self._shards]
            for shard in self._shards:
                self._check(shard)
        except BaseException:
            self.close()
            raise
        super().__init__([shard.path for shard in self._shards], [shard.count for shard in self._shards])
        first = self._shards[0]
        fields = [SourceField(name, column.type, column.origin) for name, column in first.held.items()]
        self.fields = fields if first.own else renamed(fields)
        self.metadata = first.metadata
        several = len(self.paths) > 1
        self.left_out = [f"{s.path}: {what}" if several else what for s in self._shards for what in s.left_out]

    def _chosen(self, shard: Shard, names: Sequence[str]) -> Shard:
        noun, _ = self.what
        columns = shard.columns
        for name in names:
            if name not in columns:
                raise Code.SOURCE.error(f"{shard.path}: it has no {noun} {name!r}: it has {', '.join(columns)}")
        columns = {name: columns[name] for name in names or columns}
        for column in columns.values():
            if isinstance(column, FastRecordError):
                raise column
        if not columns:
            raise Code.SOURCE.error(f"{shard.path}: it holds no {noun}s with records")
        return replace(shard, columns=columns)

    def _check(self, shard: Shard) -> None:
        """Check that arrays have one length, and the types of the first file's."""
        noun, setting = self.what
        lengths: dict[int, list[str]] = {}
        for name, column in shard.held.items():
            lengths.setdefault(column.count, []).append(name)
        if len(lengths) > 1:
            counts = "; ".join(f"{length:,}: {', '.join(names[:5])}" for length, names in sorted(lengths.items())[:10])
            raise Code.MIXED_FIELDS.error(
                f"{shard.path}: its {noun}s have different first lengths ({counts}): name the ones that belong "
                f"together, such as --set {setting}={','.join(lengths[max(lengths)][:5])}"
            )
        first = self._shards[0]
        mine, its = ({name: str(column.type) for name, column in each.held.items()} for each in (first, shard))
        # The first values of a file without records do not tell their type.
        if mine != its and shard.count:
            differing = sorted(name for name in mine.keys() | its.keys() if mine.get(name) != its.get(name))
            raise Code.MIXED_FIELDS.error(
                f"{shard.path}: its {noun}s differ from the ones of {first.path}: "
                + ", ".join(f"{name} ({its.get(name)}, not {mine.get(name)})" for name in differing[:5])
                + f": import them one by one, or name the ones that all have with --set {setting}=..."
            )

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield records, in whole chunks where they are small."""
        for at, first in self.shards(start):
            shard = self._shards[at]
            columns = {name: column for name, column in shard.held.items() if name in names}
            local, step = max(start - first, 0), _step(list(columns.values()))
            while local < shard.count:
                end = min(local // step * step + step, shard.count)
                readers = {name: partial(columns[name].rows_after, local) for name in names}
                try:
                    for rows in converted(first + local, end - local, readers):
                        yield from _divided(rows)
                except EndError as err:
                    raise Code.SOURCE.error(f"{self.place(first + local + err.row)}: {err}") from err
                local = end

    def place(self, number: int) -> str:
        """Return the file or folder of a record, and the record's number in it."""
        at, local = self.locate(number)
        return f"{self._shards[at].path}: record {local:,}"

    def close(self) -> None:
        """Release all files."""
        for shard in self._shards:
            shard.close()


def _divided(rows: Rows) -> Iterator[Rows]:
    """Divide a run that is much larger than others, which a large chunk makes."""
    if rows.count <= 2 * ROWS or rows.bad:
        yield rows
        return
    for at in range(0, rows.count, ROWS):
        columns = {name: values[at : at + ROWS] for name, values in rows.columns.items()}
        yield Rows(rows.start + at, min(ROWS, rows.count - at), columns)


def listed(settings: Mapping[str, str], name: str) -> list[str]:
    """Return the names in a setting, with commas between them."""
    return [each.strip("/ ") for each in settings.get(name, "").split(",") if each.strip("/ ")]


def number_type(dtype: Any, shape: Sequence[int]) -> FieldType | None:
    """Return the type of rows of numbers; None if a field cannot hold them."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        return None
    return array(dtype, shape) if shape else FieldType(array(dtype, ()).dtype or "")


def described(own: Iterable[tuple[Any, Any]], parts: Mapping[str, Iterable[tuple[Any, Any]]]) -> dict[str, Any]:
    """Return attributes as metadata: a file's own, and below "attributes" the ones of its arrays."""
    inner = {name: kept for name, each in parts.items() if (kept := jsonable(each))}
    return jsonable(own) | ({"attributes": inner} if inner else {})


def jsonable(entries: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return the entries that JSON can hold and that are not large."""
    found = {}
    for name, value in entries:
        value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        with suppress(TypeError, ValueError, RecursionError):
            if len(json.dumps(value, allow_nan=False, default=bytes.decode)) <= _LARGEST_ENTRY:
                found[str(name)] = json.loads(json.dumps(value, default=bytes.decode))
    return found


def not_held(path: str, origin: str, dtype: Any, shape: Sequence[int] = (), setting: str = "arrays") -> FastRecordError:
    """Return the error for an array whose values a field cannot hold."""
    return Code.SOURCE.error(
        f"{path}: {origin} has values of type {dtype}{list(shape) or ''}, which a field cannot hold: name the other "
        f"ones with --set {setting}=..."
    )


def _step(columns: Sequence[Column]) -> int:
    """Return how many rows to read at once: whole chunks where they are small enough."""
    row = sum(column.row_bytes for column in columns) + 1
    step = min(max(ROWS_BYTES // row, 1), ROWS)
    chunk = max((c.chunk for c in columns if c.chunk * row <= _LARGEST_CHUNK), default=1)
    return step // chunk * chunk if chunk <= step else chunk
