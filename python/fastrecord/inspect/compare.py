"""`diff`: which records two data sets have in common, and how those differ.

Compares index entries; reads values only where their checksums cannot decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader
from fastrecord.checks import integer
from fastrecord.dataset.labels import Labels
from fastrecord.dataset.shards import Paths, Shards
from fastrecord.schema import FieldType
from fastrecord.schema.classes import class_names
from fastrecord.schema.roles import KEY, find_label, has_key, holds_classes, lies_in_index, plain

Numbers = NDArray[np.int64]

_CHUNK = 1 << 16
# Any odd number: it tells repeats of one key apart.
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Change:
    """One record that differs.

    Attributes:
        change: "added", "removed" or "changed".
        key: Its key, or None if the records are compared by position.
        a, b: Its number in each data set; None where it is not.
        fields: The fields that differ, of a changed record.
    """

    change: str
    key: str | None
    a: int | None
    b: int | None
    fields: list[str]


@dataclass(slots=True)
class Comparison:
    """How data set B differs from data set A.

    Attributes:
        by: "key" or "position": how records were paired.
        records: Records of A and of B.
        added, removed: Records of B only, of A only.
        changed: Records of both whose values differ.
        changed_fields: Field and number of records in which it differs.
        fields_added, fields_removed: Names of fields of B only, of A only.
        fields_retyped: Field and its types in A and B; its values are not compared.
        classes_added, classes_removed: Class names of B only, of A only.
        renumbered: Whether a class has different numbers; labels are compared by class name.
        reordered: Whether the records that both have are in a different order.
        order: Whether that counts as a difference.
        changes: The first records that differ.
    """

    by: str
    records: tuple[int, int]
    order: bool
    added: int = 0
    removed: int = 0
    changed: int = 0
    changed_fields: dict[str, int] = field(default_factory=dict)
    fields_added: list[str] = field(default_factory=list)
    fields_removed: list[str] = field(default_factory=list)
    fields_retyped: dict[str, tuple[str, str]] = field(default_factory=dict)
    classes_added: list[str] = field(default_factory=list)
    classes_removed: list[str] = field(default_factory=list)
    renumbered: bool = False
    reordered: bool = False
    changes: list[Change] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether nothing differs that counts."""
        lists = (self.fields_added, self.fields_removed, self.fields_retyped, self.classes_added, self.classes_removed)
        counts = (self.added, self.removed, self.changed)
        return not (any(counts) or any(lists) or (self.order and self.reordered))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-able values."""
        return {"same": self.same, **asdict(self)}


def diff(a: Paths, b: Paths, *, order: bool = False, limit: int = 20) -> Comparison:
    """Compare the records of two data sets.

    Records are paired by key: the n-th record of a key in A with its n-th record in B. If a data set
    has no keys, they are paired by position. Values are equal if their lengths and checksums are. If
    only the checksums differ, the values decide: the same value may be compressed in two ways.
    Compression, crop indexes and metadata besides classes are not compared. Memory: about 100 bytes
    per record of the larger data set.

    Args:
        a: A .frec file, a folder of them, a glob pattern, or a sequence of these.
        b: The other one.
        order: Another order of the records is a difference, too.
        limit: Maximum number of records to list as added, as removed and as changed.

    Raises:
        FileNotFoundError: nothing is at a path.
        SchemaError: the files of one data set have different fields.
        CorruptFileError: a file is not a valid .frec file, or a value that must be read is damaged.
    """
    limit = integer("limit", limit, 0)
    with closing(Shards.open_alike(a)) as shards, closing(Shards.open_alike(b)) as others:
        return _Pairing(shards, others, order=order).compare(limit)


class _Pairing:
    """Two data sets, and which record of one belongs to which record of the other.

    Attributes:
        rows: The rows of A and of B that belong together, ascending in A, int64 (pairs,) each.
    """

    def __init__(self, a: Shards, b: Shards, *, order: bool) -> None:
        self._sides = (a, b)
        self._keyed = has_key(a.readers[0]) and has_key(b.readers[0])
        self._found = Comparison("key" if self._keyed else "position", (len(a), len(b)), order)
        if self._keyed:
            self.rows = _match(_key_marks(a), _key_marks(b))
        else:
            common = np.arange(min(len(a), len(b)))
            self.rows = (common, common)
        self._found.reordered = bool((np.diff(self.rows[1]) < 0).any())

    def compare(self, limit: int) -> Comparison:
        found = self._found
        kinds, others = ({name: plain(kind) for name, kind in side.schema.items()} for side in self._sides)
        found.fields_removed = [name for name in kinds if name not in others]
        found.fields_added = [name for name in others if name not in kinds]
        found.fields_retyped = {
            name: (str(kind), str(others[name])) for name, kind in kinds.items() if others.get(name, kind) != kind
        }
        differing: dict[str, NDArray[np.bool_]] = {}
        for name, kind in kinds.items():
            if others.get(name) == kind and not (self._keyed and name == KEY):
                mask = self._differing(name, kind)
                if mask.any():
                    differing[name] = mask
                    found.changed_fields[name] = int(np.count_nonzero(mask))
        changed = np.zeros(len(self.rows[0]), np.bool_)
        for mask in differing.values():
            changed |= mask
        removed, added = (
            np.delete(np.arange(len(side)), rows) for side, rows in zip(self._sides, self.rows, strict=True)
        )
        found.removed, found.added, found.changed = len(removed), len(added), int(np.count_nonzero(changed))
        found.changes = [
            *(self._change("removed", int(row), None) for row in removed[:limit]),
            *(self._change("added", None, int(row)) for row in added[:limit]),
        ]
        for pair in np.flatnonzero(changed)[:limit].tolist():
            one = self._change("changed", int(self.rows[0][pair]), int(self.rows[1][pair]))
            one.fields.extend(name for name, mask in differing.items() if mask[pair])
            found.changes.append(one)
        return found

    def _change(self, change: str, a: int | None, b: int | None) -> Change:
        key: str | None = None
        if self._keyed:
            shards, row = (self._sides[0], a) if a is not None else (self._sides[1], b)
            shard, record = shards.locate(row or 0)
            key = shards.readers[shard].get(record, KEY)
        return Change(change, key, a, b, [])

    def _differing(self, name: str, kind: FieldType) -> NDArray[np.bool_]:
        """Return whether the values of a field differ in each pair, bool (pairs,)."""
        if not lies_in_index(kind):
            return self._payloads_differ(name, kind)
        columns: list[NDArray[Any]] | None = self._class_numbers(name, kind)
        if columns is None:
            columns = self._of_pairs(lambda reader: reader.column(name, copy=True))
        # Bit for bit: nan equals itself.
        bits = [_bits(column) for column in columns]
        differ: NDArray[np.bool_] = (bits[0] != bits[1]).any(axis=1)
        return differ

    def _class_numbers(self, name: str, kind: FieldType) -> list[Numbers] | None:
        """Return the labels of the pairs with one numbering of the classes; None without names."""
        names = [class_names(side.readers[0]) for side in self._sides]
        if not holds_classes(kind) or find_label(self._sides[0].readers[0]) != name or None in names:
            return None
        labels = [Labels(side, name, None) for side in self._sides]
        first, second = (one.classes for one in labels)
        numbers = {one: number for number, one in enumerate(first)}
        found = self._found
        found.classes_removed = [one for one in first if one not in set(second)]
        found.classes_added = [one for one in second if one not in numbers]
        # Classes that only the second side has are numbered after all others.
        table = np.array([numbers.setdefault(one, len(numbers)) for one in second], np.int64)
        found.renumbered = any(number != at for at, number in enumerate(table.tolist()) if number < len(first))
        columns = [
            np.concatenate([one.column(shard, copy=True) for shard in range(len(side.readers))]).astype(np.int64)
            for one, side in zip(labels, self._sides, strict=True)
        ]
        # Numbers without a name follow all classes: they equal each other, but no class.
        tables = np.arange(len(first)), table
        for at, (column, new) in enumerate(zip(columns, tables, strict=True)):
            places = np.where((column >= 0) & (column < len(new)), column, len(new))
            unnamed = np.where(column < 0, column, column + len(numbers))
            columns[at] = np.where(places < len(new), np.append(new, 0)[places], unnamed)
        return [column[rows] for column, rows in zip(columns, self.rows, strict=True)]

    def _payloads_differ(self, name: str, kind: FieldType) -> NDArray[np.bool_]:
        lengths = self._of_pairs(lambda reader: reader.lengths(name))
        sums = self._of_pairs(lambda reader: reader.checksums(name))
        differ: NDArray[np.bool_] = lengths[0] != lengths[1]
        unsure = ~differ & (sums[0] != sums[1])
        if kind.name == "array" and (kind.shape or ()).count(None) > 1:
            unsure = ~differ  # the shapes of equal bytes may differ
        for pair in np.flatnonzero(unsure).tolist():
            one, other = (self._value(side, int(self.rows[side][pair]), name) for side in (0, 1))
            differ[pair] = not _same(one, other)
        return differ

    def _of_pairs(self, read: Callable[[Reader], NDArray[Any]]) -> list[NDArray[Any]]:
        """Return what is read of all files, of the paired records, for A and for B."""
        return [
            np.concatenate([read(reader) for reader in side.readers])[rows]
            for side, rows in zip(self._sides, self.rows, strict=True)
        ]

    def _value(self, side: int, row: int, name: str) -> Any:
        shard, record = self._sides[side].locate(row)
        return self._sides[side].readers[shard].get(record, name, copy=True)


def _key_marks(shards: Shards) -> Numbers:
    """Return 64 bits for each record: equal for the same repeat of the same key, int64 (N,).

    Python's keyed hash: two different keys have the same one with a probability of 2^-64, for any choice of keys.
    """
    found = [
        np.fromiter(map(hash, reader.read_batch(range(start, min(start + _CHUNK, len(reader))), [KEY])[KEY]), np.int64)
        for reader in shards.readers
        for start in range(0, len(reader), _CHUNK)
    ]
    marks = np.concatenate([np.empty(0, np.int64), *found])
    order = np.argsort(marks, kind="stable")
    ordered = marks[order]
    places = np.arange(len(marks))
    starts = np.maximum.accumulate(np.where(np.diff(ordered, prepend=~ordered[:1]) != 0, places, 0))
    if len(marks):
        marks.view(np.uint64)[order] += (places - starts).astype(np.uint64) * np.uint64(_STEP)
    return marks


def _match(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Return the places of equal marks in A and B, ascending in A."""
    order = np.argsort(a)
    places = np.searchsorted(a, b, sorter=order)
    inside = places < len(a)
    places[~inside] = 0
    found = inside & (a[order[places]] == b) if len(a) else inside
    ours, theirs = order[places[found]], np.flatnonzero(found)
    ascending = np.argsort(ours)
    return ours[ascending], theirs[ascending]


def _bits(column: NDArray[Any]) -> NDArray[np.uint8]:
    width = column.itemsize * math.prod(column.shape[1:])
    return np.frombuffer(np.ascontiguousarray(column).tobytes(), np.uint8).reshape(len(column), width)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)
