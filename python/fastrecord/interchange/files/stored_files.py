"""`StoredFiles`: the files of class folders in an object store, as a source of records."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Self

from fastrecord.interchange.files.image_files import ImageFiles, label_files
from fastrecord.interchange.files.listing import UNREADABLE
from fastrecord.interchange.source import Rows
from fastrecord.store.requests import RemoteFolder, at_once

# So many files are brought at once, and so many bytes unless one has more.
_AT_ONCE, _BYTES_AT_ONCE = 64, 32 << 20


class StoredFiles(ImageFiles):
    """The files of class folders in an object store, brought a few at a time, in the order of `list_folder`.

    Args:
        store: The folder that holds them.
        allow_empty_classes: As in `list_folder`.

    Raises:
        FileNotFoundError: the store has nothing there.
        FastRecordError: as in `list_folder`; the store does not answer.
    """

    def __init__(self, store: RemoteFolder, *, allow_empty_classes: bool = False) -> None:
        classes, objects = store.tree()
        if not classes and not objects:
            raise FileNotFoundError(errno.ENOENT, "does not exist in the store", str(store.url).rstrip("/"))
        # Tools make an empty object for a folder; its name comes without the slash at its end.
        folders = {*classes}
        for path, _ in objects:
            while (path := path.rpartition("/")[0]) and path not in folders:
                folders.add(path)
        files: dict[str, list[tuple[str, str]]] = {name: [] for name in classes}
        beside = 0
        for path, size in objects:
            folder, _, name = path.rpartition("/")
            if not size and path in folders:
                continue
            if folder:
                files.setdefault(folder.partition("/")[0], []).append((folder, name))
            else:
                beside += 1

        def of_class(name: str) -> Iterator[str]:
            return (f"{folder}/{file}" for folder, file in sorted(files[name]))

        found = label_files(store.url, list(files), beside, of_class, keep=allow_empty_classes)
        super().__init__(store.url, *found, {}, beside)
        self.store, self.objects = store, dict(objects)

    def place(self, number: int) -> str:
        """Return the URL of a file."""
        return self.store.where(self.keys[number])

    def refuse_output(self, out: str) -> None:
        """Refuse nothing: a pack writes to this machine, or to a data set of its own."""

    def cut(self, start: int, stop: int) -> Self:
        """Return a source of some of the files."""
        part = super().cut(start, stop)
        part.objects = {key: self.objects[key] for key in part.keys}
        return part

    def stored_bytes(self, number: int) -> int:
        """Return the size of an object."""
        return self.objects[self.keys[number]]

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        while start < len(self.keys):
            stop, size = start, 0
            while stop < len(self.keys) and stop - start < _AT_ONCE and (stop == start or size < _BYTES_AT_ONCE):
                size += self.stored_bytes(stop)
                stop += 1
            numbers = range(start, stop)
            found: dict[int, Any] = {}
            if "image" in names:
                at_once(*(partial(self._bring, number, found) for number in numbers))
            yield self.rows(numbers, names, lambda good: [found[i] for i in good])  # noqa: B023 - called at once
            start = stop

    def _bring(self, number: int, found: dict[int, Any]) -> None:
        key = self.keys[number]
        try:
            found[number] = self.store.get(key).data
        except FileNotFoundError as err:
            self.bad[key] = f"{UNREADABLE}: {err.strerror}"
