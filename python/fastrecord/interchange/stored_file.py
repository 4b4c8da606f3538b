"""`StoredFile`: an object of a store as a file, read in order or from any position."""

from __future__ import annotations

import io
import os
from concurrent.futures import Future
from typing import Any

from fastrecord.store.answer import Answer
from fastrecord.store.requests import PART, RemoteFolder, submit


class StoredFile(io.RawIOBase):
    """An object of a store. One part of it is here, and the next one on its way.

    Raises:
        FileNotFoundError: there is no such object.
        FastRecordError: the store does not answer.
    """

    def __init__(self, store: RemoteFolder, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name
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
