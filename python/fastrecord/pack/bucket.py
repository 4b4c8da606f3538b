"""`list_bucket`: the files of class folders in an object store, brought a few at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, ClassVar, Self

from fastrecord.pack.listing import UNREADABLE, Listing, list_classes
from fastrecord.store.requests import Store, at_once


@dataclass(frozen=True, slots=True)
class BucketListing(Listing):
    """Files of an object store, in packing order. `source` is a URL.

    Attributes:
        store: The folder that holds the class folders.
        sizes: Key -> bytes.
        brought: Position -> file descriptor of the files that are at hand.
    """

    # Each takes a file descriptor, of which a process often has 1,024.
    together: ClassVar[int] = 256

    store: Store = field(kw_only=True)
    sizes: dict[str, int] = field(default_factory=dict)
    brought: dict[int, int] = field(default_factory=dict)

    def path(self, position: int) -> str:
        """Return the path to open for the file at `position`, which is at hand."""
        return f"/proc/self/fd/{self.brought[position]}"

    def describe(self, position: int) -> str:
        """Return the URL of the file at `position`."""
        return self.store.where(self.keys[position])

    def cut(self, start: int, stop: int) -> Self:
        """Return some of the files."""
        part = Listing.cut(self, start, stop)
        return replace(part, sizes={key: self.sizes[key] for key in part.keys})

    def stored_bytes(self, position: int) -> int:
        """Return the size of the object."""
        return self.sizes[self.keys[position]]

    @contextmanager
    def at_hand(self, positions: range) -> Iterator[None]:
        """Bring files while the context lasts; ones that are gone are added to `bad`.

        Raises:
            FastRecordError: the store refuses one, or does not answer.
            OSError: a temporary file cannot be written.
        """
        with ExitStack() as stack:
            # Without names: nothing is left of them, even if this process is killed.
            files = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in positions]
            try:
                at_once(*(partial(self._bring, i, file) for i, file in zip(positions, files, strict=True)))
                yield
            finally:
                self.brought.clear()

    def _bring(self, position: int, file: IO[bytes]) -> None:
        key = self.keys[position]
        try:
            data = memoryview(self.store.get(key).data)
        except FileNotFoundError as err:
            self.bad[key] = f"{UNREADABLE}: {err.strerror}"
            return
        while data:
            data = data[file.write(data) :]
        self.brought[position] = file.fileno()


def list_bucket(store: Store, *, allow_empty_classes: bool = False) -> BucketListing:
    """List class folders of an object store, in the order in which `list_folder` lists a folder.

    Args:
        store: The folder that holds them.
        allow_empty_classes: As in `list_folder`.

    Raises:
        FileNotFoundError: there is no such bucket.
        FastRecordError: as in `list_folder`; the store does not answer.
    """
    classes, objects = store.tree()
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
    found = list_classes(
        store.url,
        list(files),
        beside,
        lambda name: (f"{folder}/{file}" for folder, file in sorted(files[name])),
        {},
        allow_empty_classes=allow_empty_classes,
    )
    return BucketListing(
        found.source, found.keys, found.labels, found.classes, ignored=found.ignored, store=store, sizes=dict(objects)
    )
