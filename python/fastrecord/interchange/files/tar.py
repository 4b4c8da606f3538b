"""`TarReader` and `tar_header`: the members of a tar archive, in order.

Formats: ustar and the pax interchange format of POSIX.1 (IEEE Std 1003.1-2017, "pax"), and GNU
tar's long names ("Basic Tar Format" in its manual). Common headers are read here; rare ones are
left to `tarfile.TarInfo.frombuf`.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from types import TracebackType
from typing import Self

from fastrecord.interchange.files.blocks import Blocks
from fastrecord.interchange.source import DamageError

BLOCK = 512
# Long names and pax headers are kept in memory.
_EXTENDED_MAX = 1 << 20
_COPIED = 16 << 10
_ZEROS = bytes(BLOCK)
_REGULAR = frozenset([b"0", b"\0", b"7"])
_PAX_RECORD = re.compile(rb"(\d+) ([^=]+)=")


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
        self._blocks = Blocks(path)
        # Bytes of the current member that have not been taken, with its padding.
        self._left = 0
        self._defaults: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks.__exit__(kind, value, trace)

    def next(self) -> bool:
        """Go to the next member; return False at the end.

        Raises:
            DamageError: the archive is damaged or cut short.
        """
        blocks = self._blocks
        blocks.skip(self._left)
        self._left = 0
        special: dict[str, str] = {}
        while True:
            position = blocks.position
            if not blocks.fill(BLOCK):
                if blocks.ahead:
                    raise DamageError(f"the archive ends within the header at byte {position:,}")
                if self._marker:
                    raise DamageError(
                        f"the archive ends at byte {position:,} without the block of zeros that marks its end: it was "
                        "cut short, or written so (then `--set end_marker=optional`)"
                    )
                return False
            header = bytes(blocks.take(BLOCK))
            if header == _ZEROS:
                blocks.finish()
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
        self._blocks.short = False
        if not self._blocks.fill(self.size):
            self._short()
        self._left -= self.size
        data = self._blocks.take(self.size)
        # A view keeps its block: where most members are passed over, small ones would keep far more
        # than they take.
        return data if self.size > _COPIED else memoryview(bytes(data))

    def skip(self) -> None:
        """Note that the content of the current member is not wanted."""
        self._blocks.short = True

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
            # A name may be cut after a slash, where a header before it has the whole one.
            self.kind = b"5" if self.kind == b"\0" and self.name.endswith("/") else b"0"

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
        if not self._blocks.holds(self.size):
            self._short()

    def _short(self) -> None:
        raise DamageError(f"the archive ends within {self.name!r}, which has {self.size:,} bytes")

    def _extended(self, position: int) -> bytes:
        if self.size > _EXTENDED_MAX:
            raise DamageError(f"the extended header at byte {position:,} has {self.size:,} bytes")
        padded = -(-self.size // BLOCK) * BLOCK
        if not self._blocks.fill(padded):
            raise DamageError(f"the archive ends within the extended header at byte {position:,}")
        return bytes(self._blocks.take(padded)[: self.size])


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
