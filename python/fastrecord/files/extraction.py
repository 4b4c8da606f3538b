"""`extract`: writes records back into one file each."""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader
from fastrecord.dataset.shards import Shards
from fastrecord.errors import Code
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.interchange.files.contents import content as as_file
from fastrecord.interchange.files.folders import Folder, has_ending, shown, wrong_name
from fastrecord.names import name_some
from fastrecord.schema.classes import class_names
from fastrecord.store import is_url

# Records between progress reports.
_BATCH = 64


@dataclass(frozen=True, slots=True)
class ExtractSummary:
    """Result of an extraction.

    Attributes:
        records: Number of records written.
        bytes: Total size of their payloads.
        folder: The folder.
        left_out: A message for each value that does not fit in memory (FR107), and was left out.
    """

    records: int
    bytes: int
    folder: str
    left_out: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


def extract(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    records: Iterable[int] | None = None,
    classes: Sequence[str] = (),
    field: str | None = None,
    numbered: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExtractSummary:
    """Write one payload per record into a folder, byte for byte as packed, with verified checksums.

    Files are named by the field `key`. Without keys a file is named by the record's number and an
    extension that fits the value: `.jpg`, `.png` and so on by the first bytes, else `.bin`; `.txt`
    for strings, `.json`, `.npy` for arrays. A key without an extension also gets one, unless
    `fastrecord pack` wrote the file: its keys are the paths that it read. All keys are checked
    before the first file is written. A file appears under its name when it is complete. A file that
    replaces another one gets its permissions; others get the default of the process's umask.

    Args:
        path: The .frec file, or its URL.
        folder: Folder to write into; created if necessary.
        records: Record numbers; each is written once, in ascending order. None: all.
        classes: Only records of these classes. Default: of any class.
        field: Field to write, of type image, bytes, string, json or array. Default: the only field of
            type image or bytes.
        numbered: Name files by record number and image type, even if there are keys.
        overwrite: Replace files that exist. By default the first one is an error.
        progress: Called with records done and records in total.

    Raises:
        IndexError: a number is out of range.
        FileExistsError: a file exists (the files before it have been written).
        CorruptFileError: a checksum differs.
        SchemaError: no such field, class or label.
        FastRecordError: a key is not a path inside the folder, two records have the same key, or
            one key is a folder of another; a link is in the way; or the file system treats two keys
            as one name.
        KeyboardInterrupt: Ctrl-C.

    If an error comes during writing, a note or the message reports how many records have been
    written, each completely.
    """
    with _opened(path) as reader:
        payload = _payload_field(reader, field)
        numbers = _select(reader, records, classes)
        names = _Names(reader, numbers, numbered=numbered)
        kind = reader.schema[payload]
        large: list[str] = []
        total = 0
        with Folder(os.fspath(folder), names.alike, overwrite=overwrite) as target, HeldInterrupt() as interrupt:
            written = 0
            try:
                for done, number in enumerate(numbers.tolist()):
                    if interrupt.pending:
                        raise KeyboardInterrupt
                    if is_url(path) and done % _BATCH == 0:
                        reader.prefetch(numbers[done : done + _BATCH], payload)
                    # One value at a time: a few compressed bytes may expand to 64 MiB.
                    try:
                        value = reader.get(number, payload, verify=True, copy=True)
                        content, ending = as_file(value, kind)
                    except MemoryError as err:
                        place = f"{reader.path}: record {number}, field {payload}"
                        large.append(Code.VALUE_TOO_LARGE.text(f"{place}: {str(err) or 'no memory'}"))
                        continue
                    target.write(*names.name(done, ending), content)
                    written += 1
                    total += len(content)
                    del value, content
                    if progress is not None and ((done + 1) % _BATCH == 0 or done + 1 == len(numbers)):
                        progress(done + 1, len(numbers))
            except KeyboardInterrupt as err:
                raise KeyboardInterrupt(_left(target.path, written, len(numbers))) from err
            except BaseException as err:
                err.add_note(_left(target.path, written, len(numbers)))
                raise
        return ExtractSummary(records=written, bytes=total, folder=os.fspath(folder), left_out=large)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Reader]:
    if is_url(path):
        shards = Shards.open(path)
        try:
            if len(shards.readers) != 1:
                raise Code.REMOTE.error(f"{path}: is a data set of {len(shards.readers):,} shards: name one of them")
            yield shards.readers[0]
        finally:
            shards.close()
        return
    with Reader(path) as reader:
        yield reader


def _left(folder: str, written: int, total: int) -> str:
    """Return what a failed extraction leaves, for a message."""
    if written == 0:
        return f"{folder}: nothing is written"
    count = f"{written:,} of {total:,} records are written, each one whole"
    return f"{folder}: {count}: `--overwrite` writes all of them again"


def _payload_field(reader: Reader, field: str | None) -> str:
    schema = reader.schema
    if field is not None:
        fields = [name for name, kind in schema.items() if kind.name in ("image", "bytes", "string", "json", "array")]
        if field not in fields:
            raise Code.NO_FIELD.error(
                f"{reader.path}: no field {field!r} of type image, bytes, string, json or array: the file has "
                f"{fields or 'none'}"
            )
        return field
    fields = [name for name, kind in schema.items() if kind.name in ("image", "bytes")]
    if len(fields) != 1:
        raise Code.SEVERAL_FIELDS.error(
            f"{reader.path}: say which field to extract (`--field`): {', '.join(fields) or 'none holds bytes'}"
        )
    return fields[0]


def _select(reader: Reader, records: Iterable[int] | None, classes: Sequence[str]) -> NDArray[np.int64]:
    count = len(reader)
    if records is None:
        numbers = np.arange(count, dtype=np.int64)
    else:
        chosen = set()
        for number in records:
            if not 0 <= number < count:
                raise IndexError(f"{reader.path}: record {number} is out of range: the file has {count} records")
            chosen.add(number)
        numbers = np.array(sorted(chosen), np.int64)
    if not classes:
        return numbers
    known = class_names(reader)
    if known is None or "label" not in reader.schema:
        raise Code.NO_CLASSES.error(f"{reader.path}: the file names no classes to choose from")
    for name in classes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"similar ones are {', '.join(map(repr, near))}" if near else f"they are {name_some(known)}"
            raise Code.UNKNOWN_CLASS.error(f"{reader.path}: no class {name!r} among its {len(known):,}; {hint}")
    if reader.schema["label"].name == "string":
        parts = [numbers[start : start + 4096] for start in range(0, len(numbers), 4096)]
        kept = [np.isin(reader.read_batch(part, ["label"])["label"], classes) for part in parts]
        mask: NDArray[np.bool_] = np.concatenate([*kept, np.empty(0, bool)])
        return numbers[mask]
    labels = reader.column("label")[numbers]
    return numbers[np.isin(labels, [known.index(name) for name in classes])]


class _Names:
    """The file names of records: keys or numbers, with extensions if they have none.

    Attributes:
        alike: Keys that some file system could treat as equal to another one.
    """

    def __init__(self, reader: Reader, numbers: NDArray[np.int64], *, numbered: bool) -> None:
        self._numbers = numbers
        self._width = len(str(max(len(reader) - 1, 0)))
        self._keys = None if numbered or "key" not in reader.schema else _keys(reader, numbers)
        self.alike = _alike(self._keys or [])
        # Keys of a pack are the paths of its input, with or without extensions.
        self._packed = "packs" in reader.metadata
        bare = self._keys is not None and not self._packed and not all(map(has_ending, self._keys))
        self._taken = {_folded(key) for key in self._keys or []} if bare else set()

    def name(self, at: int, ending: str) -> tuple[str, str]:
        """Return a record's key (its number, if it has none) and its file name."""
        if self._keys is None:
            number = f"{self._numbers[at]:0{self._width}d}"
            return number, f"{number}{ending}"
        key = self._keys[at]
        name = f"{key}{ending}"
        if self._packed or has_ending(key) or _folded(name) in self._taken or wrong_name(name) is not None:
            return key, key
        return key, name


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name.casefold())


def _keys(reader: Reader, numbers: NDArray[np.int64]) -> list[str]:
    names: list[str] = []
    for start in range(0, len(numbers), 4096):
        names.extend(reader.read_batch(numbers[start : start + 4096], ["key"])["key"])
    first: dict[str, int] = {}
    folders: dict[str, int] = {}
    for number, name in zip(numbers.tolist(), names, strict=True):
        wrong = wrong_name(name)
        if wrong is not None:
            raise Code.KEY_AS_NAME.error(
                f"{reader.path}: record {number}: the key {shown(name)} {wrong}: name the files by number "
                "(`--numbered`)"
            )
        if first.setdefault(name, number) != number:
            raise Code.KEY_AS_NAME.error(
                f"{reader.path}: records {first[name]} and {number} both have the key {shown(name)}: name the "
                "files by number (`--numbered`)"
            )
        above = name.rpartition("/")[0]
        # Most keys are in the folder of the previous key: the walk up ends at the first known
        # folder.
        while above and above not in folders:
            folders[above] = number
            above = above.rpartition("/")[0]
    for folder in folders.keys() & first.keys():
        raise Code.KEY_AS_NAME.error(
            f"{reader.path}: the key {shown(folder)} of record {first[folder]} is a folder in the key of record "
            f"{folders[folder]}: name the files by number (`--numbered`)"
        )
    return names


def _alike(names: Sequence[str]) -> set[str]:
    """Return the names that differ from another one only in case or Unicode composition.

    Some file systems treat such names as equal.
    """
    folded = [_folded(name) for name in names]
    counts = Counter(folded)
    if len(counts) == len(names):
        return set()
    return {name for name, fold in zip(names, folded, strict=True) if counts[fold] > 1}
