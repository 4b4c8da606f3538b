"""`Columns`: a field's values of many records at once, and conditions on them.

Reads index columns and strings, no images.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader
from fastrecord.checks import choice, digest
from fastrecord.dataset.labels import Labels
from fastrecord.dataset.shards import Shards
from fastrecord.dataset.values import is_number, read_values
from fastrecord.errors import Code
from fastrecord.look.values import widened

Where = slice | NDArray[np.int64]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MEMBER = ("in", "not in")
OPERATORS = (*_COMPARE, *_MEMBER)
# Strings become Python objects for the comparison; process this many at a time.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field with a value.

    Attributes:
        field: Its name.
        op: One of OPERATORS.
        value: A number or a str; for "in" and "not in" a sorted array of numbers or tuple of str.
    """

    field: str
    op: str
    value: Any

    def recipe(self) -> Any:
        """Return the condition, ready for JSON."""
        value = self.value
        if isinstance(value, np.ndarray):
            value = value.tolist() if value.dtype == object else [str(value.dtype), len(value), digest(value)]
        return [self.field, self.op, value if isinstance(value, (str, tuple, list)) else repr(value)]

    def mask(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values, numbers or str, meet the condition, bool (N,).

        A record without a value meets only "!=" and "not in".
        """
        value = self.value
        if values.dtype == object:
            if self.op in _MEMBER:
                members = frozenset(value)
                found = np.fromiter((one in members for one in values), bool, len(values))
                return ~found if self.op == "not in" else found
            none = self.op == "!="
            compare = _COMPARE[self.op]
            return np.fromiter((none if one is None else compare(one, value) for one in values), bool, len(values))
        if self.op in _MEMBER:
            if values.dtype.kind in "iu" and value.dtype.kind in "iuO":
                # Compare in the field's own type: the only common type of int64 and uint64 is
                # float.
                limits = np.iinfo(values.dtype)
                value = np.array([n for n in value.tolist() if limits.min <= n <= limits.max], values.dtype)
            elif value.dtype == object:
                value = value.astype(np.float64)
            return np.isin(values, value, invert=self.op == "not in")
        compare = _COMPARE[self.op]
        if values.dtype.kind in "iu" and isinstance(value, int):
            limits = np.iinfo(values.dtype)
            if not limits.min <= value <= limits.max:
                return np.full(len(values), compare(0, 1 if value > limits.max else -1))
        with np.errstate(over="ignore"):  # values that float16 cannot represent become infinite
            mask: NDArray[np.bool_] = compare(values, value)
        return mask


class Columns:
    """The columns of all files, concatenated; labels have the data set's numbers.

    Args:
        shards: The files.
        labels: Their labels.
    """

    def __init__(self, shards: Shards, labels: Labels) -> None:
        self._shards, self._labels = shards, labels

    def condition(self, field: str, op: str, value: Any) -> Condition:
        """Check a condition and return it.

        Raises:
            SchemaError: no such field, or its type cannot be compared.
            TypeError, ValueError: no such operator, or the value's type does not match the field.
        """
        choice("op", op, OPERATORS)
        kind = self.check(field)
        if op not in ("==", "!=", *_MEMBER) and "complex" in (self._dtype(field), type(value).__name__):
            raise TypeError(f"field {field!r}, {op} {value!r}: complex numbers have no order")
        if op not in _MEMBER:
            return Condition(field, op, _scalar(field, kind, value))
        if isinstance(value, (str, bytes)) or not np.iterable(value):
            raise TypeError(f"the value for {op!r} is a list or another collection, not {value!r}")
        values = [_scalar(field, kind, one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
        if kind == "string":
            return Condition(field, op, tuple(sorted(set(values))))
        return Condition(field, op, np.unique(_numbers(values)))

    def check(self, field: str) -> str:
        """Check that a field has values that can be compared; return "number" or "string".

        Raises:
            SchemaError: no such field, or its type cannot be compared.
        """
        kind = self._kind(field)
        if kind not in ("number", "string"):
            raise Code.FIELD_TYPE.error(
                f"field {field!r} holds {kind}, which cannot be compared: take another field, or filter by a callable "
                "that takes its column and returns a mask"
            )
        return kind

    def mask(self, condition: Condition, where: Where) -> NDArray[np.bool_]:
        """Return which records meet a condition, bool (N,).

        Args:
            condition: A return value of `condition`.
            where: Numbers over all files, int64 (N,), or a slice of them.
        """
        if self._kind(condition.field) == "number":
            # Reading a mapped view of a truncated file can kill the process.
            return condition.mask(self.values(condition.field, where, copy=True))
        rows = np.arange(len(self._shards), dtype=np.int64)[where]
        chunks = np.split(rows, range(_CHUNK, len(rows), _CHUNK))
        return np.concatenate([condition.mask(self.values(condition.field, chunk)) for chunk in chunks])

    def values(self, field: str, where: Where, *, copy: bool = False) -> NDArray[Any]:
        """Return values of a field, (N, ...): objects for str, float32 for bfloat16.

        The values of one whole file are a mapped view if numpy has the type.

        Args:
            field: A field, or an index column such as "image.width".
            where: Numbers over all files, int64 (N,), or a slice of them.
            copy: Copy numbers also where a view would do.

        Raises:
            SchemaError: no such field, or it has no column.
        """
        if self._kind(field) == "string":
            rows = np.arange(len(self._shards), dtype=np.int64)[where]
            strings = np.empty(len(rows), object)
            strings[:] = read_values(self._shards, rows, [field])[field]
            return strings
        readers = self._shards.readers
        copy = copy or len(readers) > 1 or not isinstance(where, slice)
        columns = [self._column(number, reader, field, copy=copy) for number, reader in enumerate(readers)]
        whole: NDArray[Any] = columns[0] if len(columns) == 1 else np.concatenate(columns)
        return whole[where]

    def recipe(self, field: str) -> Any:
        """Return what changes a field's values besides the files themselves, ready for JSON."""
        return self._labels.recipe() if self._is_label(field) else None

    def _column(self, number: int, reader: Reader, field: str, *, copy: bool) -> NDArray[Any]:
        try:
            if self._is_label(field):
                return self._labels.column(number, copy=copy)
            column = reader.column(field, copy=copy)
        except (KeyError, TypeError) as error:
            raise Code.FIELD_TYPE.error(f"{reader.path}: field {field!r} has no column: {error}") from error
        return widened(column, reader.schema[field]) if field in reader.schema else column

    def _is_label(self, field: str) -> bool:
        """Return whether the data set numbers the values of a field as labels."""
        return field == self._labels.field and not self._labels.are_arrays

    def _dtype(self, field: str) -> str:
        kind = self._shards.schema.get(field)
        return "" if kind is None or kind.dtype is None else kind.dtype.rstrip("0123456789")

    def _kind(self, field: str) -> str:
        """Return "number" or "string"; for other fields the name of the type."""
        schema = self._shards.schema
        if field not in schema:
            base, _, part = field.rpartition(".")
            if part in ("width", "height") and base in schema and schema[base].name == "image":
                return "number"
            raise Code.NO_FIELD.error(f"{self._shards.readers[0].path}: no field {field!r}: it has {', '.join(schema)}")
        return "number" if is_number(schema[field]) or self._is_label(field) else schema[field].name


def _scalar(field: str, kind: str, value: Any) -> Any:
    """Return a comparison value as a Python object."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, str if kind == "string" else (bool, int, float, complex)):
        raise TypeError(f"field {field!r} holds {kind}s, not {type(value).__name__}: {value!r}")
    return value


def _numbers(values: list[Any]) -> NDArray[Any]:
    """Return Python numbers as an array without loss, with dtype object if no integer type fits."""
    if not all(isinstance(value, int) for value in values):
        return np.array(values)
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if all(limits.min <= value <= limits.max for value in values):
            return np.array(values, dtype)
    return np.array(values, object)
