"""`LocalSet`: the data set of a folder on this machine: its shards, and its manifest, which is replaced at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from fastrecord._core import FastRecordError, Reader, crc32c, default_threads
from fastrecord.dataset.manifest import NAME, Manifest, ShardEntry, read_manifest
from fastrecord.files.publish.shards import FoundShard, Result, Show, open_in_order, or_raise, replaced_meanwhile
from fastrecord.files.publish.staging import Staging, write_through
from fastrecord.schema.classes import class_names

_PAGE = 4096


class LocalSet:
    """The data set of a folder.

    Attributes:
        where: The folder, absolute.
        lists: Whether `names` finds files.
    """

    lists = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.where = os.path.abspath(os.path.expanduser(os.fspath(folder)))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let one process at a time change the manifest; the lock ends with its process."""
        descriptor = os.open(self.where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks: `put` compares generations
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def read(self) -> Manifest | None:
        """Return the manifest; None without one.

        Raises:
            CorruptFileError: it is damaged. UnsupportedVersionError: a newer fastrecord has written it.
        """
        return read_manifest(self.where)

    def put(self, manifest: Manifest) -> None:
        """Replace the manifest durably; the caller is `changing` it.

        Raises:
            FastRecordError: the present one is not the one before.
        """
        path = os.path.join(self.where, NAME)
        with Staging(path, overwrite=True) as staging:
            write_through(staging.path, manifest.dump())
            now = self.read()
            if (0 if now is None else now.generation) != manifest.generation - 1:
                raise replaced_meanwhile(path)
            staging.finish()

    def names(self) -> list[str]:
        """Return the names of the .frec files, sorted, without hidden ones."""
        return sorted(name for name in os.listdir(self.where) if name.endswith(".frec") and not name.startswith("."))

    def open(self, names: Sequence[str], show: Show | None = None) -> Iterator[Result]:
        """Open shards side by side, none of them for longer than it takes; yield in order."""
        return open_in_order(lambda name: _open(os.path.join(self.where, name)), names, default_threads(), show)


def find_shard(path: str) -> FoundShard:
    """Open a shard that was just made, and return what a manifest says of it.

    Raises:
        CorruptFileError, OSError: it cannot be read.
    """
    return or_raise(_open(path))


def footer_checksum(path: str, size: int) -> int:
    """Return the CRC-32C of the footer that ends the first `size` bytes of a file, without the footer's own."""
    with open(path, "rb") as file:
        return crc32c(os.pread(file.fileno(), _PAGE, max(0, size - _PAGE))[:-4])


def _open(path: str) -> Result:
    try:
        with Reader(path) as reader:
            about = (reader.file_id, reader.commit, len(reader), reader.nbytes, reader.footer_crc)
            return FoundShard.of(ShardEntry(os.path.basename(path), *about, class_names(reader)), reader)
    except (FastRecordError, OSError) as err:
        return err
