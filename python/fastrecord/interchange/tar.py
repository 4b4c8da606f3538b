"""`TarReader` and `tar_header`: the members of a tar archive, in order.

Formats: ustar and the pax interchange format of POSIX.1 (IEEE Std 1003.1-2017, "pax"), and GNU
tar's long names ("Basic Tar Format" in its manual). Common headers are read here; rare ones are
left to `tarfile.TarInfo.frombuf`.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from types import TracebackType
from typing import Any, Self

import numpy as np

from fastrecord.interchange.libraries import library

BLOCK = 512
# Size of a read. A run of records keeps its blocks alive.
_READ = 4 << 20
# A read that only passes over payloads.
_SKIPPED = 64 << 10
# Long names and pax headers are kept in memory.
_EXTENDED_MAX = 1 << 20
_ZEROS = bytes(BLOCK)
_REGULAR = frozenset([b"0", b"\0", b"7"])
_PAX_RECORD = re.compile(rb"(\d+) ([^=]+)=")
COMPRESSED = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}


class DamageError(Exception):
    """An archive cannot be read further; the message says why, without the place."""


class TarReader:
    """Reads the members of one archive, one after the other.

    Args:
        path: The archive; a compressed one by its suffix: .gz, .tgz, .bz2, .xz, .zst.
        marker: Whether an archive must end with a block of zeros, as POSIX demands: without it, one
            that was cut between two members looks whole.

    Attributes:
        name: Path of the current member; bytes that are not UTF-8 are surrogate escapes.
        kind: Type flag of the current member; b"0" for all regular files.
        link: Where the current member leads, if it is a link.
        size: Size of the current member's content in bytes.
    """

    def __init__(self, path: str, *, marker: bool = True) -> None:
        self.name = self.link = ""
        self.kind, self.size = b"", 0
        self._marker = marker
        self._file = _opened(path)
        compressed = os.path.splitext(path)[1].lower() in COMPRESSED
        self._total = None if compressed else os.stat(self._file.fileno()).st_size
        self._block: memoryview = memoryview(b"")
        self._at = 0
        # Position in the archive at which `_block` ends.
        self._read = 0
        # Bytes from `_at` on that belong to the current member.
        self._left = 0
        # Whether payloads are wanted: else reads are short, because most bytes are passed over.
        self._taking = True
        self._defaults: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def next(self) -> bool:
        """Go to the next member; return False at the end.

        Raises:
            DamageError: the archive is damaged or cut short.
        """
        self._pass_over(self._left)
        self._left = 0
        special: dict[str, str] = {}
        while True:
            position = self._read - len(self._block) + self._at
            if not self._fill(BLOCK):
                if len(self._block) > self._at:
                    raise DamageError(f"the archive ends within the header at byte {position:,}")
                if self._marker:
                    raise DamageError(
                        f"the archive ends at byte {position:,} without the block of zeros that marks its end: it was "
                        "cut short, or written so (then `--set end_marker=optional`)"
                    )
                return False
            header = bytes(self._block[self._at : self._at + BLOCK])
            self._at += BLOCK
            if header == _ZEROS:
                return False
            try:
                self._parse(header)
            except (tarfile.HeaderError, ValueError) as err:
                raise DamageError(f"the header at byte {position:,} is damaged ({err})") from err
            if self.kind in b"xgLK":
                body = self._extended(position)
                if self.kind == b"L":
                    special["path"] = body.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif self.kind == b"K":
                    special["linkpath"] = body.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif self.kind == b"x":
                    special |= _pax(body, position)
                else:
                    self._defaults |= _pax(body, position)
                continue
            self._settle(self._defaults | special if self._defaults else special, position)
            return True

    def data(self) -> memoryview:
        """Return the content of the current member, in memory that stays as it is.

        Raises:
            DamageError: the archive is cut short.
        """
        self._taking = True
        size = self.size
        if not self._fill(size):
            self._short()
        at = self._at
        self._at = at + size
        self._left -= size
        return self._block[at : at + size]

    def skip(self) -> None:
        """Note that the content of the current member is not wanted."""
        self._taking = False

    def _parse(self, header: bytes) -> None:
        """Read name, kind and size of a header.

        Raises:
            tarfile.HeaderError, ValueError: it is damaged.
        """
        checksum = header[148:156]
        # Adler-32 begins with the sum of all bytes, modulo 65521: a fast way to a checksum that is
        # a sum. The field itself counts as eight spaces.
        text = checksum.rstrip(b"\0 ")
        wanted = (int(text, 8) if text else 0) + sum(checksum) - 255
        size = header[124:136].rstrip(b"\0 ")
        plain = size.isdigit() and header[257:263] in (b"ustar\0", b"ustar ") and header[156:157] != b"S"
        if wanted % 65521 != zlib.adler32(header) & 0xFFFF or not plain:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            self.name, self.kind, self.size, self.link = info.name, info.type, info.size, info.linkname
            if self.size < 0:
                raise ValueError(f"a size of {self.size}")
        else:
            name = header[:100].partition(b"\0")[0]
            if header[345] and header[262] == 0:
                name = header[345:500].partition(b"\0")[0] + b"/" + name
            self.name = name.decode("utf-8", "surrogateescape")
            self.kind, self.size = header[156:157], int(size, 8)
            if header[157]:
                self.link = header[157:257].partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if self.kind in _REGULAR:
            self.kind = b"5" if self.name.endswith("/") else b"0"

    def _settle(self, special: dict[str, str], position: int) -> None:
        """Apply extended headers to the current member, and set how many bytes it has."""
        if special:
            self.name = special.get("path", self.name)
            self.link = special.get("linkpath", self.link)
            if "size" in special:
                if not special["size"].isdigit():
                    raise DamageError(f"the pax header before byte {position:,} has the size {special['size']!r}")
                self.size = int(special["size"])
            if any(name.startswith("GNU.sparse.") for name in special):
                self.kind = b"S"
        if self.kind in b"123456":
            self.size = 0
        self._left = -(-self.size // BLOCK) * BLOCK
        if self._total is not None and self._read - len(self._block) + self._at + self.size > self._total:
            self._short()

    def _short(self) -> None:
        raise DamageError(f"the archive ends within {self.name!r}, which has {self.size:,} bytes")

    def _extended(self, position: int) -> bytes:
        if self.size > _EXTENDED_MAX:
            raise DamageError(f"the extended header at byte {position:,} has {self.size:,} bytes")
        padded = -(-self.size // BLOCK) * BLOCK
        if not self._fill(padded):
            raise DamageError(f"the archive ends within the extended header at byte {position:,}")
        body = bytes(self._block[self._at : self._at + self.size])
        self._at += padded
        return body

    def _pass_over(self, count: int) -> None:
        """Go `count` bytes on."""
        inside = min(count, len(self._block) - self._at)
        self._at += inside
        count -= inside
        if count and self._total is not None:
            # The padding of the last member may be missing: `next` reports what is.
            self._file.seek(count, os.SEEK_CUR)
            self._read += count
            self._block, self._at = memoryview(b""), 0
            return
        while count and self._fill(1):
            step = min(count, len(self._block) - self._at)
            self._at += step
            count -= step

    def _fill(self, count: int) -> bool:
        """Have `count` bytes in the block from `_at` on; return False if the archive has fewer."""
        have = len(self._block) - self._at
        if have >= count:
            return True
        if self._total is not None and self._total - self._read < count - have:
            return False
        # A compressed archive may promise any size: memory grows with what is there.
        while have < count:
            step = _READ if self._taking else _SKIPPED
            wanted = max(step, count - have if self._total is not None else min(count - have, 2 * have))
            if self._total is not None:
                wanted = min(wanted, self._total - self._read)
            block = np.empty(have + wanted, np.uint8).data
            block[:have] = self._block[self._at :]
            got = _read_into(self._file, block[have:])
            self._block, self._at = block[: have + got], 0
            self._read += got
            have += got
            if got == 0:
                return False
        return True


def _read_into(file: Any, target: memoryview) -> int:
    try:
        return int(file.readinto(target))
    except (EOFError, ValueError, zlib.error) as err:
        raise DamageError(f"the compressed data is damaged or cut short ({err})") from err
    except OSError as err:
        if err.errno is not None:
            raise
        raise DamageError(f"the compressed data is damaged ({err})") from err
    except Exception as err:
        # lzma and zstandard have errors of their own.
        if type(err).__module__.partition(".")[0] not in ("_lzma", "lzma", "zstd", "zstandard"):
            raise
        raise DamageError(f"the compressed data is damaged ({err})") from err


def _opened(path: str) -> Any:
    module = COMPRESSED.get(os.path.splitext(path)[1].lower())
    if module is None:
        return open(path, "rb", buffering=0)
    return library(module, "zstd", f"{path}: zstd").open(path, "rb")


def _pax(body: bytes, position: int) -> dict[str, str]:
    """Return the entries of a pax header: length, name and value of each, one per line."""
    entries, at = {}, 0
    while at < len(body) and body[at]:
        found = _PAX_RECORD.match(body, at)
        end = at + int(found[1]) if found is not None and len(found[1]) < 10 else 0
        if found is None or not found.end() < end <= len(body) or body[end - 1] != 0x0A:
            raise DamageError(f"the pax header at byte {position:,} is damaged")
        entries[found[2].decode("utf-8", "replace")] = body[found.end() : end - 1].decode("utf-8", "surrogateescape")
        at = end
    return entries


_MIDDLE = b"0000644\0" + b"0000000\0" * 2
_TAIL = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + b"0000000\0" * 2 + bytes(155 + 12)
_FIXED = sum(_MIDDLE) + sum(b"00000000000\0") + sum(_TAIL) + sum(b" " * 8)


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a regular file: ustar, or pax if the name is long or not ASCII.

    Owner and times are zero: the same contents give the same archive.
    """
    encoded = name.encode()
    if len(encoded) > 100 or len(encoded) != len(name) or size >= 1 << 33:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = size, 0
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_FIXED + sum(encoded) + sum(digits))
    return encoded.ljust(100, b"\0") + _MIDDLE + digits + b"00000000000\0" + checksum + _TAIL
