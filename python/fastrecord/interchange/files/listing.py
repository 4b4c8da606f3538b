"""`Listing`: the files to pack, found in a folder of class folders or in a CSV list.

The order is deterministic. Reads no image.
"""

from __future__ import annotations

import csv
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from fastrecord._core import FastRecordError
from fastrecord.errors import Code
from fastrecord.names import as_name, as_text, name_some

_INT64 = range(-(2**63), 2**63)

UNREADABLE = "cannot be read"
"""Begins the reason for a file that the system does not let us read, so that its type is unknown."""
BAD_WAY_OUT = "repair or remove it, or leave out all that are bad with `--bad-files skip`"


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one data set, in packing order.

    Attributes:
        source: The folder that the keys are relative to.
        keys: Path of each file relative to `source`, with `/` between its parts; unique, valid
            UTF-8.
        labels: int64 label of each file (positions in `classes` if there are classes), or None
            without labels.
        classes: Class names, sorted, or None if the labels are plain numbers or absent.
        bad: Key -> reason for files that are known to be unreadable (broken link, pipe, socket,
            device).
        ignored: Number of files beside the class folders, which have no class.
        lines: Line of each file in the CSV list; empty without a list.
        list_path: The CSV list, or None.
        columns: The cells of the list's other columns, by name.
    """

    source: str
    keys: list[str]
    labels: array[int] | None
    classes: list[str] | None
    bad: dict[str, str] = field(default_factory=dict)
    ignored: int = 0
    lines: array[int] = field(default_factory=lambda: array("q"))
    list_path: str | None = None
    columns: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, stop: int) -> Self:
        """Return some of the files."""
        keys = self.keys[start:stop]
        return replace(
            self,
            keys=keys,
            labels=None if self.labels is None else self.labels[start:stop],
            bad={key: self.bad[key] for key in keys if key in self.bad},
            lines=self.lines[start:stop],
            columns={name: cells[start:stop] for name, cells in self.columns.items()},
        )

    def refuse_bad(self) -> None:
        """Raise the error for the first known bad file."""
        for position, key in enumerate(self.keys):
            if key in self.bad:
                raise Code.BAD_FILE.error(f"{self.describe(position)}: {self.bad[key]}", way_out=BAD_WAY_OUT)

    def path(self, position: int) -> str:
        """Return the path to open for the file at `position`."""
        return os.path.join(self.source, *as_name(self.keys[position]).split("/"))

    def describe(self, position: int) -> str:
        """Return the name of the file at `position` for errors: its path and line in the list."""
        path = self.path(position)
        return f"{self.list_path}, line {self.lines[position]}: {path}" if self.list_path is not None else path

    def stored_bytes(self, position: int) -> int:
        """Return the unmodified size of a file in bytes.

        Raises:
            OSError: the size cannot be read.
        """
        return os.stat(self.path(position)).st_size

    def find_irregular(self, positions: range) -> None:
        """Add pipes, sockets and devices to `bad`: reading one may never end."""
        for position in positions:
            try:
                mode = os.stat(self.path(position)).st_mode
            except OSError:
                continue  # reading it reports the error
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                self.bad[self.keys[position]] = "not a regular file"


def list_folder(source: str, *, allow_empty_classes: bool = False) -> Listing:
    """List a folder of class folders in the order of `torchvision.datasets.ImageFolder`.

    Sorted folder names are the classes. Inside each folder, sub-folders (links are followed) and
    then file names are sorted. Unlike ImageFolder, the listing has every file, whatever its
    extension.

    Args:
        source: Folder with one sub-folder per class. Files beside the class folders are counted and
            left out, as in ImageFolder.
        allow_empty_classes: Keep class folders without any file as classes without records.

    Raises:
        NotADirectoryError, FileNotFoundError, PermissionError: a folder cannot be read; the error
            has its name.
        FastRecordError: no class folder or no file exists; a class folder is empty; a link leads
            back to a folder above it; a name is not valid UTF-8.
    """
    classes, beside = [], 0
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                classes.append(_utf8(entry.name, source))
            else:
                beside += 1
    bad: dict[str, str] = {}
    return list_classes(
        source,
        classes,
        beside,
        lambda name: files_below(source, name, bad),
        bad,
        allow_empty_classes=allow_empty_classes,
    )


def list_classes(
    source: str,
    classes: list[str],
    beside: int,
    files: Callable[[str], Iterable[str]],
    bad: dict[str, str],
    *,
    allow_empty_classes: bool,
) -> Listing:
    """List the files of class folders.

    Args:
        source: The folder that holds them.
        classes: Their names.
        beside: Number of files beside them.
        files: Returns the keys of a class folder's files, in order.
        bad: As in `Listing`; `files` may add to it.
        allow_empty_classes: As in `list_folder`.

    Raises:
        FastRecordError: no class folder or no file exists; a class folder is empty.
    """
    if not classes and not beside:
        raise Code.NO_FILES.error(f"{source}: the folder is empty")
    if not classes:
        raise Code.NO_FILES.error(
            f"{source}: no class folders, only {_count(beside, 'file')}: each class needs a folder of its own, or "
            "name the files in a list, `--set list=CSV` (columns path and label, or just path)"
        )
    classes = sorted(classes)
    keys: list[str] = []
    labels = array("q")
    empty = []
    for label, name in enumerate(classes):
        before = len(keys)
        keys.extend(files(name))
        labels.extend([label] * (len(keys) - before))
        if len(keys) == before:
            empty.append(name)
    if not keys:
        raise Code.NO_FILES.error(f"{source}: no file in any of its {_count(len(classes), 'class folder')}")
    if empty and not allow_empty_classes:
        what = "class folder" if len(empty) == 1 else "class folders"
        raise Code.EMPTY_CLASS.error(
            f"{source}: empty {what} {name_some(empty)}: remove folders that are not classes, or keep classes "
            "without records with `--set allow_empty_classes=yes`"
        )
    return Listing(source=source, keys=keys, labels=labels, classes=classes, bad=bad, ignored=beside)


def files_below(source: str, folder: str, bad: dict[str, str]) -> Iterator[str]:
    """Yield the paths of all files in a folder.

    They have the order of `sorted(os.walk(folder, followlinks=True))`.

    Args:
        source: Base of the paths, which have `/` between their parts.
        folder: The folder in it; empty for `source` itself.
        bad: Path -> reason for files that are known to be unreadable is added here.
    """
    folders: list[tuple[str, list[str]]] = []
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while pending:
        folder, above = pending.pop()
        path = os.path.join(source, *as_name(folder).split("/")) if folder else source
        status = os.stat(path)
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise Code.LINK_LOOP.error(f"{path}: the link leads back to a folder above it: remove the link")
        names = []
        with os.scandir(path) as entries:
            for entry in entries:
                key = _key(folder, _utf8(entry.name, path))
                try:
                    if entry.is_dir():
                        pending.append((key, above | {here}))
                        continue
                    if not entry.is_file():
                        broken = entry.is_symlink() and not os.path.exists(entry.path)
                        bad[key] = "broken link" if broken else "not a regular file"
                except OSError as err:
                    bad[key] = f"{UNREADABLE}: {err.strerror or err}"
                names.append(as_text(entry.name))
        names.sort()
        folders.append((folder, names))
    folders.sort()
    for folder, names in folders:
        for name in names:
            yield _key(folder, name)


def _key(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def list_csv(source: str, list_path: str) -> Listing:
    """List the files that a CSV file names, in its order.

    Columns are path and, optionally, label (a number) or class (a name). A first row with a cell
    `path` is a header: it names the columns, and other columns are `Listing.columns`. Without a header the
    first column is the path. The second column, if it exists, holds numbers if its first value is a
    number, else names. Relative paths are relative to `source`.

    Args:
        source: Folder that the keys are relative to; it must contain every path.
        list_path: The CSV file: UTF-8, commas, quotes as in RFC 4180; empty lines are skipped.

    Raises:
        FileNotFoundError, NotADirectoryError: the list or the folder does not exist.
        FastRecordError: a row is wrong; the message has its line.
    """
    with os.scandir(source):
        pass  # report a wrong folder as such, not as a thousand missing files
    lister = _CsvLister(source, list_path)
    try:
        with open(list_path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            try:
                for row in rows:
                    if row:
                        lister.add(rows.line_num, row)
            except csv.Error as err:
                raise Code.BAD_LIST_FILE.error(f"{list_path}, line {rows.line_num}: not valid CSV: {err}") from err
    except UnicodeDecodeError as err:
        raise Code.BAD_LIST_FILE.error(f"{list_path}: the list is not valid UTF-8: {err}") from err
    return lister.finish()


class _CsvLister:
    def __init__(self, source: str, list_path: str) -> None:
        self.source, self.list_path = source, list_path
        # positions of the path and of the label or class
        self.columns: tuple[int, int | None] | None = None
        self.numbers: bool | None = None  # labels are numbers; None: no label seen yet
        self.header = False
        self.first_line: dict[str, int] = {}
        self.labels = array("q")
        self.names: list[str] = []
        self.others: dict[str, tuple[int, list[str]]] = {}

    def add(self, line: int, row: list[str]) -> None:
        if self.columns is None and self._read_header(line, row):
            return
        if self.columns is None:
            if len(row) > 2:
                raise self._error(
                    line, f"{len(row)} columns: write path, or path and label, or begin with a header row"
                )
            self.columns = (0, 1 if len(row) == 2 else None)
        at_path, at_label = self.columns
        need = 1 + max(at_path, at_label or 0, *(at for at, _ in self.others.values()))
        if len(row) < need or (not self.header and len(row) > need):
            raise self._error(line, f"{_count(len(row), 'column')} where {need} should be")
        key = self._key(line, row[at_path])
        if key in self.first_line:
            raise self._error(line, f"{key!r} is already in line {self.first_line[key]} already")
        self.first_line[key] = line
        if at_label is not None:
            self._add_label(line, row[at_label].strip())
        for at, cells in self.others.values():
            cells.append(row[at])

    def _read_header(self, line: int, row: list[str]) -> bool:
        cells = [cell.strip().lower() for cell in row]
        if "path" not in cells:
            return False
        for name in cells:
            if name and cells.count(name) > 1:
                raise self._error(line, f"the header names the column {name!r} twice")
        if "label" in cells and "class" in cells:
            raise self._error(line, "the header has the columns 'label' (numbers) and 'class' (names): remove one")
        self.header = True
        if "label" in cells:
            self.columns, self.numbers = (cells.index("path"), cells.index("label")), True
        elif "class" in cells:
            self.columns, self.numbers = (cells.index("path"), cells.index("class")), False
        else:
            self.columns = (cells.index("path"), None)
        for at, name in enumerate(row):
            if cells[at] in ("image", "key"):
                raise self._error(line, f"the column {name!r} has the name of a field that path makes: rename it")
            if cells[at] and at not in self.columns:
                self.others[name.strip()] = (at, [])
        return True

    def _key(self, line: int, text: str) -> str:
        if not text.strip():
            raise self._error(line, "the path is empty")
        if "\0" in text:
            raise self._error(line, "the path has a NUL character")
        parts = _relative_path(as_name(text), self.source).split(os.sep)
        if parts[0] in ("..", "."):
            raise self._error(line, f"{text!r} is not in {self.source}: give a folder that holds all files as SRC")
        try:
            return as_text("/".join(parts))
        except UnicodeDecodeError:
            raise self._error(line, f"{text!r} leads to a name that is not valid UTF-8") from None

    def _add_label(self, line: int, text: str) -> None:
        number = _parse_int(text)
        if self.numbers is None:
            self.numbers = number is not None
        if not text:
            raise self._error(line, "the label is empty")
        if self.numbers:
            if number is None:
                hint = "" if self.header else ": begin the list with the row `path,class` if these are class names"
                raise self._error(line, f"the label {text!r} is not a whole number{hint}")
            if number not in _INT64:
                raise self._error(line, f"the label {text} does not fit 64 bits")
            self.labels.append(number)
            return
        if number is not None and not self.header:
            raise self._error(
                line,
                f"the label {text!r} is a number, but the first one is a name: begin the list with the row "
                "`path,class` if all are class names",
            )
        self.names.append(text)

    def _error(self, line: int, what: str) -> FastRecordError:
        return Code.BAD_LIST_FILE.error(f"{self.list_path}, line {line}: {what}")

    def finish(self) -> Listing:
        if not self.first_line:
            raise Code.BAD_LIST_FILE.error(f"{self.list_path}: the list is empty")
        labels: array[int] | None = self.labels
        classes: list[str] | None = None
        if self.names:
            classes = sorted(set(self.names))
            number = {name: label for label, name in enumerate(classes)}
            labels = array("q", (number[name] for name in self.names))
        return Listing(
            source=self.source,
            keys=list(self.first_line),
            labels=labels if labels else None,
            classes=classes,
            lines=array("q", self.first_line.values()),
            list_path=self.list_path,
            columns={name: cells for name, (_, cells) in self.others.items()},
        )


def _relative_path(path: str, source: str) -> str:
    """Return a path of a list, made relative to the source, without `.` and `..`."""
    source = os.path.abspath(source)
    parts = path.split("/")
    if ".." in parts:
        # As the system resolves paths: `link/..` is the folder above the link's target.
        source = os.path.realpath(source)
        below = len(parts) - parts[::-1].index("..")
        path = os.path.join(os.path.realpath(os.path.join(source, "/".join(parts[:below]))), *parts[below:])
    return os.path.relpath(os.path.join(source, path), source)


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what}es" if what.endswith("s") else f"{number:,} {what}s"


def _parse_int(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 40 else None


def _utf8(name: str, folder: str) -> str:
    try:
        return as_text(name)
    except UnicodeDecodeError:
        raw = os.fsencode(os.path.join(folder, name))
        raise Code.FILE_NAME.error(
            f"{raw!r}: the file name is not valid UTF-8, so it cannot be a key: rename it"
        ) from None
