"""`Folder`: files that are written below one folder, and the names that they may have."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Self

from fastrecord.errors import Code
from fastrecord.names import as_name

# Bytes of one name in a path, as in common file systems.
_NAME_MAX = 255
# Characters of a key shown in a message.
_SHOWN = 200
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def has_ending(key: str) -> bool:
    """Return whether a name has an extension."""
    return os.path.splitext(key)[1] != ""


def wrong_name(key: str) -> str | None:
    """Return why a key cannot name a file below a folder, or None."""
    # A backslash is an ordinary character here, but not on systems to which the files may be
    # copied.
    if "\0" in key or ".." in key.replace("\\", "/").split("/") or any(part in ("", ".") for part in key.split("/")):
        return "is not a path inside a folder"
    longest = max(len(part.encode()) for part in key.split("/"))
    if longest > _NAME_MAX:
        return f"has a name of {longest} bytes in it, where file systems take {_NAME_MAX}"
    return None


def shown(key: str) -> str:
    """Return a key for a message, shortened."""
    return repr(key) if len(key) <= _SHOWN else f"{key[:_SHOWN]!r}..."


class Folder:
    """Writes files below one folder, and never through a link to another place.

    Args:
        path: The folder; created if necessary.
        alike: Keys that some file system could treat as equal to another one.
        overwrite: Replace existing files.
    """

    def __init__(self, path: str, alike: set[str], *, overwrite: bool) -> None:
        self.path, self.alike, self.overwrite = path, alike, overwrite
        # Files written for names in `alike`: device and inode -> name.
        self.written: dict[tuple[int, int], str] = {}
        os.makedirs(path, exist_ok=True)
        self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # The last folder written to: keys of one class are adjacent.
        self.last: tuple[tuple[str, ...], int] = ((), os.dup(self.root))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.last[1])
        os.close(self.root)

    def write(self, key: str, name: str, data: bytes | memoryview) -> None:
        """Write a file, which appears under its name when it is complete.

        Args:
            key: The record's key.
            name: Path of the file in the folder.
            data: Its content.

        Raises:
            FileExistsError: the file exists.
            FastRecordError: a link is in the way, or the file system takes two keys for one name.
            OSError: writing failed.
        """
        path = as_name(name)
        *folders, file_name = path.split("/")
        at = self._open(tuple(folders))
        full = os.path.join(self.path, path)
        before = _status(file_name, at)
        if before is not None and key in self.alike and (before.st_dev, before.st_ino) in self.written:
            other = self.written[before.st_dev, before.st_ino]
            raise Code.KEY_AS_NAME.error(
                f"{full}: the file system takes it for {other!r}, the key of another record: name the files by number "
                "(`--numbered`), or extract to another file system"
            )
        if before is not None and not self.overwrite:
            raise FileExistsError(f"{full}: exists already: `--overwrite` replaces it, or choose another folder")
        # A file that replaces a private one is private, too, from its first byte on.
        kept = stat.S_IMODE(before.st_mode) & 0o777 if before is not None and stat.S_ISREG(before.st_mode) else None
        # A killed extract leaves this file; the next one that writes `name` replaces it.
        temporary = f".fastrecord-{file_name[:50]}.tmp"
        try:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            created = os.open(temporary, _NEW_FLAGS, 0o666 if kept is None else 0o600, dir_fd=at)
            with os.fdopen(created, "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if kept is not None:
                    os.fchmod(created, kept)
                if key in self.alike:
                    status = os.fstat(created)
                    self.written[status.st_dev, status.st_ino] = key
            os.replace(temporary, file_name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException as err:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=at)
            if isinstance(err, OSError):
                raise type(err)(err.errno, err.strerror, full) from err
            raise

    def _open(self, folders: tuple[str, ...]) -> int:
        if folders == self.last[0]:
            return self.last[1]
        here = os.dup(self.root)
        try:
            for i, folder in enumerate(folders):
                if _status(folder, here) is None:
                    os.mkdir(folder, dir_fd=here)
                try:
                    below = os.open(folder, _FOLDER_FLAGS, dir_fd=here)
                except OSError as err:
                    full = os.path.join(self.path, *folders[: i + 1])
                    raise Code.NOT_A_FOLDER.error(
                        f"{full}: is a link, or not a folder: nothing is written through it"
                    ) from err
                above, here = here, below
                os.close(above)
        except BaseException:
            os.close(here)
            raise
        before, self.last = self.last[1], (folders, here)
        os.close(before)
        return here


def _status(name: str, folder: int) -> os.stat_result | None:
    """Return the status of a name in a folder, links not followed; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
