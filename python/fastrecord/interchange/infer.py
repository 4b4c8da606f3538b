"""`infer_fields`: the types of a source that does not declare them, from its first records.

What most of the first values are is the type: a few others are bad records, which are named, and do
not change the type of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastrecord._core import FastRecordError, image_size
from fastrecord.errors import Code
from fastrecord.interchange.source import SourceField, T
from fastrecord.schema import FieldType
from fastrecord.schema.infer import common_type, kind_of
from fastrecord.schema.roles import holds_classes

# Values of the first records that decide.
SAMPLE = 64
# Last parts of names that labels have.
_LABELS = frozenset(("label", "labels", "class", "cls", "target", "targets", "y"))
_KEYS = ("__key__",)


def first_few(items: Iterator[T], count: int = SAMPLE) -> list[T]:
    """Return the first items, fewer if an error comes after some: reading meets it again."""
    found: list[T] = []
    try:
        for item in items:
            found.append(item)
            if len(found) == count:
                break
    except FastRecordError:
        if not found:
            raise
    return found


def renamed(
    fields: Sequence[SourceField], labels: Sequence[str] = (), keys: Sequence[str] = _KEYS
) -> list[SourceField]:
    """Return fields with the names that they get by default: the one image, label and key, and none with dots.

    Args:
        fields: The fields of a source.
        labels: The ones that are labels; empty: what their names say.
        keys: Names of fields of keys.
    """
    types = {each.name: each.type for each in fields}
    named = [name for name, kind in types.items() if is_label(name) and (holds_classes(kind) or kind.name == "string")]
    labels = labels or [name for name in named if name in _LABELS] or named
    names = {
        "image": [name for name, kind in types.items() if kind.name == "image"],
        "label": labels,
        "key": [name for name in keys if name in types and types[name].name in ("string", "bytes")],
    }
    renames = {name: name.replace(".", "_") for name in types if "." in name}
    renames |= {found[0]: new for new, found in names.items() if len(found) == 1 and new not in types}
    return [replace(each, rename=renames.get(each.name)) for each in fields]


def is_label(name: str) -> bool:
    """Return whether a name in a source is one that labels have, such as "image/class/label"."""
    return re.split(r"[/.]", name)[-1].lower() in _LABELS


def most(answers: Iterable[bool]) -> bool:
    """Return whether more than half of the answers are true."""
    found = list(answers)
    return 2 * sum(found) > len(found)


def most_images(values: Sequence[Any]) -> bool:
    """Return whether more than half of the values, which are bytes, are images."""
    return most(image_size(value) is not None for value in values)


def usual_type(values: Sequence[Any]) -> FieldType | None:
    """Return `common_type` of all values, else of those of one kind if they are more than half.

    Args:
        values: At least one value.
    """
    kind = common_type(values)
    if kind is not None:
        return kind
    groups: dict[Any, list[Any]] = {}
    for value in values:
        name = kind_of(value)
        of_array = (str(value.dtype), value.ndim) if name == "array" else ()
        groups.setdefault(("number" if name in ("int", "float") else name, *of_array), []).append(value)
    largest = max(groups.values(), key=len)
    return common_type(largest) if 2 * len(largest) > len(values) else None


def infer_fields(samples: Mapping[str, Sequence[Any]], origins: Mapping[str, str], where: str) -> list[SourceField]:
    """Return the fields of a source from values of its first records.

    Args:
        samples: Name of a field in the source -> its values in the first records, at least one.
        origins: What each field is in the source, for people.
        where: The source, for errors.

    Raises:
        FastRecordError: not even half of a field's values are of one type.
    """
    return renamed(
        [SourceField(name, type_of(values, name, where), origins.get(name, "")) for name, values in samples.items()]
    )


def type_of(values: Sequence[Any], name: str, where: str) -> FieldType:
    """Return `usual_type` of the first values of a field.

    Raises:
        FastRecordError: not even half of them are of one type.
    """
    kind = usual_type(values)
    if kind is None:
        found = sorted({_described(value) for value in values})
        raise Code.MIXED_FIELDS.error(
            f"{where}: field {name!r}: its first {len(values)} values are of several types, {', '.join(found)}: "
            f"leave it out by naming the other fields with --map, or give one type with --type {name}=TYPE"
        )
    return kind


def _described(value: Any) -> str:
    return f"{value.dtype} of {value.ndim} dimensions" if kind_of(value) == "array" else type(value).__name__
