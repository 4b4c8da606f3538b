"""`Selection`: the records and fields that a data set reads, and the files they come from.

Does not decode images or build samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrecord._core import Reader
from fastrecord.checks import WORD, integer
from fastrecord.dataset.columns import Columns, Condition
from fastrecord.dataset.labels import Labels
from fastrecord.dataset.rows import All, Filtered, Numbers, Permuted, Rows, Strata, Stratum, joined, span
from fastrecord.dataset.shards import Shards, normalized, normalized_one
from fastrecord.dataset.split import part_sizes
from fastrecord.schema.roles import check_fields, find_label, holds_labels

MISSING = object()


@dataclass(frozen=True, eq=False)
class Selection:
    """Records and fields of some files. Immutable; views share the open files.

    Attributes:
        shards: The files.
        rows: The records, in order.
        labels: The labels of all records of the files.
        fields: The fields of a sample, in order.
        image_field: The first of them if a sample is `(image, label)`; None if it is a dict.
    """

    shards: Shards
    rows: Rows
    labels: Labels
    fields: tuple[str, ...]
    image_field: str | None

    @classmethod
    def of(
        cls,
        shards: Shards,
        rows: Rows,
        fields: tuple[str, ...] | None,
        image_field: str | None,
        label_field: str | None,
        classes: list[str] | None,
    ) -> Selection:
        """Check that all files have the fields, and number their labels.

        Args:
            shards: The files.
            rows: The records.
            fields: The fields of a dict; None for `(image, label)`.
            image_field: The field of the image, for `(image, label)`.
            label_field: The field of the labels, if there are any.
            classes: Class names, position = label.

        Raises:
            SchemaError: a field is missing or of another type; or classes cannot be matched.
        """
        check_fields(shards.distinct, image_field, label_field, fields or ())
        if fields is None:
            fields = tuple(name for name in (image_field, label_field) if name is not None)
        return cls(shards, rows, Labels(shards, label_field, classes), fields, image_field)

    @classmethod
    def whole(cls, shards: Shards) -> Selection:
        """Return all records, with the field `label` as labels if it can hold them."""
        first = shards.readers[0]
        label = find_label(first)
        if label is not None and not (
            holds_labels(first.schema[label]) and all(label in reader.schema for reader in shards.distinct)
        ):
            label = None
        return cls.of(shards, All(len(shards)), (), None, label, None)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def readers(self) -> Sequence[Reader]:
        """The reader of each file."""
        return self.shards.readers

    @property
    def label_field(self) -> str | None:
        """The field of the labels."""
        return self.labels.field

    @property
    def mapped_label(self) -> str | None:
        """The selected field whose labels differ from the stored values."""
        chosen = self.label_field in self.fields and (self.labels.are_mapped or self.image_field is not None)
        return self.label_field if chosen else None

    @cached_property
    def columns(self) -> Columns:
        """The columns of all files; labels have the data set's numbers."""
        return Columns(self.shards, self.labels)

    def take(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the rows of indices, int64 (N,); each index is in [-len(self), len(self))."""
        return self.rows.take(normalized(indices, len(self)))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the file of an index, and the record number in it."""
        number = np.array([normalized_one(index, len(self))])
        return self.shards.locate(int(self.rows.take(number)[0]))

    def column(self, field: str) -> NDArray[Any]:
        """Return a field's value of every record, (N,)."""
        return self.columns.values(field, self.rows.whole())

    def subset(self, indices: slice | ArrayLike) -> Selection:
        """Return some records; see `FastRecordDataset.subset`."""
        total = len(self)
        if isinstance(indices, slice):
            return replace(self, rows=span(self.rows, range(total)[indices]))
        if isinstance(indices, range) and (not indices or min(indices[0], indices[-1]) >= 0):
            if indices:
                normalized_one(max(indices[0], indices[-1]), total)
            return replace(self, rows=span(self.rows, indices))
        array = np.asarray(indices)
        if array.dtype == np.bool_:
            if array.shape != (total,):
                raise IndexError(f"a mask is bool ({total},), one value for each record, not of shape {array.shape}")
            array = np.flatnonzero(array)
        return replace(self, rows=Numbers(self.take(array).copy()))

    def filter(self, field: str, op: str | Callable[[NDArray[Any]], Any], value: Any) -> Selection:
        """Return the records whose field meets a condition; see `FastRecordDataset.filter`."""
        if callable(field) or (op == "" and value is MISSING):
            raise TypeError(
                "filter takes a field and a comparison, filter('label', '==', 3), or a field and a callable that takes "
                "the whole column and returns a mask, filter('score', lambda column: column > 0.5)"
            )
        if callable(op):
            if value is not MISSING:
                raise TypeError(f"a callable takes the column only: leave out value={value!r}")
            mask = np.asarray(op(self.column(field)))
            if not len(self) and mask.size == 0:
                return self
            if mask.dtype != np.bool_ or mask.shape != (len(self),):
                raise ValueError(
                    f"the callable's result is a mask, bool ({len(self)},), not {mask.dtype} of shape {mask.shape}"
                )
            return self.subset(mask)
        if value is MISSING:
            raise TypeError(f"filter({field!r}, {op!r}) has no value: give one to compare with")
        return replace(self, rows=Filtered(self.rows, self.columns, self._condition(field, op, value)))

    def mask(self, field: str, op: str, value: Any) -> NDArray[np.bool_]:
        """Return which records meet a condition of `filter`, bool (N,)."""
        return self.columns.mask(self._condition(field, op, value), self.rows.whole())

    def _condition(self, field: str, op: str, value: Any) -> Condition:
        return self.columns.condition(field, op, self.labels.numbered(value) if field == self.label_field else value)

    def split(self, parts: int | Sequence[float], seed: int, stratify: str | None) -> list[Selection]:
        """Split the records into disjoint parts; see `FastRecordDataset.split`."""
        seed = integer("seed", seed, 0, WORD)
        sizes = part_sizes(len(self), parts)
        if stratify is not None:
            self.columns.check(stratify)
            strata = Strata(self.rows, self.columns, stratify, sizes, seed)
            return [replace(self, rows=Stratum(strata, part)) for part in range(len(sizes))]
        mixed = Permuted(self.rows, seed)
        ends = np.cumsum([0, *sizes]).tolist()
        return [replace(self, rows=span(mixed, range(start, end))) for start, end in pairwise(ends)]

    def joined(self, others: Sequence[Selection]) -> Selection:
        """Return these records followed by the records of others.

        Files that several selections share come once. The fields are this selection's.
        """
        members = (self, *others)
        shards, offsets = Shards.joined([member.shards for member in members])
        rows = joined([(offset, member.rows) for offset, member in zip(offsets, members, strict=True)])
        return self._over(shards, rows, self.fields, self.image_field)

    def with_fields(self, fields: Sequence[str]) -> Selection:
        """Return the same records in fields mode; see `FastRecordDataset.select_fields`."""
        return self._over(self.shards, self.rows, check_selection(fields), None)

    def _over(self, shards: Shards, rows: Rows, fields: tuple[str, ...], image_field: str | None) -> Selection:
        names = None if image_field is not None else fields
        return Selection.of(shards, rows, names, image_field, self.label_field, self.labels.given)


def check_selection(fields: Sequence[str]) -> tuple[str, ...]:
    """Check and return the names of selected fields.

    Raises:
        TypeError: not a sequence of names.
        ValueError: no names, or a name comes twice.
    """
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
        kind = f"write ({fields!r},)" if isinstance(fields, str) else f"not {fields!r}"
        raise TypeError(f"fields is a sequence of names: {kind}")
    names = tuple(fields)
    if not names:
        raise ValueError("fields is empty: name at least one field")
    if len(set(names)) != len(names):
        raise ValueError(f"fields names {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names
