"""`open_file`: a file of a source, on this machine or in a store, read in order or from any position.

Paths of sources are names of files here, or `Url`s, which hide what is secret in them.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from fastrecord.errors import Code
from fastrecord.store import is_url
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.store.requests import RemoteFolder
    from fastrecord.store.store import Store

_HUB = "hf://"
# Bucket or server -> how the last caller reads it, if it says so.
_stores: dict[str, Store] = {}


def is_stored(path: object) -> bool:
    """Return whether a path names something in an object store, on the web, or on the Hugging Face hub."""
    return is_url(path) or (isinstance(path, str) and path.startswith(_HUB))


def located(path: str, store: Store | None) -> str:
    """Return a path as this module takes it: URLs of folders end with a slash.

    Args:
        path: What a caller calls a source.
        store: How it is read.
    """
    if not is_stored(path):
        return path
    url = Url(path)
    _stores.pop(url.root, None)
    if store is not None:
        _stores[url.root] = store
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
    names = sorted(name for name, _ in store_of(folder).list())
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
    from fastrecord.interchange.stored_file import StoredFile  # with what requests need
    from fastrecord.store.requests import PART

    if path.startswith(_HUB):
        return _hub().open(path, "rb", block_size=PART)
    return StoredFile(*_store_of_file(Url(path)))


def size_of(file: Any) -> int:
    """Return the size of a file that has just been opened."""
    size = int(file.seek(0, os.SEEK_END))
    file.seek(0)
    return size


def _is_object(url: Url) -> bool:
    if url.scheme == "hf":
        return bool(_hub().isfile(url))
    store, name = _store_of_file(url)
    return bool(url.key) and store.exists(name)


def store_of(folder: str) -> RemoteFolder:
    """Return the store of a folder, with the options that were given for it."""
    from fastrecord.store.requests import RemoteFolder

    return RemoteFolder.of(folder, _stores.get(Url(folder).root))


def _store_of_file(url: Url) -> tuple[RemoteFolder, str]:
    from fastrecord.store.requests import RemoteFolder

    return RemoteFolder.of_file(url, _stores.get(url.root))


def _hub() -> Any:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError as err:
        raise Code.NO_LIBRARY.error(
            f"hf:// needs the package huggingface_hub: {err}: `pip install huggingface_hub`"
        ) from err
    return HfFileSystem()
