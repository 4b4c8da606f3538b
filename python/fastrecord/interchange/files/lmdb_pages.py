"""`Pages`: reads the file of an LMDB environment page by page.

LMDB maps its file and trusts what it finds there: a file that is cut short, or a damaged length in
it, ends the process with SIGBUS. Here each page comes by a system call and is checked. The format is
the one of LMDB 0.9 (version 1), as its source describes it: pages of a B+ tree.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fastrecord.interchange.source import DamageError

MAGIC = struct.pack("<I", 0xBEEFC0DE)
# Where the magic stands in a file: after the header of its first page.
MAGIC_AT = 16

_TREE = struct.Struct("<4xH26xQQ")
_META = 152
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _LONG = 1, 2, 4
_BIG, _TREE_NODE = 1, 2
_DUPSORT = 4
_DEPTH = 32
_DUPLICATED = "it keeps several values for one key (dupsort): write them to a database with a key for each"
_NONE = (1 << 64) - 1


# A key, the first byte of its value in the file, the size of that, and whether it is another database.
Entry: TypeAlias = tuple[bytes, int, int, bool]


class Pages:
    """The pages of an LMDB file, opened for reading.

    Args:
        path: The file.
        database: Name of a database in it; None for the main one.

    Attributes:
        count: The number of entries.

    Raises:
        DamageError: it is not a file of LMDB 0.9, is damaged, has no such database, or one with
            several values per key.
        OSError: it cannot be read.
    """

    def __init__(self, path: str, database: str | None = None) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            # The page that was read last.
            self._number, self._page = -1, b""
            self._walk(self._newest())
            if database is not None:
                _, (_, at, size, is_tree) = self.find(database.encode()) or (0, (b"", 0, 0, False))
                if not is_tree:
                    raise DamageError(f"it holds no database {database!r}")
                self._walk(self.read(at, size))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self, key: bytes) -> tuple[int, Entry] | None:
        """Return the number of a key among all keys, and its entry; None if it is not there.

        Raises:
            DamageError: its page is damaged.
        """
        leaf = max(bisect_right(self._keys, key) - 1, 0)
        entries = self._entries(self._leaves[leaf]) if self._keys else ()
        return next(((self._firsts[leaf] + at, each) for at, each in enumerate(entries) if each[0] == key), None)

    def entries(self, start: int) -> Iterator[Sequence[Entry]]:
        """Yield the entries from a number on in the order of the keys, page by page.

        Raises:
            DamageError: a page is damaged or missing. All entries before it have been yielded.
        """
        for leaf in range(max(bisect_right(self._firsts, start) - 1, 0), len(self._leaves)):
            if self._broken is not None and self._firsts[leaf] >= self._good:
                break
            yield self._entries(self._leaves[leaf])[max(start - self._firsts[leaf], 0) :]
        if self._broken is not None:
            raise self._broken

    def read(self, at: int, size: int) -> memoryview:
        """Return a value, by its first byte and its size.

        Raises:
            DamageError: its pages are damaged or missing.
        """
        number, inside = divmod(at, self.page_size)
        if number == self._number:
            return memoryview(self._page)[inside : inside + size]
        if inside != _PAGE.size:
            return memoryview(self._pread(size, at))
        # No entry begins there, so the value has pages of its own.
        data = self._pread(inside + size, at - inside)
        own, _, flags, pages = _OVERFLOW.unpack_from(data)
        if own != number or not flags & _LONG or pages * self.page_size < len(data):
            raise DamageError(f"page {number:,} does not begin a long value")
        return memoryview(data)[inside:]

    # Pages

    def _newest(self) -> bytes:
        """Set the size of pages and the number of the last one; return the main database."""
        head = os.pread(self._file.fileno(), 4096, 0)
        if head[MAGIC_AT : MAGIC_AT + 4] != MAGIC:
            raise DamageError(f"not an LMDB file: it begins with {head[:24]!r}")
        self.page_size = int.from_bytes(head[40:44], "little")
        if not 256 <= self.page_size <= 65536 or self.page_size & (self.page_size - 1):
            raise DamageError(f"it claims pages of {self.page_size} bytes")
        metas = [os.pread(self._file.fileno(), _META, at) for at in (0, self.page_size)]
        metas = [data for data in metas if len(data) == _META and data[MAGIC_AT : MAGIC_AT + 4] == MAGIC]
        if not metas:
            raise DamageError("its first pages are missing")
        for version in {int.from_bytes(data[20:24], "little") for data in metas} - {1}:
            raise DamageError(f"it has version {version} of LMDB's format, and the one that is known is 1")
        newest = max(metas, key=lambda data: int.from_bytes(data[144:], "little"))  # the number of its transaction
        self._last = int.from_bytes(newest[136:144], "little")
        return newest[88:136]

    def _walk(self, tree: bytes | memoryview) -> None:
        """Find the pages of entries of a tree: their numbers, first keys, and numbers of their first entries."""
        flags, self.count, root = _TREE.unpack(tree)
        if self.count > self._size // _NODE.size:
            raise DamageError(f"it claims {self.count:,} entries")
        if flags & _DUPSORT:
            raise DamageError(_DUPLICATED)
        self._keys = list[bytes]()
        self._leaves, self._firsts = array("Q"), array("Q")
        # What is wrong, and the number of entries before it.
        self._broken: DamageError | None = None
        self._good = found = seen = 0
        todo = [(root, 0)] if root != _NONE else []
        while todo:
            number, depth = todo.pop()
            try:
                page, flags, places = self._read_page(number)
                seen += 1
                if depth > _DEPTH or seen > self._size // self.page_size:
                    todo = []
                    raise DamageError("its pages form a circle, or are used twice")
                if flags & _BRANCH:
                    todo += [(self._child(page, at), depth + 1) for at in reversed(places)]
                elif places:
                    self._keys.append(self._entries(number, 1)[0][0])
                    self._leaves.append(number)
                    self._firsts.append(found)
                    found += len(places)
            except DamageError as err:
                if self._broken is None:
                    self._broken, self._good = err, found
        if found != self.count and self._broken is None:
            self._broken, self._good = DamageError(f"{found:,} of its {self.count:,} entries are there"), found

    def _pread(self, size: int, at: int) -> bytes:
        # A length that the file claims must not decide about memory.
        data = os.pread(self._file.fileno(), size, at) if at + size <= self._size else b""
        if len(data) < size:
            raise DamageError(f"page {at // self.page_size:,} of {self._last + 1:,} is not there")
        return data

    def _read_page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Return a page, its flags, and where its nodes are."""
        if number != self._number:
            self._number, self._page = number, self._pread(self.page_size, number * self.page_size)
        own, _, flags, lower, upper = _PAGE.unpack_from(self._page)
        good = own == number and flags & 0xF in (_BRANCH, _LEAF) and not flags & 0x60
        if not good or not 18 <= lower <= upper <= self.page_size:
            raise DamageError(f"page {number:,} is not a page of entries")
        places = struct.unpack_from(f"<{(lower - 16) // 2}H", self._page, 16)
        if max(places) + _NODE.size > self.page_size:
            raise DamageError(f"an entry lies outside of page {number:,}")
        return self._page, flags, places

    def _child(self, page: bytes, at: int) -> int:
        low, high, top, _ = _NODE.unpack_from(page, at)
        return int(low | high << 16 | top << 32)

    def _entries(self, number: int, most: int | None = None) -> list[Entry]:
        """Return the entries of a page, all or the first ones."""
        page, _, places = self._read_page(number)
        begin, size, unpack = number * self.page_size, self.page_size, _NODE.unpack_from
        entries: list[Entry] = []
        for at in places[:most]:
            low, high, flags, key_size = unpack(page, at)
            start, length = at + 8 + key_size, low | high << 16
            if flags & _DUPSORT:
                raise DamageError(_DUPLICATED)
            if start + (8 if flags == _BIG else length) > size or (flags == _TREE_NODE and length != _TREE.size):
                raise DamageError(f"an entry lies outside of page {number:,}")
            value = begin + start
            if flags == _BIG:
                value = int.from_bytes(page[start : start + 8], "little") * size + _PAGE.size
            entries.append((page[at + 8 : start], value, length, flags == _TREE_NODE))
        return entries
