"""JSON Lines (https://jsonlines.org): a JSON object per record, with bytes in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fastrecord as fr
from fastrecord.errors import Code
from fastrecord.interchange import Bad, Card, Destination, Format, Found, Rows, Source, SourceField, gather

TEXT = ("bool", "float32", "float64", "int32", "int64", "json", "string")
BYTES = ("bytes", "image")


class LinesSource(Source):
    """A file whose first line is the card: the types of the fields, and the metadata."""

    def __init__(self, path: str) -> None:
        """Open the file, and read its card."""
        self.paths = [path]
        self.file = open(path, "rb")  # noqa: SIM115 - `close` closes it
        card = Card.from_json(self.file.readline())
        if card is None:
            raise Code.SOURCE.error(f"{path}: its first line does not describe the fields")
        self.begin = self.file.tell()
        self.schema, self.metadata = card.schema, card.metadata
        self.classes = card.metadata.get("classes")
        self.fields = [SourceField(name, kind, f"entry {name}") for name, kind in card.schema.items()]

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """Yield the records from number `start` on."""
        self.file.seek(self.begin)
        return gather(self.records(start, names), start, names)

    def records(self, start: int, names: Sequence[str]) -> Iterator[list[Any] | Bad]:
        """Yield the values of each record, or why it has none."""
        for number, line in enumerate(self.file):
            if number >= start:
                try:
                    record = json.loads(line)
                    yield [self.value(record[name], self.schema[name]) for name in names]
                except (ValueError, KeyError, TypeError) as err:
                    yield Bad(f"not a JSON object with the fields of the first line: {err!r}")

    def value(self, value: Any, kind: fr.FieldType) -> Any:
        """Return a value as a .frec file has it."""
        return base64.b64decode(value, validate=True) if kind.name in BYTES else value

    def close(self) -> None:
        """Close the file."""
        self.file.close()


class LinesDestination(Destination):
    """A file that begins with a card, or several such files."""

    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:  # noqa: ARG002
        """Begin the first file."""
        self.card = card
        self.begin(path)

    def begin(self, path: str) -> None:
        """Begin a file with its card."""
        self.file = open(path, "wb")  # noqa: SIM115 - `close` closes it
        self.file.write(self.card.to_json().encode() + b"\n")

    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:  # noqa: ARG002
        """Write a line for each record."""
        for values in zip(*columns.values(), strict=True):
            record = dict(zip(columns, map(self.text, values), strict=True))
            self.file.write(json.dumps(record).encode() + b"\n")

    def text(self, value: Any) -> Any:
        """Return a value as JSON has it."""
        if isinstance(value, memoryview):
            return base64.b64encode(value).decode()
        return value.item() if hasattr(value, "item") else value

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def abort(self) -> None:
        """Close the file, which is removed then."""
        self.file.close()


class LinesFormat(Format):
    """JSON Lines whose first line is a card."""

    name, title = "jsonlines", "JSON Lines"
    destination = LinesDestination
    suffixes = (".jsonl",)

    def recognise(self, found: Found) -> str | None:
        """Return why a file is of this format, or None."""
        return "it begins with a card of fastrecord" if found.head.startswith(b'{"fastrecord": ') else None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> LinesSource:  # noqa: ARG002
        """Open one file."""
        if not isinstance(source, str):
            raise Code.SOURCE.error(f"{source[0]}: name one file, not {len(source)}")
        return LinesSource(source)

    def refuse(self, schema: fr.Schema) -> dict[str, str]:
        """Return the fields that JSON cannot hold."""
        held = (*TEXT, *BYTES)
        return {name: f"JSON has no {kind}" for name, kind in schema.items() if kind.name not in held}


FORMAT = LinesFormat()
