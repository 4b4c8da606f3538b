"""`ListedFiles`: the files that a CSV list names as a source of records. Reads no image."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import stat
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from fastrecord.errors import Code
from fastrecord.interchange.files.image_files import ImageFiles
from fastrecord.interchange.source import SourceField
from fastrecord.names import as_name, as_text
from fastrecord.schema import FieldType

_INT64 = range(-(2**63), 2**63)
_INTEGER = re.compile(r"[+-]?\d{1,39}", re.ASCII)
# An identifier may begin with zeros, which a number would lose.
_ZEROS = re.compile(r"\s*[+-]?0\d")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NAMES_BEGIN = "begin the list with the row `path,class`"


class ListedFiles(ImageFiles):
    """Files as records: image, label, key, and a field for each other column of a list.

    Columns are path and, optionally, label (a number) or class (a name). A first row with a cell
    `path` is a header, which names the columns. Without one the first column is the path, and the
    second, if it exists, holds numbers if its first value is a number, else names. Relative paths are
    relative to `source`. The files have the order of the list.

    A cell of another column is a number, JSON (a list, an object, true or false) or a text, as most of
    its first cells are. Numbers with leading zeros, such as 00501, are texts, and so is their whole
    column. An empty cell is a null, unless the column holds texts.

    Args:
        source: Folder that the keys are relative to; it must contain every path.
        list_path: The CSV file: UTF-8, commas, quotes as in RFC 4180; empty lines are skipped.

    Attributes:
        lines: Line of each file in the list.
        columns: The cells of the other columns, by name.

    Raises:
        FileNotFoundError, NotADirectoryError: the list or the folder does not exist.
        FastRecordError: a row is wrong; the message has its line.
    """

    def __init__(self, source: str, list_path: str) -> None:
        with os.scandir(source):
            pass  # report a wrong folder as such, not as a thousand missing files
        found = _Rows(source)
        rows = None
        try:
            with open(list_path, newline="", encoding="utf-8-sig") as file:
                rows = csv.reader(file, strict=True)
                for row in filter(None, rows):
                    found.add(rows.line_num, row)
        except UnicodeDecodeError as err:
            raise Code.BAD_LIST_FILE.error(f"{list_path}: the list is not valid UTF-8: {err}") from err
        except (csv.Error, ValueError) as err:
            what = f"not valid CSV: {err}" if isinstance(err, csv.Error) else err
            raise Code.BAD_LIST_FILE.error(f"{list_path}, line {rows.line_num if rows else 0}: {what}") from err
        if not found.lines:
            raise Code.BAD_LIST_FILE.error(f"{list_path}: the list is empty")
        super().__init__(source, list(found.lines), *found.labels(), {})
        self.paths = [list_path]
        self.lines = array("q", found.lines.values())
        self.columns = {name: cells for name, (_, cells) in found.others.items()}
        more = [_field(name, cells) for name, cells in self.columns.items()]
        self.fields = [*self.fields[:-1], *more, self.fields[-1]]
        self._fills: dict[str, Any] = {}

    def place(self, number: int) -> str:
        """Return the file, and the list and line that name it."""
        return f"{self.paths[0]}, line {self.lines[number]}: {self.path(number)}"

    def entry(self, compression: str | None) -> dict[str, Any] | None:  # noqa: ARG002
        """Return nothing, unless the list has more columns."""
        return None if self.columns else {}

    def refuse_output(self, out: str) -> None:
        """Refuse nothing: the files may lie anywhere in the folder."""

    def stored_bytes(self, number: int) -> int:
        """Return the size of a file and its cells."""
        cells = sum(len(column[number].encode()) + 64 for column in self.columns.values())
        with suppress(OSError):  # reading it later reports the error
            return super().stored_bytes(number) + cells
        return cells

    def read_as(self, name: str, kind: FieldType) -> bool:
        """Take the cells of a column as the texts that they are."""
        text = kind.name == "string" and name in self.columns
        if text:
            self.fields = [replace(field, type=kind) if field.name == name else field for field in self.fields]
        return text

    def fill(self, name: str, value: Any) -> bool:
        """Take a value for empty cells of a column."""
        self._fills[name] = value
        return name in self.columns

    def cut(self, start: int, stop: int) -> Self:
        """Return a source of some of the files."""
        part = super().cut(start, stop)
        part.lines = self.lines[start:stop]
        part.columns = {name: cells[start:stop] for name, cells in self.columns.items()}
        return part

    def cells(self, numbers: range, names: Sequence[str], bad: dict[int, str]) -> dict[str, list[Any]]:
        """Return the values of the columns; empty and unfit cells are added to `bad`, and files that may never end."""
        for number in numbers:
            with suppress(OSError):  # reading it reports the error
                mode = os.stat(self.path(number)).st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    bad[number] = "not a regular file"
        return {
            field.name: [self._value(field, number, bad) for number in numbers]
            for field in self.fields
            if field.name in names and field.name in self.columns
        }

    def _value(self, field: SourceField, number: int, bad: dict[int, str]) -> Any:
        cell = self.columns[field.name][number]
        if field.type.name == "string":
            return cell
        if not cell and field.name not in self._fills:
            where = f"line {self.lines[number]}, column {field.name!r}"
            bad.setdefault(number, f"{where}: the cell is empty: --fill puts a value in its place")
        return _parsed(cell) if cell else self._fills.get(field.name)


class _Rows:
    """The rows of a list, as they are read.

    Attributes:
        lines: Key of each file -> its line.
        others: Columns that are fields: name -> place in a row, cells.
    """

    _columns: tuple[int, int | None] | None = None  # places of the path, and of the label or class
    _header = False
    _numbers: bool | None = None  # whether labels are numbers; None: no label seen yet

    def __init__(self, source: str) -> None:
        self._source = source
        self._labels: list[Any] = []
        self.lines: dict[str, int] = {}
        self.others: dict[str, tuple[int, list[str]]] = {}

    def add(self, line: int, row: list[str]) -> None:
        """Take a row.

        Raises:
            ValueError: it is wrong; the message does not have its line.
        """
        if self._columns is None:
            self._columns = self._begin(row)
            if self._header:
                return
        at_path, at_label = self._columns
        need = 1 + max(at_path, at_label or 0, *(at for at, _ in self.others.values()))
        if len(row) < need or (not self._header and len(row) > need):
            raise ValueError(f"{len(row)} column{'s'[: len(row) != 1]} where {need} should be")
        key = _key(row[at_path], self._source)
        if key in self.lines:
            raise ValueError(f"{key!r} is already in line {self.lines[key]}")
        self.lines[key] = line
        if at_label is not None:
            self._labels.append(self._label(row[at_label].strip()))
        for at, cells in self.others.values():
            cells.append(row[at])

    def labels(self) -> tuple[array[int] | None, list[str] | None]:
        """Return the labels, and the names of the classes."""
        if not self._labels or self._numbers:
            return array("q", self._labels) if self._labels else None, None
        classes = sorted(set(self._labels))
        number = {name: label for label, name in enumerate(classes)}
        return array("q", map(number.__getitem__, self._labels)), classes

    def _begin(self, row: list[str]) -> tuple[int, int | None]:
        """Return the places of the path and of the label, by the first row."""
        cells = [cell.strip().lower() for cell in row]
        self._header = "path" in cells
        if not self._header:
            if len(row) > 2:
                raise ValueError(f"{len(row)} columns: write path, or path and label, or begin with a header row")
            return 0, 1 if len(row) == 2 else None
        for name in filter(None, cells):
            if cells.count(name) > 1:
                raise ValueError(f"the header names the column {name!r} twice")
        labels = [name for name in ("label", "class") if name in cells]
        if len(labels) > 1:
            raise ValueError("the header has the columns 'label' (numbers) and 'class' (names): remove one")
        self._numbers = labels == ["label"]
        places = cells.index("path"), cells.index(labels[0]) if labels else None
        for at, name in enumerate(row):
            if cells[at] in ("image", "key"):
                raise ValueError(f"the column {name!r} has the name of a field that path makes: rename it")
            if cells[at] and at not in places:
                self.others[name.strip()] = (at, [])
        return places

    def _label(self, text: str) -> int | str:
        number = int(text) if _INTEGER.fullmatch(text) else None
        if self._numbers is None:
            self._numbers = number is not None
        if not text:
            raise ValueError("the label is empty")
        if self._numbers:
            if number is None:
                hint = "" if self._header else f": {_NAMES_BEGIN} if these are class names"
                raise ValueError(f"the label {text!r} is not a whole number{hint}")
            if number not in _INT64:
                raise ValueError(f"the label {text} does not fit 64 bits")
            return number
        if number is not None and not self._header:
            raise ValueError(
                f"the label {text!r} is a number, but the first one is a name: {_NAMES_BEGIN} if all are class names"
            )
        return text


def _key(text: str, source: str) -> str:
    """Return the path of a file in the source, with `/` between its parts, without `.` and `..`."""
    if not text.strip():
        raise ValueError("the path is empty")
    if "\0" in text:
        raise ValueError("the path has a NUL character")
    folder, path = os.path.abspath(source), as_name(text)
    parts = path.split("/")
    if ".." in parts:
        # As the system resolves paths: `link/..` is the folder above the link's target.
        folder = os.path.realpath(folder)
        below = len(parts) - parts[::-1].index("..")
        path = os.path.join(os.path.realpath(os.path.join(folder, "/".join(parts[:below]))), *parts[below:])
    parts = os.path.relpath(os.path.join(folder, path), folder).split(os.sep)
    if parts[0] in ("..", "."):
        raise ValueError(f"{text!r} is not in {source}: give a folder that holds all files as SRC")
    try:
        return as_text("/".join(parts))
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} leads to a name that is not valid UTF-8") from None


def _field(name: str, cells: Sequence[str]) -> SourceField:
    from fastrecord.interchange.infer import SAMPLE, usual_type  # with numpy, which a folder does not need

    known = [_parsed(cell) for cell in cells[:SAMPLE] if cell]
    kind = (usual_type(known) if known else None) or FieldType("string")
    if kind.shape == () and any(map(_ZEROS.match, cells)):
        kind = FieldType("string")
    return SourceField(name, kind, f"column {name}")


def _parsed(cell: str) -> Any:
    text = cell.strip()
    if _NUMBER.fullmatch(text) and not _ZEROS.match(text):
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
        return cell if number in (math.inf, -math.inf) else number  # 1e400
    if text[:1] in ("[", "{") or text.lower() in ("true", "false"):
        with suppress(ValueError, RecursionError):
            return json.loads(text if text[:1] in ("[", "{") else text.lower())
    return cell
