"""`Labels`: the labels of a data set, numbered alike over all files and field types.

Reads labels only. It knows neither the records of a view nor the shape of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import read_values
from fastrecord.errors import Code
from fastrecord.schema.classes import map_labels, merge_classes
from fastrecord.schema.roles import holds_classes

if TYPE_CHECKING:
    from fastrecord.schema.classes import Table

# Strings become Python objects for the lookup; process this many at a time.
_CHUNK = 1 << 16
_MOST = np.iinfo(np.int64).max


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

    Raises:
        SchemaError: the classes of files cannot be matched, or `classes` is given without labels.
    """

    def __init__(self, shards: Shards, field: str | None, classes: list[str] | None) -> None:
        self.field = field
        self._shards, self.given = shards, classes
        self._kind = None if field is None else shards.schema[field]
        numbered = self._kind is not None and holds_classes(self._kind)
        if classes is not None and not (numbered or self.are_names):
            raise Code.FIELD_TYPE.error(
                f"{shards.readers[0].path}: classes= numbers integer labels and names, and the file has no such field"
            )
        # Usually None, so that a pickled data set stays small.
        self._tables: list[Table | None] | None = None
        # Each record's class number, cached; used if classes come from the names in all records.
        self._found: list[str] | None = None
        self._numbers: NDArray[np.int64] | None = None
        self._classes: list[str] | None = None
        self._known: dict[str, int] | None = None
        if not self.are_names:
            self._classes, tables = merge_classes(shards.readers, classes, shards.class_lists())
            if numbered and any(table is not None for table in tables):
                self._tables = tables
            if self.are_arrays:
                self._refuse_other_classes(tables)

    def __getstate__(self) -> dict[str, Any]:
        if self.are_names:
            _ = self.classes  # read once here, not in every process that unpickles it
        return {**self.__dict__, "_numbers": None, "_classes": None, "_known": None}

    @property
    def are_names(self) -> bool:
        """Whether the files hold class names."""
        return self._kind is not None and self._kind.name == "string"

    @property
    def are_arrays(self) -> bool:
        """Whether each label is an array."""
        return self._kind is not None and self._kind.name == "array"

    @property
    def are_mapped(self) -> bool:
        """Whether labels differ from the stored values."""
        return self.are_names or self._tables is not None

    @property
    def classes(self) -> list[str]:
        """Class names, position = label; empty if there are none."""
        if self._classes is None:
            lists = self._shards.class_lists()
            if not self.are_names:
                self._classes, _ = merge_classes(self._shards.readers, self.given, lists)
            elif self.given is not None:
                self._classes = self.given
            elif None not in lists:
                self._classes, _ = merge_classes(self._shards.readers, None, lists)
            else:
                if self._found is None:
                    self._found, self._numbers = self._find()
                self._classes = self._found
        return self._classes

    def of(self, rows: NDArray[np.int64], *, verify: bool | Literal["once"]) -> NDArray[Any]:
        """Return the labels of records, (N,) or (N, *shape).

        Args:
            rows: Numbers over all files, int64 (N,).
            verify: As for the data set.

        Raises:
            SchemaError: a label has no class, or is too large.
            FastRecordError: a record has no label.
        """
        if self.are_arrays:
            return self._widened(read_values(self._shards, rows, [str(self.field)], verify=verify)[str(self.field)])
        floats = not self.are_names and self._kind is not None and not holds_classes(self._kind)
        labels = np.empty(len(rows), np.float64 if floats else np.int64)
        for shard, slots, records in self._shards.split(rows):
            labels[slots] = self.of_file(shard, records, verify=verify)
        return labels

    def of_file(self, shard: int, records: NDArray[np.int64], *, verify: bool | Literal["once"]) -> NDArray[Any]:
        """Return the labels of records of one file; see `of`."""
        reader, field = self._shards.readers[shard], str(self.field)
        if self.are_names and self._numbers is not None:
            start = int(self._shards.ends[shard]) - len(reader)
            return self._numbers[records + start]
        stored = reader.read_batch(records, [field], verify=verify, copy=True)[field]
        if self.are_names:
            if self._known is None:
                self._known = {name: number for number, name in enumerate(self.classes)}
            return self._look_up(stored, self._known, reader, records)
        values = self._widened(stored)
        return values if self.are_arrays else self._mapped(values, shard, records)

    def column(self, shard: int, *, copy: bool) -> NDArray[Any]:
        """Return the labels of all records of a file. Does not support arrays.

        Raises:
            KeyError, TypeError: the field has no column.
            SchemaError, FastRecordError: as `of`.
        """
        reader = self._shards.readers[shard]
        records = range(len(reader))
        if not self.are_names:
            return self._mapped(self._widened(reader.column(str(self.field), copy=copy)), shard, records)
        if self._numbers is None:
            self._numbers = self._look_at_all(self.classes)
        stop = int(self._shards.ends[shard])
        return self._numbers[stop - len(reader) : stop]

    def numbered(self, value: Any) -> Any:
        """Replace class names in a comparison value by labels.

        Raises:
            ValueError: no class has this name.
        """
        if isinstance(value, str):
            return self._label_of(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._label_of(one) if isinstance(one, str) else one for one in value]
        return value

    def _label_of(self, name: str) -> int:
        classes = self.classes
        if name not in classes:
            some = ", ".join(map(repr, classes[:5])) + (" ..." if len(classes) > 5 else "")
            raise ValueError(f"no class is named {name!r}; the data set has {some or 'no class names'}")
        return classes.index(name)

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

    def _widened(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return stored values in a numpy type: bfloat16 as float32."""
        if self._kind is None or self._kind.dtype != "bfloat16":
            return values
        return (values.astype(np.uint32) << 16).view(np.float32)

    def _mapped(self, values: NDArray[Any], shard: int, records: Sequence[int] | NDArray[np.int64]) -> NDArray[Any]:
        """Map stored numbers to labels of the data set. int64 and float64 are not copied."""
        reader = self._shards.readers[shard]
        if values.dtype.kind == "f":
            return values.astype(np.float64, copy=False)
        if values.dtype == np.uint64 and len(values) and values.max() > _MOST:
            at = int(np.argmax(values > _MOST))
            raise Code.LARGE_LABEL.error(
                f"{self._place(reader, records[at])}: the label {values[at]} is above {_MOST}, the largest one: labels "
                "are int64"
            )
        labels = values.astype(np.int64, copy=False)
        return labels if self._tables is None else map_labels(labels, self._tables[shard], reader.path)

    def _look_up(
        self, names: list[Any], known: dict[str, int], reader: Reader, records: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.int64]:
        numbers = [known.get(name, -1) for name in names]
        if -1 in numbers:
            at = numbers.index(-1)
            place = self._place(reader, records[at])
            if names[at] is None:
                raise Code.NO_VALUE.error(f"{place}: the record has no label", record=int(records[at]))
            where = "classes=" if self.given is not None else "the metadata"
            raise Code.UNKNOWN_CLASS.error(
                f"{place}: the class {names[at]!r} is not among the {len(known)} that {where} names"
            )
        return np.array(numbers, np.int64)

    def _look_at_all(self, classes: list[str]) -> NDArray[np.int64]:
        """Return the class number of every record, int64 (records,), by reading each name."""
        known = {name: number for number, name in enumerate(classes)}
        found = [self._look_up(names, known, reader, records) for reader, records, names in self._read_all()]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _find(self) -> tuple[list[str], NDArray[np.int64]]:
        """Return all names, sorted, and the class number of every record."""
        known: dict[str, int] = {}
        found = [np.empty(0, np.int64)]
        for reader, records, names in self._read_all():
            for name in dict.fromkeys(names):
                if name is not None:
                    known.setdefault(name, len(known))
            found.append(self._look_up(names, known, reader, records))
        classes = sorted(known)
        table = np.empty(len(known), np.int64)
        table[[known[name] for name in classes]] = np.arange(len(classes))
        return classes, table[np.concatenate(found)]

    def _read_all(self) -> Iterator[tuple[Reader, range, list[Any]]]:
        field = str(self.field)
        for reader in self._shards.readers:
            for start in range(0, len(reader), _CHUNK):
                records = range(start, min(start + _CHUNK, len(reader)))
                yield reader, records, reader.read_batch(records, [field])[field]

    def _place(self, reader: Reader, record: int) -> str:
        return f"{reader.path}: record {record}, field {self.field!r}"


def listed_labels(labels: NDArray[Any]) -> list[Any]:
    """Return labels as in samples: Python numbers, or a tensor for each array."""
    if labels.ndim == 1:
        return list(labels.tolist())
    import torch  # commands that only look into files do without it

    return list(torch.from_numpy(labels))
