"""Write records back into files of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Reader, SchemaError
from fastrecord.classes import class_names
from fastrecord.interrupt import HeldInterrupt

# Records read by one call: their bytes stay in the page cache, only views of them are held.
_BATCH = 64
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ExtractSummary:
    """What was extracted: number of records, bytes of their payloads, and the folder."""

    records: int
    bytes: int
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return asdict(self)


def extract_records(
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
    """Write one payload a record into a folder, byte for byte as it was packed, its checksum verified.

    Files are named by the field `key`; without one by the record's number and an ending that fits the bytes. All keys
    are checked before the first file is written. A file appears under its name when it is whole.

    Args:
        path: The .frec file.
        folder: Where to; made if need be.
        records: Record numbers; each is written once, in ascending order. None: all.
        classes: Only records of these classes; empty: of any.
        field: Field to write; may be left out if only one is of type image or bytes.
        numbered: Name files by number although there are keys.
        overwrite: Replace files that exist.
        progress: Called with records done and records in total.

    Raises:
        IndexError: a number is out of range. FileExistsError: a file exists (those before it have been written).
        CorruptFileError: a checksum differs. SchemaError: no such field, class or label.
        FastRecordError: a key is no path inside of the folder, or two records have the same; or a link is in the way.
        KeyboardInterrupt: Ctrl-C; the records before it have been written, each as a whole.
    """
    with Reader(path) as reader:
        payload = _payload_field(reader, field)
        numbers = _select(reader, records, classes)
        names = None if numbered or "key" not in reader.schema else _names(reader, numbers)
        total = 0
        with _Folder(os.fspath(folder), overwrite=overwrite) as target, HeldInterrupt() as interrupt:
            width = len(str(max(len(reader) - 1, 0)))
            for start in range(0, len(numbers), _BATCH):
                if interrupt.pending:
                    raise KeyboardInterrupt(f"{target.path}: {start:,} of {len(numbers):,} records are written")
                part = numbers[start : start + _BATCH]
                for i, view in enumerate(reader.read_batch(part, [payload], verify=True)[payload], start):
                    name = f"{numbers[i]:0{width}d}{_ending(bytes(view[:16]))}" if names is None else names[i]
                    target.write(name, view)
                    total += len(view)
                if progress is not None:
                    progress(start + len(part), len(numbers))
        return ExtractSummary(records=len(numbers), bytes=total, folder=os.fspath(folder))


def _payload_field(reader: Reader, field: str | None) -> str:
    fields = [name for name, kind in reader.schema.items() if kind.name in ("image", "bytes")]
    if field is not None:
        if field not in fields:
            raise SchemaError(
                f"{reader.path}: no field {field!r} of type image or bytes: the file has {fields or 'none'} [FR407]"
            )
        return field
    if len(fields) != 1:
        raise SchemaError(
            f"{reader.path}: say which field to extract (`--field`): {', '.join(fields) or 'none holds bytes'} [FR412]"
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
        raise SchemaError(f"{reader.path}: the file names no classes to choose from [FR420]")
    for name in classes:
        if name not in known:
            raise SchemaError(f"{reader.path}: no class {name!r} among its {len(known):,} [FR421]")
    labels = reader.column("label")[numbers]
    return numbers[np.isin(labels, [known.index(name) for name in classes])]


def _names(reader: Reader, numbers: NDArray[np.int64]) -> list[str]:
    names: list[str] = []
    for start in range(0, len(numbers), 4096):
        names.extend(reader.read_batch(numbers[start : start + 4096], ["key"])["key"])
    first: dict[str, int] = {}
    for number, name in zip(numbers.tolist(), names, strict=True):
        if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise FastRecordError(
                f"{reader.path}: record {number}: the key {name!r} is no path inside of a folder: name the files "
                "by number (`--numbered`) [FR740]"
            )
        if first.setdefault(name, number) != number:
            raise FastRecordError(
                f"{reader.path}: records {first[name]} and {number} both have the key {name!r}: name the files by "
                "number (`--numbered`) [FR740]"
            )
    return names


class _Folder:
    """Writes files below one folder, and never through a link to anywhere else."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        self.path, self.overwrite = path, overwrite
        os.makedirs(path, exist_ok=True)
        self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # The folder that was written to last: keys of one class come one behind the other.
        self.last: tuple[tuple[str, ...], int] = ((), os.dup(self.root))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.last[1])
        os.close(self.root)

    def write(self, name: str, data: memoryview) -> None:
        *folders, file_name = name.split("/")
        at = self._open(tuple(folders))
        full = os.path.join(self.path, name)
        if not self.overwrite and _exists(file_name, at):
            raise FileExistsError(f"{full}: exists already: `--overwrite` replaces it, or choose another folder")
        temporary = f".fastrecord-{os.getpid()}.tmp"
        try:
            with os.fdopen(os.open(temporary, _FILE_FLAGS, 0o666, dir_fd=at), "wb", buffering=0) as file:
                rest = data
                while rest:
                    rest = rest[file.write(rest) :]
            os.replace(temporary, file_name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException as err:
            if _exists(temporary, at):
                os.unlink(temporary, dir_fd=at)
            if isinstance(err, OSError):
                raise type(err)(err.errno, err.strerror, full) from err
            raise

    def _open(self, folders: tuple[str, ...]) -> int:
        if folders == self.last[0]:
            return self.last[1]
        here = os.dup(self.root)
        try:
            for i, folder in enumerate(folders):
                if not _exists(folder, here):
                    os.mkdir(folder, dir_fd=here)
                try:
                    below = os.open(folder, _FOLDER_FLAGS, dir_fd=here)
                except OSError as err:
                    full = os.path.join(self.path, *folders[: i + 1])
                    raise FastRecordError(
                        f"{full}: is a link or no folder, nothing is written through it [FR741]"
                    ) from err
                above, here = here, below
                os.close(above)
        except BaseException:
            os.close(here)
            raise
        before, self.last = self.last[1], (folders, here)
        os.close(before)
        return here


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_MAGIC = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\0", ".tif"),
    (b"MM\0*", ".tif"),
    (b"P5", ".pgm"),
    (b"P6", ".ppm"),
)


def _ending(head: bytes) -> str:
    """Return the usual file name ending for the first 16 bytes of an image, `.bin` for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return ".webp"
    return next((ending for magic, ending in _MAGIC if head.startswith(magic)), ".bin")
