"""`ImageFiles`: the files of a folder of class folders as a source of records. Reads no image."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Self

from fastrecord.errors import Code
from fastrecord.interchange.files.listing import FileSource, files_below, path_of, utf8
from fastrecord.interchange.source import ROWS, Files, Rows, SourceField
from fastrecord.names import as_name, name_some
from fastrecord.schema import FieldType


class ImageFiles(FileSource):
    """Files as records: image, label and key.

    Args:
        home: The folder that the keys are relative to.
        keys: The files, in packing order.
        labels: int64 label of each file (positions in `classes` if there are classes), or None without.
        classes: Class names, sorted, or None if the labels are plain numbers or absent.
        bad: As `FileSource.bad`.
        ignored: Number of files beside the class folders, which have no class.
    """

    def __init__(
        self,
        home: str,
        keys: list[str],
        labels: array[int] | None,
        classes: list[str] | None,
        bad: dict[str, str],
        ignored: int = 0,
    ) -> None:
        self.home, self.paths, self.keys, self.bad, self.ignored = home, [home], keys, bad, ignored
        self.labels, self.classes = labels, classes
        self.fields = [SourceField("image", FieldType("image"), "the files")]
        if labels is not None:
            self.fields.append(SourceField("label", FieldType("int64"), "labels or classes"))
        self.fields.append(SourceField("path", FieldType("string"), "paths", "key"))

    def path(self, number: int) -> str:
        """Return the path to open for a file."""
        return path_of(self.home, self.keys[number])

    def place(self, number: int) -> str:
        """Return the path of a file."""
        return self.path(number)

    def entry(self, compression: str | None) -> dict[str, Any] | None:  # noqa: ARG002
        """Return nothing."""
        return {}

    def prepare(self, stored: Mapping[str, Any] | None, *, skip: bool, progress: Callable[[int], None]) -> None:  # noqa: ARG002
        """Raise the error for the first known bad file."""
        if not skip:
            self.refuse_bad()

    def refuse_output(self, out: str) -> None:
        """Refuse a place in a class folder."""
        relative = os.path.relpath(os.path.realpath(out), os.path.realpath(self.home)).split(os.sep)
        if len(relative) > 1 and relative[0] in map(as_name, self.classes or ()):
            raise Code.OUTPUT_IS_INPUT.error(
                f"{out}: lies in the class folder {relative[0]!r} that it is made from: choose a path outside"
            )

    def stored_bytes(self, number: int) -> int:
        """See `FileSource.stored_bytes`."""
        return os.stat(self.path(number)).st_size

    def cut(self, start: int, stop: int) -> Self:
        """Return a source of some of the files."""
        part = copy(self)
        part.keys = self.keys[start:stop]
        part.labels = None if self.labels is None else self.labels[start:stop]
        part.bad = {key: self.bad[key] for key in part.keys if key in self.bad}
        return part

    def empty_classes(self, skipped: set[str]) -> list[str]:
        """Return the classes without any file besides the skipped ones."""
        if self.classes is None or self.labels is None:
            return []
        counts = Counter(self.labels)
        if skipped:
            counts -= Counter(label for key, label in zip(self.keys, self.labels, strict=True) if key in skipped)
        return [name for label, name in enumerate(self.classes) if not counts[label]]

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        for first in range(start, len(self.keys), ROWS):
            numbers = range(first, min(first + ROWS, len(self.keys)))
            yield self.rows(numbers, names, lambda good: Files(map(self.path, good)))

    def rows(self, numbers: range, names: Sequence[str], images: Callable[[Sequence[int]], Sequence[Any]]) -> Rows:
        """Return some records, whose images a function returns."""
        keys, known = self.keys, self.bad
        bad = {i: known[keys[i]] for i in numbers if keys[i] in known} if known else {}
        columns: dict[str, Sequence[Any]] = {}
        for name, values in (("path", keys), ("label", self.labels)):
            if name in names and values is not None:
                columns[name] = values[numbers.start : numbers.stop]
        columns |= self.cells(numbers, names, bad)
        good: Sequence[int] = numbers
        if bad:
            good = [number for number in numbers if number not in bad]
            columns = {name: [values[i - numbers.start] for i in good] for name, values in columns.items()}
        if "image" in names:
            columns["image"] = images(good)
        return Rows(numbers.start, len(numbers), columns, bad)

    def cells(self, numbers: range, names: Sequence[str], bad: dict[int, str]) -> dict[str, list[Any]]:
        """Return the values of other fields, of all records; a wrong one is added to `bad`."""
        del numbers, names, bad
        return {}


def list_folder(source: str, *, allow_empty_classes: bool = False) -> ImageFiles:
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
                classes.append(utf8(entry.name, source))
            else:
                beside += 1
    bad: dict[str, str] = {}
    found = label_files(source, classes, beside, lambda name: files_below(source, name, bad), keep=allow_empty_classes)
    return ImageFiles(source, *found, bad, beside)


def label_files(
    source: str, classes: list[str], beside: int, files: Callable[[str], Iterable[str]], *, keep: bool
) -> tuple[list[str], array[int], list[str]]:
    """Return the keys of the files in class folders, their labels, and the names of the classes.

    Args:
        source: The folder that holds them.
        classes: Their names.
        beside: Number of files beside them.
        files: Returns the keys of a class folder's files, in order.
        keep: As `allow_empty_classes` of `list_folder`.

    Raises:
        FastRecordError: no class folder or no file exists; a class folder is empty.
    """
    if not classes and not beside:
        raise Code.NO_FILES.error(f"{source}: the folder is empty")
    if not classes:
        raise Code.NO_FILES.error(
            f"{source}: no class folders, only {beside:,} file{'s'[: beside != 1]}: each class needs a folder of its "
            "own, or name the files in a list, `--set list=CSV` (columns path and label, or just path)"
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
        raise Code.NO_FILES.error(
            f"{source}: no file in any of its {len(classes):,} class folder{'s'[: len(classes) != 1]}"
        )
    if empty and not keep:
        raise Code.EMPTY_CLASS.error(
            f"{source}: empty class folder{'s'[: len(empty) != 1]} {name_some(empty)}: remove folders that are not "
            "classes, or keep classes without records with `--set allow_empty_classes=yes`"
        )
    return keys, labels, classes
