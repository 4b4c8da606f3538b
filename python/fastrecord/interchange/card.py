"""`Card`: what a .frec file says of its records, to be kept in a place of another format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fastrecord.schema import FieldType, Schema, array, list_

# The name of that place, where the format has names.
CARD = "__fastrecord__"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Card:
    """Schema and metadata of exported records, so that an import makes the same file of them.

    Attributes:
        schema: The fields.
        metadata: The metadata of the .frec file.
        more: Entries of the format's own.
    """

    schema: Schema
    metadata: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the card as JSON."""
        rows = {name: kind._to_row() for name, kind in self.schema.items()}
        return json.dumps({"fastrecord": _VERSION, "fields": rows, "metadata": self.metadata, "more": self.more})

    @classmethod
    def from_json(cls, text: str | bytes | None) -> Self | None:
        """Return the card in a text; None if it is none, or of a later version."""
        if text is None:
            return None
        try:
            data = json.loads(text)
            if data["fastrecord"] != _VERSION:
                return None
            fields = {name: _checked(FieldType._from_row(row)) for name, row in data["fields"].items()}
            return cls(Schema(fields), dict(data["metadata"]), dict(data["more"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _checked(kind: FieldType) -> FieldType:
    """Return a type, if a type function makes it.

    Raises:
        TypeError, ValueError: it does not exist: the card is damaged.
    """
    if kind.name == "array":
        return array(kind.dtype, kind.shape or (), kind.compression)
    if kind.name == "list":
        return list_(_checked(kind.item) if kind.item is not None else kind, kind.compression)
    if kind.name not in ("image", "bytes", "string", "json"):
        array(kind.name, ())
    return kind
