"""`plan_fields`: which fields an import stores, under which names, and how their values change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastrecord.errors import Code
from fastrecord.interchange import Rows, Source, SourceField
from fastrecord.schema import FieldType, Schema
from fastrecord.schema.compression import Compression
from fastrecord.schema.roles import lies_in_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL, KEY = "label", "key"

Convert = Callable[[Any], Any]
_UNFIT = (ValueError, TypeError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True)
class PlannedField:
    """A field to store.

    Attributes:
        name: Its name in the file.
        type: Its type there.
        source: The field of the source.
        convert: From a value of the source to a value of the type; None: as it is. Raises
            ValueError or TypeError for a value that does not fit.
    """

    name: str
    type: FieldType
    source: SourceField
    convert: Convert | None = None

    def converted(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[int, str]]:
        """Convert a column.

        Returns:
            The values, with None for the ones that do not fit, and for each of these, by position,
            why.
        """
        if self.convert is None:
            return values, self._wrong_shapes(values)
        if getattr(values, "ndim", None) == 1:
            values = values.tolist()  # type: ignore[attr-defined]
        with suppress(*_UNFIT):
            return list(map(self.convert, values)), {}
        found: list[Any] = []
        bad = {}
        for i, value in enumerate(values):
            try:
                found.append(self.convert(value))
            except _UNFIT as err:
                found.append(None)
                bad[i] = f"field {self.name!r}: {value!r:.80} does not fit {self.type}: {err}"
        return found, bad

    def _wrong_shapes(self, values: Sequence[Any]) -> dict[int, str]:
        """Return what is wrong with arrays of another shape than the field has."""
        wanted = self.type.shape
        if not wanted or not isinstance(values, list):
            return {}
        shapes = {tuple(getattr(value, "shape", wanted)) for value in values}
        wrong = {shape for shape in shapes if not _fits(shape, wanted)}
        if not wrong:
            return {}
        found = ((i, tuple(getattr(value, "shape", wanted))) for i, value in enumerate(values))
        return {i: f"field {self.name!r}: its shape is {shape}, not {wanted}" for i, shape in found if shape in wrong}


def plan_fields(
    source: Source,
    mapping: Mapping[str, str] | None = None,
    types: Mapping[str, FieldType] | None = None,
    compression: str | None = None,
    fill: Mapping[str, Any] | None = None,
) -> list[PlannedField]:
    """Choose the fields to store.

    Args:
        source: The source.
        mapping: Name in the file -> name in the source; then no other field is stored.
        types: Name in the file -> type, for fields that get another one than the source has.
        compression: Codec for arrays that are not small, bytes, json and lists.
        fill: Name in the file -> value for nulls of the source, or its text.

    Raises:
        FastRecordError: the source has no such field, two fields would have one name, or a type
            cannot be made of another.
    """
    where = source.where
    by_name = {field.rename or field.name: field for field in source.fields}
    by_name |= {field.name: field for field in source.fields}
    known = ", ".join(f"{field.name} ({field.type})" for field in source.fields)
    if mapping is None:
        names = [(plain_name(field.rename or field.name), field) for field in source.fields]
        twice = {name for name, _ in names if sum(name == other for other, _ in names) > 1}
        if twice:
            raise Code.NO_SUCH_FIELD.error(
                f"{where}: two fields would have the name {min(twice)!r}: name them with --map, "
                f"from the fields of the source: {known}"
            )
    else:
        for name in mapping.values():
            if name not in by_name:
                raise Code.NO_SUCH_FIELD.error(f"{where}: no field is called {name!r}: the source has {known}")
        names = [(name, by_name[given]) for name, given in mapping.items()]
    wanted = dict(types or {})
    unknown = (wanted.keys() | (fill or {}).keys()) - {name for name, _ in names}
    if unknown:
        raise Code.NO_SUCH_FIELD.error(
            f"{where}: no field to store is called {min(unknown)!r}: there are {', '.join(name for name, _ in names)}"
        )
    for at, (name, field) in enumerate(names):
        if name in wanted and source.read_as(field.name, wanted[name]):
            names[at] = (name, replace(field, type=wanted[name]))
    stored = dict(names)
    for name, value in (fill or {}).items():
        field = stored[name]
        if not source.fill(field.name, _filling(value, field.type, name)):
            raise Code.NO_SUCH_FIELD.error(f"{where}: field {name!r} has no nulls: leave out --fill {name}")
    return [_planned(name, field, wanted.get(name), compression, where) for name, field in names]


def _filling(value: Any, kind: FieldType, name: str) -> Any:
    """Return the value for nulls of a field, of a value or its text."""
    try:
        if kind.name == "string":
            return str(value)
        if kind.name in ("image", "bytes"):
            if isinstance(value, bytes):
                return value
            raise ValueError("bytes have no text")
        if isinstance(value, str) and (kind.shape != () or kind.name == "bool"):
            value = json.loads(value)
        return value if kind.name in ("json", "list") else _to_numbers(kind)(value)
    except (ValueError, TypeError, OverflowError) as err:
        raise Code.NO_SUCH_FIELD.error(
            f"field {name!r}: {value!r} does not fit {kind}: {err}: give another value to --fill"
        ) from err


def convert(fields: Sequence[PlannedField], rows: Rows) -> tuple[dict[str, Sequence[Any]], dict[int, str]]:
    """Return the columns to store of a run, and what is wrong with records, by number."""
    numbers = rows.numbers
    columns: dict[str, Sequence[Any]] = {}
    bad: dict[int, str] = {}
    for field in fields:
        columns[field.name], unfit = field.converted(rows.columns[field.source.name])
        bad |= {numbers[i]: reason for i, reason in unfit.items()}
    return columns, bad


def plain_name(name: str) -> str:
    """Return a name of a source as a name of a field, which has no dots and no NUL."""
    return name.replace(".", "_").replace("\0", "_") or "field"


def schema_of(fields: Sequence[PlannedField]) -> Schema:
    """Return the schema of the records to store."""
    return Schema({field.name: field.type for field in fields})


def source_names(fields: Sequence[PlannedField]) -> list[str]:
    """Return the names of the source's fields that are read for the records to store, each once."""
    return list(dict.fromkeys(field.source.name for field in fields))


def number_labels(fields: list[PlannedField], table: Mapping[Any, int]) -> list[PlannedField]:
    """Return the fields with a label that is numbered by a table of classes.

    Args:
        fields: The fields.
        table: Value of the source -> label.
    """

    def convert(value: Any) -> int:
        if value not in table:
            raise ValueError("the class is not among the known ones")
        return table[value]

    return [
        replace(field, type=FieldType("int64"), convert=convert) if field.name == LABEL else field for field in fields
    ]


def _planned(
    name: str, field: SourceField, wanted: FieldType | None, compression: str | None, where: str
) -> PlannedField:
    kind = field.type if wanted is None else wanted
    convert = None
    if kind != field.type:
        convert = _conversion(field.type, kind)
        if convert is None:
            raise Code.NO_SUCH_FIELD.error(
                f"{where}: field {field.name!r} is {field.type} ({field.origin}), which cannot become {kind}"
            )
    if compression is not None and kind.name in ("array", "bytes", "json", "list") and not lies_in_index(kind):
        kind = replace(kind, compression=Compression(compression))
    return PlannedField(name, kind, field, None if convert is _same else convert)


def _conversion(given: FieldType, wanted: FieldType) -> Convert | None:
    """Return how values of one type become values of another, or None if they cannot."""
    numeric = given.shape is not None
    match wanted.name:
        case "string":
            if given.name == "bytes":
                return lambda value: str(value, "utf-8")
            if given.name in ("json", "list"):
                return json.dumps
            return str if given.shape == () else None
        case "bytes" | "image":
            if given.name == "string":
                return str.encode
            return _same if given.name in ("bytes", "image") else None
        case "json":
            if given.name in ("string", "bytes"):
                return json.loads
            if numeric:
                return lambda value: value.tolist() if hasattr(value, "tolist") else value
            return _same if given.name == "list" else None
        case "list":
            if given.name == "json":
                return _same
            return list if numeric and given.shape else None
    if wanted.dtype is None or not (numeric or given.name in ("string", "bytes", "list", "json")):
        return None
    if wanted.shape == () and given.shape not in ((), None):
        return None
    return _to_numbers(wanted)


def _to_numbers(wanted: FieldType) -> Convert:
    """Return a conversion to numbers, or arrays of them; integers must keep their values."""
    import numpy as np

    # numpy has no bfloat16: the writer rounds float32 to it.
    dtype = np.dtype("float32" if wanted.dtype == "bfloat16" else wanted.dtype)

    def convert(value: Any) -> Any:
        if isinstance(value, (bytes, memoryview)):
            value = str(value, "utf-8")
        if isinstance(value, str):
            value = _number(value)
        given: NDArray[Any] = np.asarray(value)
        if given.dtype == object:
            raise TypeError("not a number, or not an array of numbers")
        with np.errstate(invalid="ignore", over="ignore"):
            found = given.astype(dtype)
        if dtype.kind in "iub" and not np.array_equal(found, given):
            raise ValueError(f"{dtype} cannot hold it")
        if not found.size and wanted.shape and None in wanted.shape:  # such as no boxes
            return found.reshape([dim or 0 for dim in wanted.shape])
        return found if wanted.shape else found.item()

    return convert


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(dim in (None, size) for size, dim in zip(shape, wanted, strict=True))


def _same(value: Any) -> Any:
    return value
