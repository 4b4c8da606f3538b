"""`Pages`: reads the file of an LMDB environment page by page.

LMDB maps its file and trusts what it finds there: a file that is cut short ends the process with
SIGBUS, and damaged pages are read as they are. Here each page comes by a system call and is checked.
The format is the one of LMDB 0.9 (version 1), as its source describes it: pages of a B+ tree.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBEEFC0DE)
# Where the magic stands in a file: after the header of its first page.
MAGIC_AT = 16

_META = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_TAIL = struct.Struct("<QQ")
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_PAGE_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _LONG = 1, 2, 4
_BIG, _TREE_NODE, _DUPLICATES = 1, 2, 4
_DUPSORT = 4
_DEPTH = 32
_DUPLICATED = "it keeps several values for one key (dupsort): write them to a database with a key for each"
_NONE = (1 << 64) - 1


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
            self.page_size, self.last_page, self.tree = self._newest()
            if database is not None:
                node = self.find(database.encode())
                if not isinstance(node, Tree):
                    raise PagesError(f"it holds no database {database!r}")
                self.tree = node
            if self.tree.entries > self._size // _NODE.size:
                raise PagesError(f"damaged: it claims {self.tree.entries:,} entries")
            if self.tree.flags & _DUPSORT:
                raise PagesError(_DUPLICATED)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def find(self, key: bytes) -> memoryview | Tree | None:
        """Return the value of a key; None if it is not there.

        Raises:
            PagesError: a page is damaged.
        """
        number = self.tree.root
        for _ in range(_DEPTH):
            if number == _NONE:
                return None
            page, flags, pointers = self._page(number)
            keys = [self._key(page, at, number) for at in pointers]
            if flags & _LEAF:
                if key not in keys:
                    return None
                value = self._node(page, pointers[keys.index(key)], number)[1]
                return self.read(value) if isinstance(value, Span) else value
            # The first key of a branch stands for all smaller ones.
            number = self._child(page, pointers[bisect_right(keys, key, lo=1) - 1], number)
        raise PagesError("damaged: its pages are nested too deeply")

    def leaves(
        self, skip: int = 0, special: tuple[bytes, ...] = ()
    ) -> Iterator[list[tuple[bytes, memoryview | Span | Tree]]]:
        """Yield the keys and values of each page of entries, in the order of the keys.

        Short values are views of the page, and long ones where they are.

        Args:
            skip: Number of entries to skip.
            special: Keys that are left out and do not count, sorted.

        Raises:
            PagesError: a page is damaged or missing. All entries before it have been yielded.
        """
        for number, page, pointers in self._leaf_pages():
            if skip > len(pointers) and not self._between(page, pointers, number, special):
                skip -= len(pointers)
                continue
            nodes = self._nodes(page, pointers, number)
            if special and nodes[0][0] <= special[-1] and nodes[-1][0] >= special[0]:
                nodes = [node for node in nodes if node[0] not in special]
            if len(nodes) > skip:
                yield nodes[skip:] if skip else nodes
            skip = max(skip - len(nodes), 0)

    def spans(self, special: tuple[bytes, ...]) -> Iterator[tuple[bytes, Span | Tree]]:
        """Yield all keys except the special ones, with the places of their values.

        Raises:
            PagesError: a page is damaged or missing. All entries before it have been yielded.
        """
        for number, page, pointers in self._leaf_pages():
            for at in pointers:
                key, value, start = self._node(page, at, number)
                if key in special:
                    continue
                if isinstance(value, memoryview):
                    value = Span(number * self.page_size + start, len(value))
                yield key, value

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
        best: tuple[int, int, int, Tree] | None = None
        size = int.from_bytes(head[40:44], "little")
        if not 256 <= size <= 65536 or size & (size - 1):
            raise PagesError(f"damaged: it claims pages of {size} bytes")
        for at in (0, size):
            data = os.pread(self._file, 152, at)
            if len(data) < 152:
                continue
            magic, version, _, _ = _META.unpack_from(data, MAGIC_AT)
            if magic != 0xBEEFC0DE:
                continue
            if version != 1:
                raise PagesError(
                    f"it has version {version} of LMDB's format, and the one that is known is 1: copy it with LMDB 0.9"
                )
            last, transaction = _TAIL.unpack_from(data, 136)
            if best is None or transaction > best[0]:
                best = (transaction, size, last, self._tree(memoryview(data)[88:136]))
        if best is None:
            raise PagesError("cut short: its first pages are missing")
        return best[1:]

    def _tree(self, data: memoryview) -> Tree:
        _, flags, _, _, _, _, entries, root = _TREE.unpack(data)
        return Tree(flags, entries, root)

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
        if (
            own != number
            or flags & 0xF not in (_BRANCH, _LEAF)
            or not 18 <= lower <= upper <= len(page)
            or flags & 0x60
        ):
            raise PagesError(f"damaged: page {number:,} is not a page of entries")
        return page, flags, struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16)

    def _leaf_pages(self) -> Iterator[tuple[int, bytes, tuple[int, ...]]]:
        seen = entries = 0
        todo = [(self.tree.root, 0)] if self.tree.root != _NONE else []
        while todo:
            number, depth = todo.pop()
            seen += 1
            if depth > _DEPTH or seen > self.last_page:
                raise PagesError("damaged: its pages form a circle")
            page, flags, pointers = self._page(number)
            if flags & _BRANCH:
                todo += [(self._child(page, at, number), depth + 1) for at in reversed(pointers)]
            else:
                entries += len(pointers)
                yield number, page, pointers
        if entries != self.tree.entries:
            raise PagesError(f"damaged: {entries:,} of its {self.tree.entries:,} entries are there")

    def _key(self, page: bytes, at: int, number: int) -> bytes:
        if at + 8 > len(page):
            raise PagesError(f"damaged: an entry lies outside of page {number:,}")
        size = _NODE.unpack_from(page, at)[3]
        if at + 8 + size > len(page):
            raise PagesError(f"damaged: an entry lies outside of page {number:,}")
        return page[at + 8 : at + 8 + size]

    def _child(self, page: bytes, at: int, number: int) -> int:
        if at + 8 > len(page):
            raise PagesError(f"damaged: an entry lies outside of page {number:,}")
        low, high, top, _ = _NODE.unpack_from(page, at)
        return int(low | high << 16 | top << 32)

    def _nodes(
        self, page: bytes, pointers: tuple[int, ...], number: int
    ) -> list[tuple[bytes, memoryview | Span | Tree]]:
        """Return the keys and values of a page of entries."""
        view, size, unpack = memoryview(page), len(page), _NODE.unpack_from
        nodes: list[tuple[bytes, memoryview | Span | Tree]] = []
        for at in pointers:
            if at + 8 <= size:
                low, high, flags, key_size = unpack(page, at)
                start = at + 8 + key_size
                end = start + (low | high << 16)
                if not flags and end <= size:
                    nodes.append((page[at + 8 : start], view[start:end]))
                    continue
            nodes.append(self._node(page, at, number)[:2])
        return nodes

    def _node(self, page: bytes, at: int, number: int) -> tuple[bytes, memoryview | Span | Tree, int]:
        """Return the key and value of an entry, and where the value begins in the page."""
        if at + 8 <= len(page):
            low, high, flags, key_size = _NODE.unpack_from(page, at)
            start = at + 8 + key_size
            size = low | high << 16
            key = page[at + 8 : start]
            if not flags:
                if start + size <= len(page):
                    return key, memoryview(page)[start : start + size], start
            elif flags == _BIG:
                if start + 8 <= len(page):
                    first = _PAGE_NUMBER.unpack_from(page, start)[0]
                    return key, Span(first * self.page_size + _PAGE.size, size), start
            elif flags == _TREE_NODE and start + size <= len(page) and size == _TREE.size:
                return key, self._tree(memoryview(page)[start : start + size]), start
            elif flags & _DUPLICATES:
                raise PagesError(_DUPLICATED)
        raise PagesError(f"damaged: an entry lies outside of page {number:,}")

    def _between(self, page: bytes, pointers: tuple[int, ...], number: int, special: tuple[bytes, ...]) -> bool:
        """Return whether a leaf page may hold one of some keys."""
        if not special:
            return False
        first, last = self._key(page, pointers[0], number), self._key(page, pointers[-1], number)
        return first <= special[-1] and last >= special[0]
