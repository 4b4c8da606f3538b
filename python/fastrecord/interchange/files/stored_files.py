"""`StoredFiles`: the files of class folders in an object store, as a source of records."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Self

from fastrecord.interchange.files.image_files import ImageFiles
from fastrecord.interchange.files.listing import UNREADABLE, list_classes
from fastrecord.interchange.source import Rows
from fastrecord.store.requests import RemoteFolder, at_once

# So many files are brought at once, and so many bytes unless one has more.
_AT_ONCE, _BYTES_AT_ONCE = 64, 32 << 20


class StoredFiles(ImageFiles):
    """The files of class folders in an object store, brought a few at a time."""

    store: RemoteFolder
    objects: dict[str, int]

    def place(self, number: int) -> str:
        """Return the URL of a file."""
        return self.store.where(self.listing.keys[number])

    def cut(self, start: int, stop: int) -> Self:
        """Return a source of some of the files."""
        part = super().cut(start, stop)
        part.store, part.objects = self.store, {key: self.objects[key] for key in part.listing.keys}
        return part

    def sizes(self) -> Iterator[int]:
        """Yield the size of each object and its key."""
        return (self.objects[key] + len(key.encode()) for key in self.listing.keys)

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        keys = self.listing.keys
        while start < len(keys):
            stop, size = start, 0
            while stop < len(keys) and stop - start < _AT_ONCE and (stop == start or size < _BYTES_AT_ONCE):
                size += self.objects[keys[stop]]
                stop += 1
            numbers = range(start, stop)
            found: dict[int, Any] = {}
            if "image" in names:
                at_once(*(partial(self._bring, number, found) for number in numbers))
            yield self.rows(numbers, names, lambda good: [found[i] for i in good])  # noqa: B023 - called at once
            start = stop

    def _bring(self, number: int, found: dict[int, Any]) -> None:
        key = self.listing.keys[number]
        try:
            found[number] = self.store.get(key).data
        except FileNotFoundError as err:
            self.listing.bad[key] = f"{UNREADABLE}: {err.strerror}"


def list_bucket(store: RemoteFolder, *, allow_empty_classes: bool = False) -> StoredFiles:
    """List class folders of an object store, in the order in which `list_folder` lists a folder.

    Args:
        store: The folder that holds them.
        allow_empty_classes: As in `list_folder`.

    Raises:
        FileNotFoundError: the store has nothing there.
        FastRecordError: as in `list_folder`; the store does not answer.
    """
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
        if not size and path in folders:
            continue
        folder, _, name = path.rpartition("/")
        if folder:
            files.setdefault(folder.partition("/")[0], []).append((folder, name))
        else:
            beside += 1
    listing = list_classes(
        store.url,
        list(files),
        beside,
        lambda name: (f"{folder}/{file}" for folder, file in sorted(files[name])),
        {},
        allow_empty_classes=allow_empty_classes,
    )
    source = StoredFiles(listing)
    source.store, source.objects = store, dict(objects)
    return source
