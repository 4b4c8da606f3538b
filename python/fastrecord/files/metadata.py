"""`set_metadata`: metadata added after the records, such as class names, a license, notes."""

from __future__ import annotations

from os import PathLike
from typing import Any

from fastrecord._core import Reader, Writer
from fastrecord.errors import Code
from fastrecord.files.places import refuse_url
from fastrecord.schema.classes import check_names


def set_metadata(path: str | PathLike[str], /, **entries: Any) -> None:
    """Set entries of a file's metadata in their own durable commit; records are unchanged.

    Open readers and data sets keep their snapshot; `refresh()` shows the new metadata.

    Args:
        path: The .frec file. No writer may have it open; readers may.
        entries: JSON-able values by name. They replace entries of the same name; None removes an
            entry. Other entries stay. `classes` is a list of names, position = label: each label of
            the field `label` needs a name, except negative labels, which mean "none".

    Raises:
        SchemaError: a label has no name in `classes`, or the field `label` does not hold integers;
            nothing is written.
        TypeError, ValueError: `classes` is not a list of distinct names, or a value is not
            JSON-able.
        FileNotFoundError, LockedError, CorruptFileError: as `Writer` in mode "a".
    """
    refuse_url(path)
    if entries.get("classes") is not None:
        entries["classes"] = check_names(entries["classes"])
    with Writer(path, mode="a") as writer:
        if entries.get("classes") is not None:
            with Reader(path) as reader:
                _check_labels(reader, len(entries["classes"]))
        metadata = writer.metadata | entries
        writer.metadata = {name: value for name, value in metadata.items() if value is not None or name not in entries}


def _check_labels(reader: Reader, classes: int) -> None:
    kind = reader.schema.get("label")
    if kind is None:
        return
    if kind.name != "bool" and not kind.name.startswith(("int", "uint")):
        raise Code.FIELD_TYPE.error(
            f"{reader.path}: field 'label' is of type {kind}: classes name the numbers of an integer field"
        )
    labels = reader.column("label")
    (beyond,) = (labels >= classes).nonzero()
    if len(beyond):
        at = int(beyond[0])
        raise Code.UNKNOWN_LABEL.error(
            f"{reader.path}: record {at} has the label {labels[at]}, and {classes:,} classes are given: "
            f"{len(beyond):,} labels would have no class"
        )
