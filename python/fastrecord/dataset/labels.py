"""`Labels`: the labels of a data set, numbered alike over all files and field types.

Reads labels only. It knows neither the records of a view nor the shape of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Reader
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import gather
from fastrecord.errors import Code
from fastrecord.look.values import widened
from fastrecord.schema.classes import map_labels, merge_classes
from fastrecord.schema.roles import holds_classes

if TYPE_CHECKING:
    from fastrecord.schema.classes import Table

# Strings become Python objects for the lookup; process this many at a time.
_CHUNK = 1 << 16
_MOST = np.iinfo(np.int64).max
# `lie_in_runs` compares this many neighbours, at this many places.
_WINDOW = 64


class Labels:
    """The labels of all files, with one numbering.

    Integers and bools become int64; they are mapped to the data set's classes if files number
    theirs differently. Floats become float64, and arrays are stacked. Strings are class names.
    Their numbers are positions in the first list that exists: `classes`; the classes that the
    metadata of all files lists; all names in sorted order. The last one reads the string of every
    record once.

    Args:
        shards: The files.
        field: The field that holds the labels, None without labels.
        classes: The names of all classes, position = label.

    Attributes:
        field: As given.
        given: `classes`, as given.
        are_names: Whether the files hold class names.
        are_arrays: Whether each label is an array.

    Raises:
        SchemaError: the classes of files cannot be matched, or `classes` is given without labels.
    """

    def __init__(self, shards: Shards, field: str | None, classes: list[str] | None) -> None:
        self.field, self.given, self._shards = field, classes, shards
        kind = self._kind = None if field is None else shards.schema[field]
        self.are_names = kind is not None and kind.name == "string"
        self.are_arrays = kind is not None and kind.name == "array"
        numbered = kind is not None and holds_classes(kind)
        if classes is not None and not (numbered or self.are_names):
            raise Code.FIELD_TYPE.error(
                f"{shards.readers[0].path}: classes= numbers integer labels and names, and the file has no such field"
            )
        # Usually None, so that a pickled data set stays small.
        self._tables: list[Table | None] | None = None
        # The classes, if they come from the names in all records.
        self._found: list[str] | None = None
        if not self.are_names:
            self.classes, tables = merge_classes(shards.readers, classes, shards.class_lists())
            if numbered and any(table is not None for table in tables):
                self._tables = tables
            if self.are_arrays:
                self._refuse_other_classes(tables)

    def __getstate__(self) -> dict[str, Any]:
        if self.are_names:
            _ = self.classes  # read once here, not in every process that unpickles it
        return {name: value for name, value in self.__dict__.items() if name not in ("classes", "_known")}

    @property
    def are_mapped(self) -> bool:
        """Whether labels differ from the stored values."""
        return self.are_names or self._tables is not None

    @cached_property
    def classes(self) -> list[str]:
        """Class names, position = label; empty if there are none."""
        if self.are_names and self.given is not None:
            return self.given
        lists = self._shards.class_lists()
        if self.are_names and None in lists:
            if self._found is None:
                self._found = self._find()
            return self._found
        classes, _ = merge_classes(self._shards.readers, self.given, lists)
        return classes

    @cached_property
    def _known(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    def of(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of records, (N,) or (N, *shape).

        Args:
            rows: Numbers over all files, int64 (N,).

        Raises:
            SchemaError: a label has no class, or is too large.
            FastRecordError: a record has no label.
        """
        labels: NDArray[Any] = gather(self._shards, rows, lambda *part: [self.of_file(*part)])[0]
        return labels

    def of_file(self, shard: int, records: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of records of one file; see `of`."""
        field = str(self.field)
        stored = self._shards.readers[shard].read_batch(records, [field], copy=True)[field]
        return self._labels(stored, shard, records)

    def column(self, shard: int, *, copy: bool) -> NDArray[Any]:
        """Return the labels of all records of a file. Does not support arrays.

        Raises:
            KeyError, TypeError: the field has no column.
            SchemaError, FastRecordError: as `of`.
        """
        reader = self._shards.readers[shard]
        if not self.are_names:
            return self._labels(reader.column(str(self.field), copy=copy), shard, range(len(reader)))
        numbers = np.arange(len(reader), dtype=np.int64)
        chunks = np.split(numbers, range(_CHUNK, len(reader), _CHUNK))
        return np.concatenate([self.of_file(shard, chunk) for chunk in chunks])

    def numbered(self, value: Any) -> Any:
        """Replace class names in a comparison value by labels.

        Raises:
            ValueError: no class has this name.
        """
        if isinstance(value, str):
            if value not in self.classes:
                some = ", ".join(map(repr, self.classes[:5])) + (" ..." if len(self.classes) > 5 else "")
                raise ValueError(f"no class is named {value!r}; the data set has {some or 'no class names'}")
            return self.classes.index(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.numbered(one) if isinstance(one, str) else one for one in value]
        return value

    def recipe(self) -> Any:
        """Return what changes labels besides the files themselves, ready for JSON."""
        if self.are_names:
            return ["names", *self.classes]
        if self._tables is None:
            return None
        return [None if table is None else table.tolist() for table in self._tables]

    def _refuse_other_classes(self, tables: list[Table | None]) -> None:
        """Refuse arrays with a value for each class if files number their classes differently.

        Raises:
            SchemaError: files do.
        """
        shape = () if self._kind is None else self._kind.shape or ()
        for reader, table in zip(self._shards.readers, tables, strict=True):
            if table is not None and len(table) in shape:
                raise Code.NO_CLASSES.error(
                    f"{reader.path}: its classes have other numbers than in {self._shards.readers[0].path}, and labels "
                    f"that are arrays, field {self.field!r}, are not renumbered: write the files with the same "
                    "metadata 'classes'"
                )

    def _labels(self, stored: Any, shard: int, records: Sequence[int] | NDArray[np.int64]) -> NDArray[Any]:
        """Turn stored values into labels of the data set. int64 and float64 are not copied."""
        reader = self._shards.readers[shard]
        if self.are_names:
            return self._look_up(stored, reader, records)
        if self._kind is not None:
            stored = widened(stored, self._kind)
        if self.are_arrays:
            return np.asarray(stored)
        if stored.dtype.kind == "f":
            return np.asarray(stored, np.float64)
        if stored.dtype == np.uint64 and len(stored) and stored.max() > _MOST:
            at = int(np.argmax(stored > _MOST))
            raise Code.LARGE_LABEL.error(
                f"{self._place(reader, records[at])}: the label {stored[at]} is above {_MOST}, the largest one: labels "
                "are int64"
            )
        labels = stored.astype(np.int64, copy=False)
        return labels if self._tables is None else map_labels(labels, self._tables[shard], reader.path)

    def _look_up(
        self, names: Sequence[Any], reader: Reader, records: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.int64]:
        numbers = [self._known.get(name, -1) for name in names]
        if -1 in numbers:
            self._refuse_none(names, reader, records)
            at = numbers.index(-1)
            where = "classes=" if self.given is not None else "the metadata"
            raise Code.UNKNOWN_CLASS.error(
                f"{self._place(reader, records[at])}: the class {names[at]!r} is not among the {len(self._known)} that "
                f"{where} names"
            )
        return np.array(numbers, np.int64)

    def _find(self) -> list[str]:
        """Return all names, sorted."""
        found: set[str] = set()
        for reader in self._shards.readers:
            for start in range(0, len(reader), _CHUNK):
                records = range(start, min(start + _CHUNK, len(reader)))
                names = reader.read_batch(records, [str(self.field)])[str(self.field)]
                self._refuse_none(names, reader, records)
                found.update(names)
        return sorted(found)

    def _refuse_none(self, names: Sequence[Any], reader: Reader, records: Sequence[int] | NDArray[np.int64]) -> None:
        if None in names:
            record = int(records[names.index(None)])
            raise Code.NO_VALUE.error(f"{self._place(reader, record)}: the record has no label", record=record)

    def _place(self, reader: Reader, record: int) -> str:
        return f"{reader.path}: record {record}, field {self.field!r}"


def lie_in_runs(labels: Labels, rows: Callable[[NDArray[np.int64]], NDArray[np.int64]], total: int) -> bool:
    """Return whether neighbours mostly share a label, as in a folder packed class by class.

    Only a few records are sampled. The result is False if the labels are not classes, or cannot be
    read.

    Args:
        labels: The labels of all files.
        rows: Indices of records -> their rows.
        total: Number of records, at least 2.
    """
    if labels.field is None or labels.are_arrays:
        return False
    starts = np.unique(np.linspace(0, max(total - _WINDOW, 0), _WINDOW, dtype=np.int64))
    places = starts[:, None] + np.arange(min(_WINDOW, total))
    try:
        found = labels.of(rows(places.ravel()))
    except (FastRecordError, OSError):
        return False
    # The share of equal neighbours, and the one that is expected in random order.
    alike = np.mean(np.diff(found.reshape(places.shape)) == 0)
    _, counts = np.unique(found, return_counts=True)
    expected = np.square(counts / counts.sum()).sum()
    return found.dtype.kind == "i" and len(counts) > 1 and bool(alike > (1 + expected) / 2)
