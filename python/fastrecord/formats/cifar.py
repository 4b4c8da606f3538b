"""CIFAR-10 and CIFAR-100 as their authors distribute them (https://www.cs.toronto.edu/~kriz/cifar.html).

The folder of the Python version (batches that are pickles, read by `interchange.files.unpickle`), of the
binary version (.bin), the .tar.gz of either, or single batches of them. Images are arrays (32, 32,
3), and file names are keys.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastrecord.errors import Code
from fastrecord.interchange import Format, Found, Setting, Source
from fastrecord.interchange.arrays import ArrayError, ArraySource, Column, Shard
from fastrecord.interchange.files.unpickle import plain
from fastrecord.schema import FieldType, array

_FOLDERS = ("cifar-10-batches-py", "cifar-100-python", "cifar-10-batches-bin", "cifar-100-binary")
_ARCHIVE = re.compile(r"cifar-100?-(python|binary)\.(tar\.gz|tgz|tar)")
_TEN = re.compile(r"(data_batch_\d+|test_batch)(\.bin)?")
_PIXELS = 3 * 32 * 32
_LARGEST = 512 << 20
_LABEL = FieldType("int64")


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
            ten = ("data_batch_1" in names and "batches.meta" in names) or "data_batch_1.bin" in names
            hundred = {"train", "test", "meta"} <= names or {"train.bin", "fine_label_names.txt"} <= names
            if ten or hundred:
                return f"it is a folder with the batches of CIFAR-{'10' if ten else '100'}"
            inner = next((name for name in _FOLDERS if name in names), None)
            return f"it is a folder with {inner}" if inner else None
        if _ARCHIVE.fullmatch(base):
            return "it is an archive with the name that CIFAR has"
        batch = _TEN.fullmatch(base)
        if batch and not batch[2] and found.head[:1] in (b"\x80", b"("):
            return "it is a pickle with the name of a batch of CIFAR-10"
        if batch and batch[2] and os.path.getsize(found.path) % (1 + _PIXELS) == 0:
            return "it has the name and the size of a batch of CIFAR-10"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """Open a folder, an archive, or batches."""
        split = settings.get("split", "train")
        sources = [source] if isinstance(source, str) else list(source)
        batches: list[tuple[_Files, str]] = []
        for each in sources:
            batches += [(files, name) for files in [_files(each)] for name in files.batches(split)]
        if not batches:
            raise Code.SOURCE.error(f"{sources[0]}: it has no batches of CIFAR for --set split={split}")
        return CifarSource(batches)


class _Files:
    """The files of a folder, of an archive, or one file.

    Args:
        path: The folder, archive or file.
        names: The files in it.
        read: Returns the bytes of a file.
        single: Whether it is one batch, whatever the split.
    """

    def __init__(self, path: str, names: Sequence[str], read: Callable[[str], bytes], *, single: bool = False) -> None:
        self.path, self.names, self.read, self._single = path, names, read, single

    def place(self, name: str) -> str:
        """Return where a file is, for messages."""
        return self.path if self._single else os.path.join(self.path, name)

    def batches(self, split: str) -> list[str]:
        """Return the batches, the ones for training first."""
        if self._single:
            return list(self.names[:1])
        train = [name for name in sorted(self.names) if re.fullmatch(r"(data_batch_\d+|train)(\.bin)?", name)]
        test = [name for name in sorted(self.names) if re.fullmatch(r"(test_batch|test)(\.bin)?", name)]
        return (train if split != "test" else []) + (test if split != "train" else [])


def _files(path: str) -> _Files:
    if os.path.isdir(path):
        names = os.listdir(path)
        inner = [name for name in _FOLDERS if name in names]
        if inner and not any(name.startswith("data_batch") for name in names):
            return _files(os.path.join(path, inner[0]))
        return _Files(path, names, lambda name: _read(os.path.join(path, name)))
    with open(path, "rb") as file:
        head = file.read(512)
    if head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar":
        return _Files(path, [name for name, _ in _members(path)], lambda name: _member(path, name))
    folder, base = os.path.split(path)
    beside = [name for name in os.listdir(folder or ".") if name != base]
    return _Files(path, [base, *beside], lambda name: _read(os.path.join(folder, name)), single=True)


def _read(path: str) -> bytes:
    size = os.path.getsize(path)
    if size > _LARGEST:
        raise Code.SOURCE.error(f"{path}: {size:,} bytes are no batch of CIFAR")
    with open(path, "rb") as file:
        return file.read()


def _members(path: str) -> list[tuple[str, int]]:
    try:
        with tarfile.open(path) as archive:
            return [(os.path.basename(each.name), each.size) for each in archive if each.isfile()]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as err:
        raise Code.SOURCE.error(f"{path}: the archive is damaged or cut short ({err}): download it again") from err


def _member(path: str, name: str) -> bytes:
    try:
        with tarfile.open(path) as archive:
            for each in archive:
                if each.isfile() and os.path.basename(each.name) == name:
                    file = archive.extractfile(each)
                    if each.size > _LARGEST or file is None:
                        raise Code.SOURCE.error(f"{path}: {name}: {each.size:,} bytes are no batch of CIFAR")
                    return file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as err:
        raise Code.SOURCE.error(f"{path}: the archive is damaged or cut short ({err}): download it again") from err
    raise Code.SOURCE.error(f"{path}: it has no file {name!r}")


class CifarSource(ArraySource):
    """Images of CIFAR; one batch is in memory at a time."""

    def __init__(self, batches: Sequence[tuple[_Files, str]]) -> None:
        self._loaded: tuple[int, dict[str, Any]] | None = None
        self._batches = batches
        shards = [self._shard(number) for number in range(len(batches))]
        super().__init__(shards)
        files = batches[0][0]
        self.paths = list(dict.fromkeys(files.path if os.path.isfile(files.path) else files.place(name)
                                        for files, name in batches))  # fmt: skip
        self._places = [files.place(name) for files, name in batches]
        names = _class_names(files)
        fine = names.get("fine") or names.get("label")
        self.classes = fine
        self.metadata = {"coarse_classes": names["coarse"]} if "coarse" in names else {}
        key = [each.name for each in self.fields]
        self.fields = [
            type(each)(each.name, each.type, each.origin, "label") if each.name == "fine_label" and "label" not in key
            else each for each in self.fields
        ]  # fmt: skip

    def place(self, number: int) -> str:
        """Return the batch and the record."""
        at = max(sum(start <= number for start in self._starts[:-1]) - 1, 0)
        return f"{self._places[at]}: record {number - self._starts[at]:,}"

    def _shard(self, number: int) -> Shard:
        files, name = self._batches[number]
        batch = self._batch(number)
        image = array("uint8", (32, 32, 3))

        pixels = self._reader(number, "image")

        def images(start: int, end: int) -> Any:
            data = pixels(start, end)
            return np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

        count = batch["count"]
        columns = {"image": Column(image, "pixels", count, _PIXELS, images)}
        for field in ("label", "fine_label", "coarse_label"):
            if field in batch:
                columns[field] = Column(_LABEL, "labels", count, 8, self._reader(number, field))
        if "key" in batch:
            columns["key"] = Column(FieldType("string"), "file names", count, 64, self._reader(number, "key"))
        return Shard(files.place(name), columns)

    def _reader(self, number: int, field: str) -> Callable[[int, int], Any]:
        def read(start: int, end: int) -> Any:
            values = self._batch(number)[field]
            if end > len(values):
                raise ArrayError("the file is cut short: download it again", ends=True)
            return values[start:end]

        return read

    def _batch(self, number: int) -> dict[str, Any]:
        """Return the parts of a batch."""
        if self._loaded is None or self._loaded[0] != number:
            self._loaded = None
            files, name = self._batches[number]
            data, place = files.read(name), files.place(name)
            parts = _binary(data, name, files.names, place) if name.endswith(".bin") else _pickled(data, place)
            self._loaded = number, parts
        return self._loaded[1]


def _pickled(data: bytes, place: str) -> dict[str, Any]:
    found = _plain(data, place)
    batch = {_str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise Code.SOURCE.error(f"{place}: it is a pickle, but not of a batch of CIFAR")
    parts: dict[str, Any] = {"image": pixels, "count": len(pixels)}
    names = {"labels": "label", "fine_labels": "fine_label", "coarse_labels": "coarse_label", "filenames": "key"}
    for theirs, ours in names.items():
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


def _binary(data: bytes, name: str, names: Sequence[str], place: str) -> dict[str, Any]:
    hundred = name in ("train.bin", "test.bin") or "fine_label_names.txt" in names
    labels = 2 if hundred else 1
    count, rest = divmod(len(data), labels + _PIXELS)
    if not count:
        raise Code.SOURCE.error(f"{place}: {len(data):,} bytes are no batch of CIFAR-{'100' if hundred else '10'}")
    rows = np.frombuffer(data, np.uint8, count * (labels + _PIXELS)).reshape(count, -1)
    # A last image that is not whole ends the source when it is read.
    parts: dict[str, Any] = {"image": rows[:, labels:], "count": count + (rest > 0)}
    fields = ("coarse_label", "fine_label") if hundred else ("label",)
    return parts | {field: rows[:, at].astype(np.int64) for at, field in enumerate(fields)}


def _class_names(files: _Files) -> dict[str, list[str]]:
    """Return the names of the classes, as far as they are beside the batches."""
    keys = {"label_names": "label", "fine_label_names": "fine", "coarse_label_names": "coarse"}
    for name in ("batches.meta", "meta"):
        if name in files.names:
            found = _plain(files.read(name), files.place(name))
            meta = {_str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
            return {keys[key]: [_str(each) for each in values] for key, values in meta.items() if key in keys}
    texts = {"batches.meta.txt": "label", "fine_label_names.txt": "fine", "coarse_label_names.txt": "coarse"}
    return {
        part: [line for line in files.read(name).decode("utf-8", "replace").split("\n") if line.strip()]
        for name, part in texts.items()
        if name in files.names
    }


def _plain(data: bytes, place: str) -> Any:
    try:
        return plain(data, views=True)
    except Code.PICKLE.kinds[0] as err:
        raise Code.PICKLE.error(f"{place}: {str(err).partition(f' [{Code.PICKLE}]')[0]}") from err


def _str(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


FORMATS = [Cifar()]
