"""CIFAR-10 and CIFAR-100 as their authors distribute them (https://www.cs.toronto.edu/~kriz/cifar.html).

The folder of the Python version (batches that are pickles, read by `interchange.files.unpickle`), its
.tar.gz, or single batches of it. Images are arrays (32, 32, 3), and file names are keys.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Setting, Source
from fastrecord.interchange.arrays import ArraySource, Column, Shard
from fastrecord.interchange.files.unpickle import PickleError, plain
from fastrecord.interchange.paths import several
from fastrecord.schema import FieldType, array

_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
_ARCHIVE = re.compile(r"cifar-100?-python\.(tar\.gz|tgz|tar)")
_TEN = re.compile(r"data_batch_\d+|test_batch")
_PIXELS = 3 * 32 * 32
_LARGEST = 512 << 20
_LABELS = ("label", "fine_label", "coarse_label")


class Cifar(Format):
    """CIFAR's batches."""

    name = "cifar"
    title = "CIFAR"
    settings: Mapping[str, Setting] = {
        "split": Setting("read the images for training (default), for testing, or both", ("train", "test", "all"))
    }

    def recognise(self, found: Found) -> str | None:
        """Look for the batches by their names, and what they begin with."""
        base = os.path.basename(found.path)
        if found.is_folder:
            names = set(found.names)
            ten = {"data_batch_1", "batches.meta"} <= names
            if ten or {"train", "test", "meta"} <= names:
                return f"it is a folder with the batches of CIFAR-{'10' if ten else '100'}"
            inner = next((name for name in _FOLDERS if name in names), None)
            return f"it is a folder with {inner}" if inner else None
        if _ARCHIVE.fullmatch(base):
            return "it is an archive with the name that CIFAR has"
        if _TEN.fullmatch(base) and found.head[:1] in (b"\x80", b"("):
            return "it is a pickle with the name of a batch of CIFAR-10"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open a folder, an archive, or batches."""
        split = settings.get("split", "train")
        sources = several(source)
        batches = [(files, name) for each in sources for files in [_files(each)] for name in files.batches(split)]
        if not batches:
            raise Code.SOURCE.error(f"{sources[0]}: it has no batches of CIFAR for --set split={split}")
        return CifarSource(batches)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a folder, of an archive, or one file.

    Attributes:
        path: The folder, archive or file.
        names: The files in it.
        read: Returns the bytes of a file.
        single: Whether it is one batch, whatever the split.
    """

    path: str
    names: Sequence[str]
    read: Callable[[str], bytes]
    single: bool = False

    def place(self, name: str) -> str:
        """Return where a file is, for messages."""
        return self.path if self.single else os.path.join(self.path, name)

    def batches(self, split: str) -> list[str]:
        """Return the batches, the ones for training first."""
        if self.single:
            return list(self.names[:1])
        kinds = {"train": r"data_batch_\d+|train", "test": r"test_batch|test"}
        wanted = [kind for each, kind in kinds.items() if split in (each, "all")]
        return [name for kind in wanted for name in sorted(self.names) if re.fullmatch(kind, name)]

    def plain(self, name: str) -> dict[str, Any]:
        """Return the dict in a pickle; an empty one if it holds something else."""
        try:
            found = plain(self.read(name), views=True)
        except PickleError as err:
            raise Code.PICKLE.error(f"{self.place(name)}: {err.text}") from err
        return {_str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _files(path: str) -> _Files:
    if os.path.isdir(path):
        names = os.listdir(path)
        inner = [name for name in _FOLDERS if name in names]
        if inner and not any(name.startswith("data_batch") for name in names):
            return _files(os.path.join(path, inner[0]))
        return _Files(path, names, partial(_read, path))
    with open(path, "rb") as file:
        head = file.read(512)
    if head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar":
        return _Files(path, _in_archive(path)[0], lambda name: _in_archive(path, name)[1])
    folder, base = os.path.split(path)
    beside = [name for name in os.listdir(folder or ".") if name != base]
    return _Files(path, [base, *beside], partial(_read, folder), single=True)


def _read(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    _check_size(path, os.path.getsize(path))
    with open(path, "rb") as file:
        return file.read()


def _check_size(place: str, size: int) -> None:
    if size > _LARGEST:
        raise Code.SOURCE.error(f"{place}: {size:,} bytes are no batch of CIFAR")


def _in_archive(path: str, wanted: str = "") -> tuple[list[str], bytes]:
    """Return the names of the files in an archive up to the one that is wanted, and its contents."""
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for each in archive:
                file = archive.extractfile(each)
                if file is not None:
                    names.append(os.path.basename(each.name))
                    if names[-1] == wanted:
                        _check_size(f"{path}: {wanted}", each.size)
                        return names, file.read()
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error) as err:
        raise Code.SOURCE.error(f"{path}: the archive is damaged or cut short ({err}): download it again") from err
    return names, b""


class CifarSource(ArraySource):
    """Images of CIFAR; one batch is in memory at a time."""

    def __init__(self, batches: Sequence[tuple[_Files, str]]) -> None:
        self._loaded: tuple[int, dict[str, Any]] | None = None
        self._batches = batches
        super().__init__([self._shard(number) for number in range(len(batches))])
        self.paths = list(dict.fromkeys(files.path if os.path.isfile(files.path) else files.place(name)
                                        for files, name in batches))  # fmt: skip
        names = _class_names(batches[0][0])
        self.classes = names.get("fine_label") or names.get("label")
        self.metadata = {"coarse_classes": names["coarse_label"]} if "coarse_label" in names else {}
        self.fields = [replace(each, rename="label") if each.name == "fine_label" else each for each in self.fields]

    def _shard(self, number: int) -> Shard:
        files, name = self._batches[number]
        batch = self._batch(number)
        kinds = {
            "image": (array("uint8", (32, 32, 3)), "pixels", _PIXELS),
            "key": (FieldType("string"), "file names", 64),
        }
        kinds |= dict.fromkeys(_LABELS, (FieldType("int64"), "labels", 8))
        columns = {
            field: Column(*kinds[field][:2], len(batch["image"]), kinds[field][2], partial(self._rows, number, field))
            for field in ("image", *_LABELS, "key")
            if field in batch
        }
        return Shard(files.place(name), columns)

    def _rows(self, number: int, field: str, start: int, end: int) -> Any:
        values = self._batch(number)[field][start:end]
        if field != "image":
            return values
        return np.ascontiguousarray(values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    def _batch(self, number: int) -> dict[str, Any]:
        """Return the parts of a batch."""
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None
            files, name = self._batches[number]
            self._loaded = number, _parts(files, name)
        return self._loaded[1]


def _parts(files: _Files, name: str) -> dict[str, Any]:
    place, batch = files.place(name), files.plain(name)
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise Code.SOURCE.error(f"{place}: it is a pickle, but not of a batch of CIFAR")
    parts: dict[str, Any] = {"image": pixels}
    for theirs, ours in {**{f"{label}s": label for label in _LABELS}, "filenames": "key"}.items():
        values = batch.get(theirs)
        if not isinstance(values, (list, tuple, np.ndarray)):
            continue
        if len(values) != len(pixels):
            raise Code.SOURCE.error(f"{place}: it has {len(values):,} {theirs} and {len(pixels):,} images")
        try:
            parts[ours] = [_str(value) for value in values] if ours == "key" else np.asarray(values, np.int64)
        except (ValueError, TypeError, OverflowError) as err:
            raise Code.SOURCE.error(f"{place}: its {theirs} are damaged: {err}") from err
    return parts


def _class_names(files: _Files) -> dict[str, list[str]]:
    """Return the names of the classes by label, as far as they are beside the batches."""
    for name in ("batches.meta", "meta"):
        if name in files.names:
            meta = files.plain(name)
            return {each: [*map(_str, meta[f"{each}_names"])] for each in _LABELS if f"{each}_names" in meta}
    return {}


def _str(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
