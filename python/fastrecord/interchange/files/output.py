"""`Output`: a file that is written in many small pieces and large ones."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from typing import Any

from fastrecord.interchange.destination import Destination
from fastrecord.interchange.files.blocks import COMPRESSED
from fastrecord.interchange.libraries import library

# Images and other values that are compressed already gain nothing by more.
_GZIP_LEVEL = 1
_PIECES = 512
_BYTES = 4 << 20


class Output:
    """A new file. Pieces gather, and one system call writes many of them without a copy.

    Args:
        path: The file, which must not exist. Its suffix says whether it is compressed: .gz, .tgz,
            .bz2, .xz, .zst.

    Raises:
        FastRecordError: zstd is not installed.
        OSError: the file cannot be made.
    """

    def __init__(self, path: str) -> None:
        module = COMPRESSED.get(os.path.splitext(path)[1].lower())
        compressor = library(module, "zstd", f"{path}: zstd") if module else None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._path = path
        self._pieces: list[bytes | memoryview] = []
        self._pending = 0
        self._written = 0
        self._stream: Any = None
        self._below = os.fdopen(self._file, "wb", closefd=False) if module else None
        if module == "gzip":
            # The same contents give the same file: without a name and a time.
            self._stream = gzip.GzipFile("", "wb", _GZIP_LEVEL, self._below, 0)
        elif compressor is not None:
            self._stream = compressor.open(self._below, "wb")

    @property
    def size(self) -> int:
        """The size of all pieces, in bytes, as they are before compression."""
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
        if self._stream is not None:
            for piece in pieces:
                self._stream.write(piece)
            self._written += self._pending
            self._pending = 0
            pieces.clear()
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
        """Write what is left, and close the file.

        Raises:
            OSError: writing failed.
        """
        if self._file >= 0:
            self.flush()
            self._end_stream()
            self.abort()

    def abort(self) -> None:
        """Close the file; pieces that were not written are lost."""
        if self._file >= 0:
            with suppress(OSError):
                self._end_stream()
            os.close(self._file)
            self._file = -1
        self._pieces.clear()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._below is not None:
            stream.close()
            self._below.close()


class OutputDestination(Destination):
    """A destination that writes each file in order."""

    def begin(self, path: str) -> None:
        """Begin a file."""
        self._out = Output(path)

    def close(self) -> None:
        """Close the file."""
        self._out.close()

    def abort(self) -> None:
        """Close the file as it is."""
        self._out.abort()
