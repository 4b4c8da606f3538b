"""`ImageFiles`: the files of a folder of classes, or of a CSV list, as a source of records."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from fastrecord.errors import Code
from fastrecord.interchange.files.listing import Listing
from fastrecord.interchange.source import ROWS, Files, Rows, Source, SourceField
from fastrecord.names import as_name
from fastrecord.schema import FieldType

# A number does not keep leading zeros, as those of an identifier.
_ZEROS = re.compile(r"\s*[+-]?0\d")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class ImageFiles(Source):
    """Files as records: image, label, key, and a field for each other column of a list.

    A cell is a number, JSON (a list, an object, true or false) or a text, as most of a column's first
    cells are. Numbers with leading zeros, such as 00501, are texts, and so is their whole column. An
    empty cell is a null, unless the column holds texts.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing, self.home = listing, listing.source
        self.paths = [listing.list_path or listing.source]
        self.keys, self.labels, self.classes, self.ignored = (
            listing.keys,
            listing.labels,
            listing.classes,
            listing.ignored,
        )
        self._fills: dict[str, Any] = {}
        self.fields = [SourceField("image", FieldType("image"), "the files")]
        if listing.labels is not None:
            self.fields.append(SourceField("label", FieldType("int64"), "labels or classes"))
        self.fields += [self._column(name, cells) for name, cells in listing.columns.items()]
        self.fields.append(SourceField("path", FieldType("string"), "paths", "key"))

    @staticmethod
    def _column(name: str, cells: Sequence[str]) -> SourceField:
        from fastrecord.interchange.infer import SAMPLE, usual_type  # with numpy, which a folder does not need

        known = [_parsed(cell) for cell in cells[:SAMPLE] if cell]
        kind = (usual_type(known) if known else None) or FieldType("string")
        if kind.shape == () and any(map(_ZEROS.match, cells)):
            kind = FieldType("string")
        return SourceField(name, kind, f"column {name}")

    def count(self) -> int:
        """Return the number of files."""
        return len(self.listing)

    def place(self, number: int) -> str:
        """Return the file, and the list and line that name it."""
        return self.listing.describe(number)

    def entry(self, compression: str | None) -> dict[str, Any] | None:  # noqa: ARG002
        """Return nothing, unless a list has more columns."""
        return None if self.listing.columns else {}

    def prepare(self, stored: Mapping[str, Any] | None, *, skip: bool, progress: Callable[[int], None]) -> None:  # noqa: ARG002
        """Raise the error for the first known bad file."""
        if self.listing.bad and not skip:
            self.listing.refuse_bad()

    def refuse_output(self, out: str) -> None:
        """Refuse a place in a class folder."""
        source = self.listing.source
        if self.listing.list_path is not None or "://" in source:
            return
        relative = os.path.relpath(os.path.realpath(out), os.path.realpath(source)).split(os.sep)
        if len(relative) > 1 and relative[0] in map(as_name, self.classes or ()):
            raise Code.OUTPUT_IS_INPUT.error(
                f"{out}: lies in the class folder {relative[0]!r} that it is made from: choose a path outside"
            )

    def sizes(self) -> Iterator[int]:
        """Yield the size of each file, with its key and its cells."""
        cells = list(self.listing.columns.values())
        for position, key in enumerate(self.listing.keys):
            try:
                image = self.listing.stored_bytes(position)
            except OSError:
                image = 0  # reading it later reports the error
            yield image + len(key.encode()) + sum(len(column[position].encode()) + 64 for column in cells)

    def read_as(self, name: str, kind: FieldType) -> bool:
        """Take the cells of a column as the texts that they are."""
        text = kind.name == "string" and name in self.listing.columns
        if text:
            self.fields = [replace(field, type=kind) if field.name == name else field for field in self.fields]
        return text

    def fill(self, name: str, value: Any) -> bool:
        """Take a value for empty cells of a column."""
        self._fills[name] = value
        return name in self.listing.columns

    def cut(self, start: int, stop: int) -> Self:
        """Return a source of some of the files."""
        part = type(self)(self.listing.cut(start, stop))
        part._fills, part.fields = self._fills, self.fields
        return part

    def empty_classes(self, skipped: set[str]) -> list[str]:
        """Return the classes without any file besides the skipped ones."""
        if self.classes is None or self.labels is None:
            return []
        counts = Counter(self.labels)
        if skipped:
            keys = self.listing.keys
            counts -= Counter(label for key, label in zip(keys, self.labels, strict=True) if key in skipped)
        return [name for label, name in enumerate(self.classes) if not counts[label]]

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        for first in range(start, len(self.listing), ROWS):
            numbers = range(first, min(first + ROWS, len(self.listing)))
            if self.listing.list_path is not None:
                self.listing.find_irregular(numbers)
            yield self.rows(numbers, names, lambda number: Files(map(self.listing.path, number)))

    def rows(self, numbers: range, names: Sequence[str], images: Callable[[Sequence[int]], Sequence[Any]]) -> Rows:
        """Return some records, whose images a function returns."""
        keys, known = self.listing.keys, self.listing.bad
        bad = {i: known[keys[i]] for i in numbers if keys[i] in known} if known else {}
        cells: dict[str, dict[int, Any]] = {}
        for field in self.fields:
            if field.name in names and field.name in self.listing.columns:
                cells[field.name] = self._cells(field, numbers, bad)
        good = [number for number in numbers if number not in bad] if bad else numbers
        columns: dict[str, Sequence[Any]] = {name: [values[i] for i in good] for name, values in cells.items()}
        if "image" in names:
            columns["image"] = images(good)
        for name, values in (("path", keys), ("label", self.labels)):
            if name in names and values is not None:
                columns[name] = [values[i] for i in good] if bad else values[numbers.start : numbers.stop]
        return Rows(numbers.start, len(numbers), columns, bad)

    def _cells(self, field: SourceField, numbers: range, bad: dict[int, str]) -> dict[int, Any]:
        """Return the values of a column by number; adds empty and unfit cells to `bad`."""
        values: dict[int, Any] = {}
        text = field.type.name == "string"
        for number in numbers:
            cell = self.listing.columns[field.name][number]
            if cell or text:
                values[number] = cell if text else _parsed(cell)
            elif field.name in self._fills:
                values[number] = self._fills[field.name]
            else:
                where = f"line {self.listing.lines[number]}, column {field.name!r}"
                bad.setdefault(number, f"{where}: the cell is empty: --fill puts a value in its place")
        return values


def _parsed(cell: str) -> Any:
    text = cell.strip()
    if _NUMBER.fullmatch(text) and not _ZEROS.match(text):
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
        return cell if number in (math.inf, -math.inf) else number  # 1e400
    if text[:1] in ("[", "{") or text.lower() in ("true", "false"):
        with suppress(ValueError, RecursionError):
            return json.loads(text if text[:1] in ("[", "{") else text.lower())
    return cell
