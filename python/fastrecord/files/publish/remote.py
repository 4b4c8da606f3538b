"""`RemoteSet`: the data set of a folder in an object store, whose manifest is replaced by one conditional request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fastrecord._core import CorruptFileError, FastRecordError
from fastrecord.dataset.manifest import NAME, Manifest, folder_of
from fastrecord.dataset.shards import open_remote
from fastrecord.errors import Code
from fastrecord.files.publish.shards import FoundShard, Result, Show, open_in_order, replaced_meanwhile
from fastrecord.store.failures import ON_THE_WAY
from fastrecord.store.requests import ATTEMPTS, PARALLEL, RemoteFolder, asked_until_good, md5_etag, submit
from fastrecord.store.shard_source import CachedFolder
from fastrecord.store.store import Store


class RemoteSet:
    """The data set of a folder in a store.

    Attributes:
        folder: The folder.
        where: Its URL.
        lists: Whether `names` finds files; a web server lists nothing.
    """

    def __init__(self, folder: RemoteFolder) -> None:
        self.folder, self.where, self.lists = folder, folder.url, not folder.url.is_web
        self._etag: str | None = None

    @classmethod
    def of(cls, url: str, store: Store | None) -> RemoteSet:
        """Return the data set of a URL: of its folder or its manifest."""
        return cls(RemoteFolder.of(folder_of(url), store))

    def changing(self) -> AbstractContextManager[None]:
        """Do nothing: `put` finds out whether another process has changed the manifest."""
        return nullcontext()

    def read(self) -> Manifest | None:
        """Return the manifest; None without one. `put` replaces no other one.

        Raises:
            CorruptFileError: it is damaged. FastRecordError: the store does not answer.
        """

        def ask() -> Manifest:
            found = self.folder.get(NAME)
            self._etag = found.etag
            return Manifest.parse(bytes(found.data), self.folder.where(NAME))

        try:
            return asked_until_good(ask)
        except FileNotFoundError:
            self._etag = None
            return None

    def put(self, manifest: Manifest) -> None:
        """Replace the manifest that was read, or write the first one.

        Raises:
            FastRecordError: the present one has another ETag; the store does not answer.
        """
        folder = self.folder
        mode: Any = "create" if manifest.generation == 1 else {"e_tag": self._etag}
        try:
            for _ in range(ATTEMPTS):
                folder.put(NAME, manifest.dump(), mode=mode)
                found = folder.get(NAME)
                with suppress(CorruptFileError):
                    now = Manifest.parse(bytes(found.data), folder.where(NAME))
                    if now == manifest or now.generation > manifest.generation:
                        return  # it is this one, or another has followed it
                mode = {"e_tag": found.etag}
            raise not_what_was_sent(folder.where(NAME))
        except FileExistsError:
            if self.read() == manifest:
                return  # an answer was lost, and the request made again
            raise replaced_meanwhile(folder.where(NAME)) from None

    def names(self) -> list[str]:
        """Return the names of the .frec files, sorted.

        Raises:
            FastRecordError: the store does not answer, or is a web server, which lists nothing.
        """
        return [name for name, _ in self.folder.list() if name.endswith(".frec")]

    def open(self, names: Sequence[str], show: Show | None = None) -> Iterator[Result]:
        """Open shards side by side, none of them for longer than it takes; yield in order."""
        source = CachedFolder(self.folder)

        def find(name: str) -> Result:
            try:
                entry, reader, _ = open_remote(source, name)
                with reader:
                    return FoundShard.of(entry, reader)
            except (FastRecordError, OSError) as error:
                return error

        return open_in_order(find, names, PARALLEL // 2, show)  # each makes two requests at once


def send(folder: RemoteFolder, name: str, path: str, *, parallel: int = PARALLEL) -> None:
    """Send a file, and compare what has come with it.

    Raises:
        FastRecordError: it differs each time, and has been deleted. The store does not answer.
    """
    known = submit(md5_etag, path)
    for _ in range(ATTEMPTS):
        folder.put(name, Path(path), parallel=parallel)
        if folder.is_copy(name, path, known.result()):
            return
    folder.delete([name])
    raise not_what_was_sent(folder.where(name))


def not_what_was_sent(where: str) -> Exception:
    """Return the error of an object that differs from what was sent, each time."""
    return Code.STORE.error(f"{where}: is not what was sent, {ATTEMPTS} times: {ON_THE_WAY}")
