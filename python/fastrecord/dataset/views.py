"""`Views`: views of data sets with other records, fields or orders of the same files.

Views share the open files and take almost no memory.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from fastrecord._core import Reader
from fastrecord.checks import WORD, integer
from fastrecord.dataset.columns import Columns
from fastrecord.dataset.labels import Labels
from fastrecord.dataset.rows import Filtered, Numbers, Permuted, Rows, Strata, Stratum, joined, span
from fastrecord.dataset.samples import check_selection
from fastrecord.dataset.shards import Shards, normalized
from fastrecord.dataset.split import part_sizes
from fastrecord.schema.roles import check_fields

_MISSING = object()


class Views(Dataset[Any]):
    """The methods of FastRecordDataset that return views: same settings, same open files."""

    transform: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None
    decode: str | None
    verify: bool | Literal["once"]
    sixteen_bit: str
    paths: list[str]
    _shards: Shards
    _view: Rows
    _fields: tuple[str, ...] | None
    _image_field: str | None
    _label_field: str | None
    _extra_fields: tuple[str, ...]
    _given_classes: list[str] | None
    _labels: Labels

    def __len__(self) -> int:
        return len(self._view)

    def rows(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the numbers over all files of some records of this data set, int64 (N,).

        Record 0 is the first record of the first file. In a view, these numbers differ from the
        indices.

        Args:
            indices: Any 1-D sequence or array of integers, each in [-len(self), len(self)).

        Raises:
            IndexError: one is out of range.
            TypeError: not a 1-D sequence of integers.
        """
        return self._view.take(normalized(indices, len(self)))

    def column(self, field: str) -> NDArray[Any]:
        """Return a field's value of every record, (N,); labels have the data set's numbers.

        Args:
            field: A field of numbers, of arrays of at most 64 bytes, or of str. Or the size of
                images, such as "image.width". str values are an array of objects, each read from
                the file. bfloat16 becomes float32.

        Returns:
            The mapped column, read-only, for all records or a slice of one file; else a copy.

        Raises:
            SchemaError: no such field, or it has no column.
            CorruptFileError: a checksum differs.
        """
        return self._columns().values(field, self._view.whole())

    def subset(self, numbers: slice | ArrayLike) -> Self:
        """Return a view of some records, in the order given.

        Args:
            numbers: A slice or range, which takes no memory; a 1-D sequence or array of integers in
                [-len(self), len(self)), stored as int64; or a mask, bool (len(self),).

        Raises:
            IndexError: a number is out of range, or a mask has another length.
            TypeError: none of these.
        """
        total = len(self)
        if isinstance(numbers, slice):
            return self._of(span(self._view, range(total)[numbers]))
        if isinstance(numbers, range) and (not numbers or min(numbers[0], numbers[-1]) >= 0):
            if numbers and max(numbers[0], numbers[-1]) >= total:
                raise IndexError(f"record {max(numbers[0], numbers[-1])} is out of range: the data set has {total}")
            return self._of(span(self._view, numbers))
        array = np.asarray(numbers)
        if array.dtype == np.bool_:
            if array.shape != (total,):
                raise IndexError(f"a mask has a value for each of the {total} records, not shape {array.shape}")
            array = np.flatnonzero(array)
        return self._of(Numbers(self._view.take(normalized(array, total)).copy()))

    def filter(self, field: str, op: str | Callable[[NDArray[Any]], Any] = "", value: Any = _MISSING) -> Self:
        """Return a view of the records whose field meets a condition, in order.

        A comparison is evaluated at first use, and again in each process that unpickles the view. A
        callable is evaluated at once, and the view stores 8 bytes for each record found.

        Args:
            field: As for `column`. Labels have this data set's numbers; a class name also works as
                the value.
            op: "==", "!=", "<", "<=", ">", ">=", "in" or "not in"; or a callable that takes the
                column (N,) and returns a mask, bool (N,).
            value: The value to compare with; a collection for "in" and "not in". Not allowed with a
                callable.

        Raises:
            SchemaError: no such field, or its type cannot be compared.
            TypeError, ValueError: there is no such operator, the value's type does not match the
                field, no class has this name, or a callable did not return a mask.
        """
        if callable(field) or (op == "" and value is _MISSING):
            raise TypeError(
                "filter takes a field and a comparison, filter('label', '==', 3), or a field and a callable that takes "
                "the whole column and returns a mask, filter('score', lambda column: column > 0.5)"
            )
        if callable(op):
            if value is not _MISSING:
                raise TypeError("a callable takes the column and nothing else: leave value out")
            mask = np.asarray(op(self.column(field)))
            if not len(self) and mask.size == 0:
                return self
            if mask.dtype != np.bool_ or mask.shape != (len(self),):
                raise ValueError(
                    f"the callable returns a mask, bool ({len(self)},), not {mask.dtype} of shape {mask.shape}"
                )
            return self.subset(mask)
        if value is _MISSING:
            raise TypeError(f"filter({field!r}, {op!r}, ...) wants a value to compare with")
        columns = self._columns()
        if field == self._label_field:
            value = self._named_labels(value)
        return self._of(Filtered(self._view, columns, columns.condition(field, op, value)))

    def split(self, parts: int | Sequence[float], seed: int = 0, *, stratify: str | None = None) -> list[Self]:
        """Split the records into disjoint parts, which together hold all of them.

        The result is a pure function of the number of records, the parts and the seed: the same on
        every machine and in every process. Parts are in random order and take no memory. With
        `stratify` they keep the order of this data set; they are computed at first use and take 8
        bytes a record.

        Args:
            parts: Fractions whose sum is 1, such as [0.9, 0.1]; numbers of records; or a number of
                equal parts, such as 5 for cross-validation. Sizes are exact; fractions are rounded
                as in torch's `random_split`.
            seed: In [0, 2**64).
            stratify: A field, such as "label". Each part has its share of every value, within one
                record (two for the third and later parts).

        Raises:
            TypeError, ValueError: `parts` is none of these, or the parts do not add up to the
                whole.
            SchemaError: no such field.
        """
        seed = integer("seed", seed, 0, WORD)
        sizes = part_sizes(len(self), parts)
        if stratify is not None:
            columns = self._columns()
            columns.check(stratify)
            strata = Strata(self._view, columns, stratify, sizes, seed)
            return [self._of(Stratum(strata, part)) for part in range(len(sizes))]
        mixed = Permuted(self._view, seed)
        ends = np.cumsum([0, *sizes]).tolist()
        return [self._of(span(mixed, range(start, end))) for start, end in pairwise(ends)]

    def concat(self, *others: Views) -> Self:
        """Return the records of this data set followed by the records of others.

        The result has this data set's settings. Files that several views share are opened once.
        Classes are matched by name, as for several files: this data set's classes keep their
        numbers. `a + b` is the same as `a.concat(b)`.

        Args:
            others: Data sets of the same fields and decoding, without transforms of their own.

        Raises:
            TypeError: an argument is not a FastRecordDataset.
            ValueError: one has other settings.
            SchemaError: files have different fields, or their classes cannot be matched.
        """
        for other in others:
            if not isinstance(other, Views):
                raise TypeError(f"concat takes data sets of fastrecord, not {type(other).__name__}")
            for name in ("_fields", "_image_field", "_label_field", "_extra_fields", "decode", "verify", "sixteen_bit"):
                self._check_same(other, name)
            for name in ("transform", "target_transform"):
                if getattr(other, name) is not None:
                    self._check_same(other, name)
        members: tuple[Views, ...] = (self, *others)
        shards, offsets = Shards.joined([member._shards for member in members])
        made = self._of(joined([(offset, member._view) for offset, member in zip(offsets, members, strict=True)]))
        made._shards = shards
        made.paths = [os.fspath(reader.path) for reader in shards.readers]
        made._check_files(shards.readers)
        made._number_classes()
        return made

    def __add__(self, other: Dataset[Any]) -> Any:
        return self.concat(other) if isinstance(other, Views) else super().__add__(other)

    def select(self, fields: Sequence[str]) -> Self:
        """Return a view in fields mode: samples are dicts of some fields.

        Args:
            fields: Names, in the order wanted.

        Raises:
            SchemaError: no such field.
            TypeError: not a sequence of names.
            ValueError: a name comes twice, or a transform expects images.
        """
        names = check_selection(fields)
        if self._fields is None and (self.transform or self.target_transform):
            raise ValueError(
                "the data set's transform takes an image, and a sample with selected fields is a dict: select first, "
                "and give the view a transform of its own"
            )
        made = self._of(self._view)
        made._fields, made._image_field, made._extra_fields = names, None, ()
        made._check_files(self._shards.readers)
        return made

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a sample dict; None if a sample starts with an image."""
        return self._fields

    @property
    def fingerprint(self) -> str | None:
        """A digest of the view for sampler states; None for all records of the files in order."""
        return self._view.fingerprint()

    def _of(self, rows: Rows) -> Self:
        made = copy.copy(self)
        made._view = rows
        return made

    def _columns(self) -> Columns:
        return Columns(self._shards, self._labels)

    def _check_same(self, other: Views, name: str) -> None:
        ours, theirs = getattr(self, name), getattr(other, name)
        if ours is not theirs and ours != theirs:
            word = name.lstrip("_")
            raise ValueError(
                f"the data sets differ in {word}: {ours!r} and {theirs!r}; one that is made of both has one {word}"
            )

    def _check_files(self, readers: Sequence[Reader]) -> None:
        """Check that all files have the fields, with the same types.

        Raises:
            SchemaError: a file does not.
        """
        check_fields(readers, self._image_field, self._label_field, self._fields or self._extra_fields)

    def _number_classes(self) -> None:
        """Determine the label numbers.

        Raises:
            SchemaError: the classes of files cannot be matched, or there are no labels to number.
        """
        self._labels = Labels(self._shards, self._label_field, self._given_classes)

    @property
    def _mapped_label(self) -> str | None:
        """The selected field whose labels differ from the stored values."""
        return self._label_field if self._labels.are_mapped and self._label_field in (self._fields or ()) else None

    def _named_labels(self, value: Any) -> Any:
        """Replace class names by labels."""
        if isinstance(value, str):
            return self._label_of(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._label_of(one) if isinstance(one, str) else one for one in value]
        return value

    def _label_of(self, name: str) -> int:
        classes = self._labels.classes
        if name not in classes:
            some = ", ".join(map(repr, classes[:5])) + (" ..." if len(classes) > 5 else "")
            raise ValueError(f"no class is named {name!r}; the data set has {some or 'no class names'}")
        return classes.index(name)


def concat(first: Views, *others: Views) -> Any:
    """Return the records of several data sets one after the other: `first.concat(*others)`."""
    if not isinstance(first, Views):
        raise TypeError(f"concat takes data sets of fastrecord, one after the other, not {type(first).__name__}")
    return first.concat(*others)
