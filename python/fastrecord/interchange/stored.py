"""`open_file`: a file of a source, on this machine or in a store, read in order or from any position.

Paths of sources are names of files here, or `Url`s, which hide what is secret in them.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from fastrecord.errors import Code
from fastrecord.store import is_url
from fastrecord.store.address import Url
from fastrecord.store.answer import Answer
from fastrecord.store.requests import PART, Store, submit

_HUB = "hf://"
# Bucket or server -> the options that a caller has given for it.
_options: dict[str, Mapping[str, Any]] = {}


def is_stored(path: object) -> bool:
    """Return whether a path names something in an object store, on the web, or on the Hugging Face hub."""
    return is_url(path) or (isinstance(path, str) and path.startswith(_HUB))


def located(path: str, options: Mapping[str, Any] | None) -> str:
    """Return a path as this module takes it: URLs of folders end with a slash.

    Args:
        path: What a caller calls a source.
        options: Options of its store.
    """
    if not is_stored(path):
        return path
    url = Url(path)
    if options:
        _options[url.root] = options
    if url.is_local:
        return url.path
    pattern = any(letter in path for letter in "*[{")
    if path.endswith("/") or not (pattern or url.is_web or _is_object(url)):
        return f"{url}/"
    return url


def is_folder(path: str) -> bool:
    """Return whether a path is the one of a folder."""
    return path.endswith("/") if is_stored(path) else os.path.isdir(path)


def inside(folder: str, name: str) -> str:
    """Return the path of something in a folder."""
    return Url(folder).at(name) if is_stored(folder) else os.path.join(folder, name)


def names_in(folder: str) -> list[str]:
    """Return the names of the files in a folder, sorted.

    Raises:
        FastRecordError: the store does not list them.
        FileNotFoundError: there are none.
    """
    if not is_stored(folder):
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file())
    if folder.startswith(_HUB):
        found = _hub().ls(folder.rstrip("/"), detail=True)
        return sorted(each["name"].rpartition("/")[2] for each in found if each["type"] == "file")
    names = sorted(name for name, _ in _store(folder).list())
    if not names:
        raise FileNotFoundError(errno.ENOENT, "does not exist in the store", str(Url(folder)))
    return names


def open_file(path: str) -> Any:
    """Open a file for reading, without a buffer of Python's.

    Raises:
        OSError, FastRecordError: it cannot be read.
    """
    if not is_stored(path):
        return open(path, "rb", buffering=0)
    if path.startswith(_HUB):
        return _hub().open(path, "rb", block_size=PART)
    return StoredFile(Url(path))


def size_of(file: Any) -> int:
    """Return the size of a file that has just been opened."""
    size = int(file.seek(0, os.SEEK_END))
    file.seek(0)
    return size


class StoredFile(io.RawIOBase):
    """An object of a store. One part of it is here, and the next one on its way.

    Raises:
        FileNotFoundError: there is no such object.
        FastRecordError: the store does not answer.
    """

    def __init__(self, url: Url) -> None:
        super().__init__()
        self._store, self._name = Store.of_file(url, _options.get(url.root))
        first = self._store.get(self._name, 0, PART)
        self._size, self._etag = first.size, first.etag
        self._parts: dict[int, Answer | Future[Answer]] = {0: first}
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position; nothing is read."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, target: Any) -> int:
        """Read some bytes; 0 at the end."""
        if self._at >= self._size:
            return 0
        number, begin = divmod(self._at, PART)
        data = memoryview(self._part(number))[begin:]
        view = memoryview(target).cast("B")
        count = min(len(view), len(data))
        view[:count] = data[:count]
        self._at += count
        return count

    def _part(self, number: int) -> Any:
        wanted = [number, *((number + 1,) if number in self._parts and (number + 1) * PART < self._size else ())]
        parts = {each: self._parts.get(each) or submit(self._get, each) for each in wanted}
        self._parts = parts
        found = parts[number]
        if isinstance(found, Future):
            found = parts[number] = found.result()
        return found.data

    def _get(self, number: int) -> Answer:
        return self._store.get(self._name, number * PART, PART, etag=self._etag)


def _is_object(url: Url) -> bool:
    if url.scheme == "hf":
        return bool(_hub().isfile(url))
    store, name = Store.of_file(url, _options.get(url.root))
    return bool(url.key) and store.exists(name)


def _store(folder: str) -> Store:
    return Store.of(folder, _options.get(Url(folder).root))


def _hub() -> Any:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError as err:
        raise Code.NO_LIBRARY.error(
            f"hf:// needs the package huggingface_hub: {err}: `pip install huggingface_hub`"
        ) from err
    return HfFileSystem()
