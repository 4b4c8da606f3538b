"""`Pages`: reads the file of an LMDB environment page by page.

LMDB maps its file and trusts what it finds there: a file that is cut short ends the process with
SIGBUS, and damaged pages are read as they are. Here each page comes by a system call and is checked.
The format is the one of LMDB 0.9 (version 1), as its source describes it: pages of a B+ tree.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MAGIC = struct.pack("<I", 0xBEEFC0DE)
# Where the magic stands in a file: after the header of its first page.
MAGIC_AT = 16

_TREE = struct.Struct("<IHHQQQQQ")
_TAIL = struct.Struct("<QQ")
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_PAGE_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _LONG = 1, 2, 4
_BIG, _TREE_NODE = 1, 2
_DUPSORT = 4
_DEPTH = 32
_DUPLICATED = "it keeps several values for one key (dupsort): write them to a database with a key for each"
_NONE = (1 << 64) - 1
_DAMAGED = "damaged: an entry lies outside of page"


class PagesError(Exception):
    """A file is not what its format demands; the text is the reason, and the way out."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One of the databases in a file."""

    flags: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Span:
    """Where a value is in the file: its first byte, and its size."""

    at: int
    size: int


# A key, and its value: a view of its page, or where a long one is; a tree for a database.
Entry: TypeAlias = tuple[bytes, memoryview | Span | Tree]


class Pages:
    """The pages of an LMDB file, opened for reading.

    Args:
        path: The file.
        database: Name of a database in it; None for the main one.

    Raises:
        PagesError: it is not a file of LMDB 0.9, is damaged, has no such database, or one with
            several values per key.
        OSError: it cannot be read.
    """

    def __init__(self, path: str, database: str | None = None) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size
        try:
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self.page_size, self.last_page, tree = self._newest()
            self._walk(tree)
            if database is not None:
                _, found = self.find(database.encode())
                if not isinstance(found, Tree):
                    raise PagesError(f"it holds no database {database!r}")
                self._walk(found)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def find(self, key: bytes) -> tuple[int, memoryview | Span | Tree | None]:
        """Return the number of a key among all keys, and its value; None if it is not there.

        Raises:
            PagesError: its page is damaged.
        """
        leaf = max(bisect_right(self._keys, key) - 1, 0)
        for at, (each, value) in enumerate(self._leaf(leaf) if self._keys else ()):
            if each == key:
                return self._firsts[leaf] + at, self.read(value) if isinstance(value, Span) else value
        return 0, None

    def entries(self, start: int, *, places: bool = False) -> Iterator[Sequence[Entry]]:
        """Yield keys and values from a number on in the order of the keys, page by page.

        Args:
            start: The number of the first entry.
            places: Whether short values come as their places too.

        Raises:
            PagesError: a page is damaged or missing. All entries before it have been yielded.
        """
        for leaf in range(max(bisect_right(self._firsts, start) - 1, 0), len(self._leaves)):
            if self._broken is not None and self._firsts[leaf] >= self._good:
                break
            yield self._leaf(leaf, places=places)[max(start - self._firsts[leaf], 0) :]
        if self._broken is not None:
            raise self._broken

    def read(self, span: Span) -> memoryview:
        """Return a value.

        Raises:
            PagesError: the pages are damaged or missing.
        """
        if span.at % self.page_size != _PAGE.size:
            return memoryview(self._pread(span.size, span.at))
        # No entry begins there, so the value has pages of its own.
        data = self._pread(_PAGE.size + span.size, span.at - _PAGE.size)
        number, _, flags, pages = _OVERFLOW.unpack_from(data)
        if number != span.at // self.page_size or not flags & _LONG or pages * self.page_size < len(data):
            raise PagesError(f"damaged: page {span.at // self.page_size:,} does not begin a long value")
        return memoryview(data)[_PAGE.size :]

    # Pages

    def _newest(self) -> tuple[int, int, Tree]:
        """Return the size of pages, the number of the last one, and the main database."""
        head = os.pread(self._file, 4096, 0)
        if head[MAGIC_AT : MAGIC_AT + 4] != MAGIC:
            raise PagesError(f"not an LMDB file: it begins with {head[:24]!r}")
        size = int.from_bytes(head[40:44], "little")
        if not 256 <= size <= 65536 or size & (size - 1):
            raise PagesError(f"damaged: it claims pages of {size} bytes")
        metas = [os.pread(self._file, 152, at) for at in (0, size)]
        metas = [data for data in metas if len(data) == 152 and data[MAGIC_AT : MAGIC_AT + 4] == MAGIC]
        if not metas:
            raise PagesError("cut short: its first pages are missing")
        for data in metas:
            version = int.from_bytes(data[20:24], "little")
            if version != 1:
                raise PagesError(
                    f"it has version {version} of LMDB's format, and the one that is known is 1: copy it with LMDB 0.9"
                )
        newest = max(metas, key=lambda data: _TAIL.unpack_from(data, 136)[1])
        return size, _TAIL.unpack_from(newest, 136)[0], _tree(newest[88:136])

    def _walk(self, tree: Tree) -> None:
        """Find the pages of entries of a tree: their numbers, first keys, and numbers of their first entries."""
        if tree.entries > self._size // _NODE.size:
            raise PagesError(f"damaged: it claims {tree.entries:,} entries")
        if tree.flags & _DUPSORT:
            raise PagesError(_DUPLICATED)
        self.count, self._keys = tree.entries, list[bytes]()
        self._leaves, self._firsts = array("Q"), array("Q")
        # What is wrong, and the number of entries before it.
        self._broken: PagesError | None = None
        self._good = found = seen = 0
        todo = [(tree.root, 0)] if tree.root != _NONE else []
        while todo:
            number, depth = todo.pop()
            seen += 1
            try:
                if depth > _DEPTH or seen > self.last_page:
                    todo = []
                    raise PagesError("damaged: its pages form a circle")
                page, flags, pointers = self._page(number)
                if flags & _BRANCH:
                    todo += [(self._child(page, at, number), depth + 1) for at in reversed(pointers)]
                elif pointers:
                    self._keys.append(self._entries(number, page, pointers[:1])[0][0])
                    self._leaves.append(number)
                    self._firsts.append(found)
                    found += len(pointers)
            except PagesError as err:
                if self._broken is None:
                    self._broken, self._good = err, found
        if found != tree.entries and self._broken is None:
            self._good = found
            self._broken = PagesError(f"damaged: {found:,} of its {tree.entries:,} entries are there")

    def _pread(self, size: int, at: int) -> bytes:
        # A length that the file claims must not decide about memory.
        data = os.pread(self._file, size, at) if at + size <= self._size else b""
        if len(data) < size:
            raise PagesError(f"cut short: page {at // self.page_size:,} of {self.last_page + 1:,} is not there")
        return data

    def _page(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Return a page, its flags, and where its nodes are."""
        page = self._pread(self.page_size, number * self.page_size)
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        good = own == number and flags & 0xF in (_BRANCH, _LEAF) and not flags & 0x60
        if not good or not 18 <= lower <= upper <= len(page):
            raise PagesError(f"damaged: page {number:,} is not a page of entries")
        return page, flags, struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16)

    def _child(self, page: bytes, at: int, number: int) -> int:
        if at + 8 > len(page):
            raise PagesError(f"{_DAMAGED} {number:,}")
        low, high, top, _ = _NODE.unpack_from(page, at)
        return int(low | high << 16 | top << 32)

    def _leaf(self, leaf: int, *, places: bool = False) -> list[Entry]:
        page, _, pointers = self._page(self._leaves[leaf])
        return self._entries(self._leaves[leaf], page, pointers, places=places)

    def _entries(self, number: int, page: bytes, pointers: Sequence[int], *, places: bool = False) -> list[Entry]:
        """Return the keys and values of a page of entries."""
        view, size, begin, unpack = memoryview(page), len(page), number * self.page_size, _NODE.unpack_from
        entries: list[Entry] = []
        for at in pointers:
            if at + 8 > size:
                raise PagesError(f"{_DAMAGED} {number:,}")
            low, high, flags, key_size = unpack(page, at)
            start = at + 8 + key_size
            length = low | high << 16
            end = start + (8 if flags == _BIG else length)
            if end > size:
                raise PagesError(f"{_DAMAGED} {number:,}")
            value: memoryview | Span | Tree = view[start:end]
            if flags == _BIG:
                value = Span(_PAGE_NUMBER.unpack_from(page, start)[0] * self.page_size + _PAGE.size, length)
            elif flags == _TREE_NODE and length == _TREE.size:
                value = _tree(page[start:end])
            elif flags:
                raise PagesError(_DUPLICATED if flags & _DUPSORT else f"{_DAMAGED} {number:,}")
            elif places:
                value = Span(begin + start, length)
            entries.append((page[at + 8 : start], value))
        return entries


def _tree(data: bytes) -> Tree:
    _, flags, _, _, _, _, entries, root = _TREE.unpack(data)
    return Tree(flags, entries, root)
