"""`Output`: a file that is written in many small pieces and large ones."""

from __future__ import annotations

import os

_PIECES = 512
_BYTES = 4 << 20


class Output:
    """A new file. Pieces gather, and one system call writes many of them without a copy.

    Args:
        path: The file, which must not exist.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._path = path
        self._pieces: list[bytes | memoryview] = []
        self._pending = 0
        self._written = 0

    @property
    def size(self) -> int:
        """The size of the file with all pieces, in bytes."""
        return self._written + self._pending

    def write(self, *pieces: bytes | memoryview) -> None:
        """Append bytes; views must stay as they are until `flush`.

        Raises:
            OSError: writing failed.
        """
        self._pieces += pieces
        for piece in pieces:
            self._pending += len(piece)
        if self._pending >= _BYTES or len(self._pieces) >= _PIECES:
            self.flush()

    def flush(self) -> None:
        """Write all pieces.

        Raises:
            OSError: writing failed.
        """
        pieces = self._pieces
        while pieces:
            try:
                count = os.writev(self._file, pieces[:_PIECES])
            except OSError as err:
                raise type(err)(err.errno, err.strerror, self._path) from err
            self._written += count
            self._pending -= count
            done = 0
            while done < len(pieces) and count >= len(pieces[done]):
                count -= len(pieces[done])
                done += 1
            del pieces[:done]
            if count:
                pieces[0] = memoryview(pieces[0])[count:]

    def close(self) -> None:
        """Write what is left, sync the file to the disk, and close it.

        Raises:
            OSError: writing failed.
        """
        if self._file >= 0:
            self.flush()
            os.fsync(self._file)
            self.abort()

    def abort(self) -> None:
        """Close the file; pieces that were not written are lost."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._pieces.clear()
