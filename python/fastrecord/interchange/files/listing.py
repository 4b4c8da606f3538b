"""`FileSource`: records that are files of folders; `files_below` finds them, in an order that is always the same."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fastrecord.errors import Code
from fastrecord.interchange.source import Source
from fastrecord.names import as_name, as_text

UNREADABLE = "cannot be read"
"""Begins the reason for a file that the system does not let us read, so that its type is unknown."""
BAD_WAY_OUT = "repair or remove it, or leave out all that are bad with `--bad-files skip`"


class FileSource(Source):
    """Files as records.

    Attributes:
        keys: Path of each one relative to `home`, with `/` between its parts; unique, valid UTF-8.
        bad: Key -> reason for files that are known to be unreadable (broken link, pipe, socket, device).
    """

    home: str
    keys: list[str]
    bad: dict[str, str]

    def count(self) -> int:
        """Return the number of records."""
        return len(self.keys)

    def stored_bytes(self, number: int) -> int:
        """Return the unmodified size of a record's values without its key, in bytes.

        Raises:
            OSError: it cannot be read.
        """
        raise NotImplementedError

    def sizes(self) -> Iterator[int]:
        """Yield the size of each record, with its key."""
        for number, key in enumerate(self.keys):
            try:
                size = self.stored_bytes(number)
            except OSError:
                size = 0  # reading it later reports the error
            yield size + len(key.encode())

    def refuse_bad(self) -> None:
        """Raise the error for the first known bad file."""
        for number, key in enumerate(self.keys if self.bad else ()):
            if key in self.bad:
                raise Code.BAD_FILE.error(f"{self.place(number)}: {self.bad[key]}", way_out=BAD_WAY_OUT)


def path_of(folder: str, key: str) -> str:
    """Return the path to open for a key."""
    return os.path.join(folder, *as_name(key).split("/"))


def files_below(source: str, folder: str, bad: dict[str, str]) -> Iterator[str]:
    """Yield the paths of all files in a folder.

    They have the order of `sorted(os.walk(folder, followlinks=True))`.

    Args:
        source: Base of the paths, which have `/` between their parts.
        folder: The folder in it; empty for `source` itself.
        bad: Path -> reason for files that are known to be unreadable is added here.

    Raises:
        FastRecordError: a link leads back to a folder above it; a name is not valid UTF-8.
        OSError: a folder cannot be read; the error has its name.
    """
    folders: list[tuple[str, list[str]]] = []
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(folder, frozenset())]
    while pending:
        folder, above = pending.pop()
        path = path_of(source, folder) if folder else source
        status = os.stat(path)
        here = (status.st_dev, status.st_ino)
        if here in above:
            raise Code.LINK_LOOP.error(f"{path}: the link leads back to a folder above it: remove the link")
        names = []
        with os.scandir(path) as entries:
            for entry in entries:
                key = _key(folder, utf8(entry.name, path))
                try:
                    if entry.is_dir():
                        pending.append((key, above | {here}))
                        continue
                    if not entry.is_file():
                        broken = entry.is_symlink() and not os.path.exists(entry.path)
                        bad[key] = "broken link" if broken else "not a regular file"
                except OSError as err:
                    bad[key] = f"{UNREADABLE}: {err.strerror or err}"
                names.append(as_text(entry.name))
        names.sort()
        folders.append((folder, names))
    folders.sort()
    for folder, names in folders:
        for name in names:
            yield _key(folder, name)


def _key(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def utf8(name: str, folder: str) -> str:
    """Return a name from the system as text.

    Raises:
        FastRecordError: it is not valid UTF-8.
    """
    try:
        return as_text(name)
    except UnicodeDecodeError:
        raw = os.fsencode(os.path.join(folder, name))
        raise Code.FILE_NAME.error(
            f"{raw!r}: the file name is not valid UTF-8, so it cannot be a key: rename it"
        ) from None
