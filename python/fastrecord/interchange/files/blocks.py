"""`Blocks`: a file, compressed or not, that is read in order and in large blocks."""

from __future__ import annotations

import os
import zlib
from types import TracebackType
from typing import Any, Self

import numpy as np

from fastrecord.interchange.libraries import library
from fastrecord.interchange.source import DamageError
from fastrecord.interchange.stored import is_stored, open_file, size_of

# Size of a read. A run of records keeps its blocks alive.
_READ = 4 << 20
# A read that only passes over values.
_SKIPPED = 64 << 10
COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}


class Blocks:
    """Reads a file in order. Values are views of blocks, which are never used again.

    Args:
        path: The file.
        module: What decompresses it: "gzip", "bz2", "lzma" or "zstandard"; "" for a plain file;
            None: what its suffix says.

    Attributes:
        short: Whether reads are short, because most bytes are passed over.
    """

    def __init__(self, path: str, module: str | None = None) -> None:
        module = COMPRESSED.get(os.path.splitext(path)[1].lower(), "") if module is None else module
        self.short = False
        self._file = _opened(path, module)
        # A decompressor returns what it has before it comes to damage, one piece at a time.
        self._next = self._file.readinto1 if module else self._file.readinto
        self._total = size_of(self._file) if not module else None
        self._block: memoryview = memoryview(b"")
        self._at = 0
        self._damage = ""
        # Position in the file at which `_block` ends.
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def finish(self) -> None:
        """Read a compressed file to its end, where its checksum is.

        Raises:
            DamageError: the compressed data is damaged or cut short.
        """
        while self._total is None and self.fill(1):
            self._at = len(self._block)

    @property
    def position(self) -> int:
        """Number of bytes before the next one, in the decompressed file."""
        return self._read - len(self._block) + self._at

    @property
    def ahead(self) -> memoryview:
        """The bytes that have been read and not taken yet."""
        return self._block[self._at :]

    def holds(self, count: int) -> bool:
        """Return False if it is known that the file ends before `count` more bytes."""
        return self._total is None or self.position + count <= self._total

    def fill(self, count: int) -> bool:
        """Read until at least `count` bytes are ahead; return False if the file has fewer.

        Raises:
            DamageError: the compressed data is damaged.
        """
        have = len(self._block) - self._at
        if have >= count:
            return True
        if self._total is not None and self._total - self._read < count - have:
            count = have + self._total - self._read
            self._extend(have, count)
            return False
        return self._extend(have, count)

    def _extend(self, have: int, count: int) -> bool:
        while have < count:
            wanted = count - have
            if self._total is not None:
                wanted = min(max(wanted, _SKIPPED if self.short else _READ), self._total - self._read)
            else:
                # A compressed file may promise any size: memory grows with what is there.
                wanted = max(min(wanted, 2 * have), _READ)
            block = np.empty(have + wanted, np.uint8).data
            block[:have] = self._block[self._at :]
            got = self._read_into(block[have:])
            self._block, self._at = block[: have + got], 0
            self._read += got
            have += got
            if got == 0:
                return False
        return True

    def _read_into(self, target: memoryview) -> int:
        """Fill memory; stop at the end, and before damage, which the next call reports."""
        count = 0
        while count < len(target):
            got = 0 if self._damage else self._read_some(target[count:])
            count += got
            if got == 0:
                break
        if count == 0 and self._damage:
            raise DamageError(self._damage)
        return count

    def _read_some(self, target: memoryview) -> int:
        try:
            return int(self._next(target))
        except (EOFError, ValueError, zlib.error) as err:
            self._damage = f"the compressed data is damaged or cut short ({err})"
        except OSError as err:
            if err.errno is not None:
                raise
            self._damage = f"the compressed data is damaged ({err})"
        except Exception as err:
            # lzma and zstandard have errors of their own.
            if type(err).__module__.partition(".")[0] not in ("_lzma", "lzma", "zstd", "zstandard"):
                raise
            self._damage = f"the compressed data is damaged ({err})"
        return 0

    def take(self, count: int) -> memoryview:
        """Return the next bytes, which `fill` has read, in memory that stays as it is."""
        at = self._at
        self._at = at + count
        return self._block[at : self._at]

    def skip(self, count: int) -> None:
        """Go on by `count` bytes; the file may end before."""
        inside = min(count, len(self._block) - self._at)
        self._at += inside
        count -= inside
        if count and self._total is not None:
            count = min(count, self._total - self._read)
            self._file.seek(count, os.SEEK_CUR)
            self._read += count
            self._block, self._at = memoryview(b""), 0
            return
        while count and self.fill(1):
            step = min(count, len(self._block) - self._at)
            self._at += step
            count -= step


def _opened(path: str, module: str) -> Any:
    if not module:
        return open_file(path)
    return library(module, "zstd", f"{path}: zstd").open(open_file(path) if is_stored(path) else path, "rb")
