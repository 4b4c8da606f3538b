"""Which fields of a file hold the images, the labels and the keys.

Reads schemas and keys only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastrecord._core import FastRecordError, Reader
from fastrecord.errors import Code
from fastrecord.schema import FieldType, Schema

KEY = "key"
_CLASS_TYPES = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
_LABEL_TYPES = (*_CLASS_TYPES, "float64", "float32", "float16", "bfloat16", "string")


def find_image(reader: Reader) -> str | None:
    """Return the image field: "image", else the only image field, else the only bytes field, else None.

    Raises:
        SchemaError: several fields qualify.
    """
    for kind in ("image", "bytes"):
        names = [name for name, field in reader.schema.items() if field.name == kind]
        if "image" in names:
            return "image"
        if len(names) > 1:
            raise Code.SEVERAL_FIELDS.error(
                f"{reader.path}: several fields may hold the images, {', '.join(names)}: choose with image_field=, "
                "or read them as they are with fields="
            )
        if names:
            return names[0]
    return None


def find_label(reader: Reader) -> str | None:
    """Return the field that holds the labels: "label" if it exists, else None."""
    return "label" if "label" in reader.schema else None


def holds_labels(kind: FieldType) -> bool:
    """Return whether values of a type can be labels: numbers, class names, arrays of one shape."""
    return kind.name in _LABEL_TYPES or (kind.name == "array" and None not in (kind.shape or ()))


def lies_in_index(kind: FieldType) -> bool:
    """Return whether values of a type lie in the index, and have no payloads (docs/format.md, section 3)."""
    return kind.nbytes is not None and (kind.name != "array" or 1 <= kind.nbytes <= 64)


def holds_classes(kind: FieldType) -> bool:
    """Return whether labels of a type may be class numbers."""
    return kind.name in _CLASS_TYPES


def check_fields(readers: Sequence[Reader], image: str | None, label: str | None, extra: Sequence[str]) -> None:
    """Check that every file has the fields, with the first file's types, and that the types fit.

    Raises:
        SchemaError: a file does not.
    """
    first = readers[0].schema
    for reader in readers:
        schema = reader.schema
        for name in (*filter(None, (image, label)), *extra):
            if name not in schema:
                raise Code.NO_FIELD.error(f"{reader.path}: no field {name!r}: it has {', '.join(schema)}")
            if plain(schema[name]) != plain(first[name]):
                kinds = f"{schema[name]} in {reader.path}, but {first[name]} in {readers[0].path}"
                raise Code.FIELDS_DIFFER.error(f"field {name!r} is {kinds}")
    if image and first[image].name not in ("image", "bytes"):
        raise Code.FIELD_TYPE.error(f"{readers[0].path}: field {image!r} holds {first[image].name}, not images")
    if label and not holds_labels(first[label]):
        raise Code.FIELD_TYPE.error(
            f"{readers[0].path}: field {label!r} holds {first[label]}, which cannot be a label: labels are numbers, "
            "strings (names of classes) or arrays of one shape; name another field with label_field=, or name the "
            "fields that you want with fields=, which takes any"
        )


def plain(kind: FieldType) -> FieldType:
    """Return a type without its compression, which does not affect its values."""
    item = None if kind.item is None else plain(kind.item)
    return replace(kind, item=item, compression=None)


def has_key(reader: Reader) -> bool:
    """Return whether the file's records have keys: strings in a field "key"."""
    return KEY in reader.schema and reader.schema[KEY].name == "string"


def read_key(reader: Reader, record: int) -> str | None:
    """Return a record's key for a message; None if it has none, or if the key cannot be read."""
    try:
        # A shard may turn out to be unreadable only now.
        return reader.get(record, KEY) if has_key(reader) else None
    except (FastRecordError, OSError):
        return None


def image_field(schema: Schema) -> str | None:
    """Return the field of images: `image`, or the first one."""
    images = [name for name, kind in schema.items() if kind.name == "image"]
    return "image" if "image" in images else images[0] if images else None
