"""What a file made of several others keeps of their fields, metadata, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastrecord._core import Reader
from fastrecord.errors import Code
from fastrecord.schema.classes import class_names, map_labels, merge_classes
from fastrecord.schema.roles import holds_classes
from fastrecord.schema.shard_sets import without_origin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL = "label"


def check_same_fields(first: Reader, other: Reader) -> None:
    """Refuse files that differ in the names or types of their fields."""
    for one, two in ((first, other), (other, first)):
        for name in one.schema:
            if name not in two.schema:
                raise Code.FIELDS_DIFFER.error(f"{two.path}: no field {name!r}, which {one.path} has")
    for name, kind in first.schema.items():
        # The compression of a field is stored with each value.
        if replace(other.schema[name], compression=None) != replace(kind, compression=None):
            raise Code.FIELDS_DIFFER.error(
                f"field {name!r} is {kind} in {first.path}, but {other.schema[name]} in {other.path}"
            )


def merge_metadata(readers: Sequence[Reader]) -> tuple[dict[str, Any], list[str]]:
    """Return the metadata without the classes, and the keys whose values differ between files."""
    all_metadata = [reader.metadata for reader in readers]
    merged: dict[str, Any] = {}
    for metadata in all_metadata:
        for key, value in metadata.items():
            merged.setdefault(key, value)
    merged.pop("classes", None)
    merged = without_origin(merged)
    absent = object()
    differing = [key for key, value in merged.items() if any(m.get(key, absent) != value for m in all_metadata)]
    return merged, differing


def note_conversion(metadata: dict[str, Any], *, packed: bool) -> dict[str, Any]:
    """Return the metadata of a file whose JPEGs were packed or unpacked: how each pack stores images has changed."""
    packs = metadata.get("packs")
    if not isinstance(packs, list):
        return metadata
    noted = []
    for entry in packs:
        if isinstance(entry, dict) and isinstance(entry.get("recode", {}), dict):
            settings = {name: value for name, value in entry.get("recode", {}).items() if name != "packed"}
            if packed and not settings.get("raw"):
                settings = {name: value for name, value in settings.items() if name != "crop_index"} | {"packed": True}
            others = {name: value for name, value in entry.items() if name != "recode"}
            entry = others | ({"recode": settings} if settings else {})
        noted.append(entry)
    return metadata | {"packs": noted}


def merge_labels(
    readers: Sequence[Reader], label: str, given: Sequence[str] | None = None
) -> tuple[list[str] | None, list[NDArray[np.int64] | None]]:
    """Return all class names, and each file's table of new numbers for a field (None if unchanged).

    Args:
        readers: The files.
        label: The field.
        given: The names of all classes, if they are not those of the files.
    """
    none: list[NDArray[np.int64] | None] = [None] * len(readers)
    if given is None and all(class_names(reader) is None for reader in readers):
        return None, none
    classes, tables = merge_classes(readers, given)
    schema = readers[0].schema
    # a name means the same in all files
    if label not in schema or schema[label].name == "string":
        return classes, none
    if schema[label].name == "int64":
        return classes, tables
    import numpy as np

    for reader, table in zip(readers, tables, strict=True):
        if table is None:
            continue
        if not np.array_equal(table, np.arange(len(table))):
            raise Code.FIELD_TYPE.error(
                f"{reader.path}: its classes have other numbers than in {readers[0].path}, and only labels of type "
                f"int64 can be renumbered, not {schema[label]}"
            )
        if holds_classes(schema[label]):
            map_labels(reader.column(label).astype(np.int64), table, reader.path)
    return classes, none
