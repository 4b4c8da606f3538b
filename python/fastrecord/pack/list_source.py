"""`ListSource`: the files of a CSV list, and its other columns, as a source of records."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fastrecord.interchange import Bad, Rows, Source, SourceField, gather, usual_type
from fastrecord.interchange.infer import SAMPLE
from fastrecord.pack.listing import UNREADABLE, Listing
from fastrecord.schema import FieldType

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class ListSource(Source):
    """A list whose rows are records: image, label, key, and a field for each other column.

    A cell is a number, JSON (a list, an object, true or false) or a text, as most of a column's first
    cells are. An empty cell is a null, unless the column holds texts.
    """

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.paths = [listing.list_path or listing.source]
        self.classes = listing.classes
        self._fills: dict[str, Any] = {}
        self.fields = [SourceField("image", FieldType("image"), "files of the column path")]
        if listing.labels is not None:
            self.fields.append(SourceField("label", FieldType("int64"), "column of labels or classes"))
        for name, cells in listing.columns.items():
            known = [_parsed(cell) for cell in cells[:SAMPLE] if cell]
            kind = (usual_type(known) if known else None) or FieldType("string")
            self.fields.append(SourceField(name, kind, f"column {name}"))
        self.fields.append(SourceField("path", FieldType("string"), "column path", "key"))

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._listing)

    def place(self, number: int) -> str:
        """Return the list, the line and the file."""
        return self._listing.describe(number)

    def read_as(self, name: str, kind: FieldType) -> bool:
        """Take the cells of a column as the texts that they are."""
        text = kind.name == "string" and name in self._listing.columns
        if text:
            self.fields = [
                SourceField(name, kind, field.origin) if field.name == name else field for field in self.fields
            ]
        return text

    def fill(self, name: str, value: Any) -> bool:
        """Take a value for empty cells of a column."""
        self._fills[name] = value
        return name in self._listing.columns

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        types = {field.name: field.type for field in self.fields}
        readers = [(name, self._reader(name, types[name])) for name in names]
        return gather((_record(readers, row) for row in range(start, len(self._listing))), start, names)

    def _reader(self, name: str, kind: FieldType) -> Callable[[int], Any]:
        listing = self._listing
        if name == "path":
            return listing.keys.__getitem__
        if name == "image":
            return lambda row: _contents(listing.path(row))
        if name == "label" and listing.labels is not None:
            return listing.labels.__getitem__
        cells, text = listing.columns[name], kind.name == "string"

        def value(row: int) -> Any:
            cell = cells[row]
            if not cell and name in self._fills:
                return self._fills[name]
            if not (cell or text):
                raise ValueError("the cell is empty: put a value in its place with --fill")
            return cell if text else _parsed(cell)

        return value


def _record(readers: Sequence[tuple[str, Callable[[int], Any]]], row: int) -> list[Any] | Bad:
    values = []
    for name, read in readers:
        try:
            values.append(read(row))
        except OSError as err:
            return Bad(f"{UNREADABLE}: {err.strerror or err}")
        except ValueError as err:
            return Bad(str(err) if name == "image" else f"column {name!r}: {err}")
    return values


def _contents(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
    with os.fdopen(file, "rb", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a regular file")
        return opened.readall()


def _parsed(cell: str) -> Any:
    text = cell.strip()
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if text[:1] in ("[", "{") or text.lower() in ("true", "false"):
        with suppress(ValueError, RecursionError):
            return json.loads(text if text[:1] in ("[", "{") else text.lower())
    return cell
