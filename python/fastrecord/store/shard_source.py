"""`CachedFolder` and `ShardSource`: bring what a reader of a remote shard is about to read. The core calls them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import Reader, set_place, side_kinds, supply_of
from fastrecord.errors import Code
from fastrecord.store.answer import Answer
from fastrecord.store.cache import Cache, Hold
from fastrecord.store.cached_file import CachedFile, Facts, Head
from fastrecord.store.requests import RemoteFolder, asked_until_good
from fastrecord.store.shard_info import ShardInfo
from fastrecord.store.store import Store

_T = TypeVar("_T")
# What others give up before it is read is brought again: so many times beside them, then so many times in turn.
_ROUNDS, _TURNS = 2, 3


class CachedFolder:
    """A folder of an object store, and the cache that its shards are read through.

    Pickles as its settings; another process opens the cache anew.

    Args:
        folder: The folder.
        store: The cache. Without one, copies last as long as this process reads the data set.

    Attributes:
        folder, store: As given.
    """

    def __init__(self, folder: RemoteFolder, store: Store | None = None) -> None:
        self.folder, self.store = folder, Store() if store is None else store
        self._kept: ShardSource | None = None

    @property
    def cache(self) -> Cache:
        """The cache, opened at first use in each process."""
        folder = self.store.cache
        with _opening:  # threads that come first at once get the same one
            return _cache_of(folder, self.store.cache_size, _forks if folder is not None else 0)

    def read(self, name: str, parse: Callable[[bytes], _T]) -> _T:
        """Return what `parse` makes of a manifest's bytes; new ones for which it raises an error are not kept.

        Raises:
            FileNotFoundError: it does not exist. FastRecordError: the store does not answer.
        """
        parsed: list[_T] = []

        def ask(etag: str | None) -> Answer | None:
            answer = self.folder.get_changed(name, etag)
            if answer is not None:
                parsed.append(parse(bytes(answer.data)))
            return answer

        content = self.cache.manifest(self.folder.where(name), lambda etag: asked_until_good(partial(ask, etag)))
        return parsed[0] if parsed else parse(content)

    def keep(self, supply: ShardSource) -> None:
        """Keep what was read of a shard as long as this object lives."""
        self._kept = supply

    def examine(self, name: str) -> ShardSource:
        """Return the supply of a shard that nothing is known of, by two requests.

        Raises:
            FileNotFoundError: it does not exist. CorruptFileError: it is not a .frec file, or does not end with a
            commit. FastRecordError: the store does not answer.
        """

        def ask() -> ShardSource:
            head = Head.ask(self.folder, name)
            shard, _ = head.commit(self.folder, name)
            return ShardSource(self, shard, head)

        return asked_until_good(ask)

    def supply(self, name: str, *about: Any) -> ShardSource:
        """Return the supply of a shard: its name, and the other attributes of `ShardInfo`."""
        return ShardSource(self, ShardInfo(name, *about))

    def traffic(self) -> tuple[int, int]:
        """Return the bytes brought from the store, and found in the cache, by this process."""
        traffic = self.cache.traffic(self.folder)
        return traffic.brought, traffic.found

    def count(self, found: int) -> None:
        """Count bytes of payloads that were in the cache when they were needed."""
        self.cache.traffic(self.folder).add(found=found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachedFolder) and self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash(self.folder)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.folder, self.store

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.folder, self.store = state
        self._kept = None


class ShardSource:
    """Brings parts of one shard.

    Args:
        source: Where it lies, and its cache.
        shard: What is known of it.
        head: What has been read of it already; not pickled.
    """

    def __init__(self, source: CachedFolder, shard: ShardInfo, head: Head | None = None) -> None:
        self.source, self.shard, self._head = source, shard, head
        self._file: CachedFile | None = None  # one without a name: it lasts as long as this
        self._known: tuple[Cache, Facts] | None = None

    @property
    def passing(self) -> bool:
        """Whether values may be given up after they were read."""
        return self.source.store.cache is not None

    @property
    def file(self) -> CachedFile:
        """The local copy."""
        if self._file is not None:
            return self._file
        file = self.source.cache.file(self.source.folder, self.shard, self._head)
        if file.place is None:
            self._file = file
        return file

    def open(self) -> str:
        """Bring what opening reads; return where the copy is."""
        file = self.file
        place, self._head = file.open(), None
        if file.place is None:  # it could not have a name after all
            self._file = file
        return place

    def need(self, fields: Sequence[str] | None, records: NDArray[np.int64] | None, payloads: bool) -> Hold:
        """Bring values; they stay as long as the result lives."""
        cache = self.source.cache
        hold = cache.hold()
        if self.is_whole(None if fields is None else tuple(fields), hold.generation):
            return hold
        hold.release()
        return hold_all(cache, [(self.file, fields, records, payloads)])

    def mend(self, fields: Sequence[str] | None, records: NDArray[np.int64] | None, payloads: bool) -> bool:
        """Bring values again that are damaged here, as `CachedFile.mend`; what `need` has returned for them lives.

        Raises:
            FastRecordError: they cannot be brought.
        """
        return self.file.mend(fields, records, payloads=payloads)

    def mend_head(self) -> bool:
        """Bring again what opening reads, which was here and cannot be opened.

        Raises:
            FastRecordError: it cannot be brought.
        """
        self.file.mend_head()
        return True

    def is_whole(self, fields: tuple[str, ...] | None, generation: int, *, look: bool = True) -> bool:
        """Return whether all parts of fields are known to be here, as `CachedFile.is_whole`.

        Args:
            fields: As there.
            generation: As there.
            look: Look at the copy, if it is not known.
        """
        if self._facts.whole.get(fields) == generation:
            return True
        return look and self.file.is_whole(fields, generation)

    def sizes(self, fields: Sequence[str]) -> NDArray[np.int64]:
        """Return the bytes of each record's payloads of some fields, int64 (records,)."""
        found = self._facts.sizes.get(tuple(fields))
        return self.file.sizes(fields) if found is None else found

    @property
    def _facts(self) -> Facts:
        cache = self.source.cache
        if self._known is None or self._known[0] is not cache:
            facts = cache.facts(self.source.folder, self.shard)
            if not cache.is_named:
                return facts  # of this copy only
            self._known = cache, facts
        return self._known[1]

    def bring(self, fields: Sequence[str], records: NDArray[np.int64], whole: bool) -> None:
        """Bring values; `whole`: and what lies beside them, as all records are needed in the end."""
        self.file.need(fields, records, whole=whole, count=True)

    def side_kinds(self, field: str, records: Sequence[int]) -> NDArray[np.int64]:
        """Return what `side_kinds` does, and bring only these records for it."""
        _kept = self.need([field], np.asarray(records, np.int64), payloads=True)
        return side_kinds(self.file.reader, field, records)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.shard)


def bring(reader: Reader, fields: Sequence[str], records: NDArray[np.int64], whole: bool) -> None:
    """Bring values of a file, if it lies elsewhere; the arguments are those of `ShardSource.bring`.

    Raises:
        FastRecordError: the store does not answer, or has another file.
    """
    supply = _placed(reader)
    if supply is not None:
        supply.bring(fields, records, whole)


def mend(reader: Reader, fields: Sequence[str], records: NDArray[np.int64]) -> Hold | None:
    """Bring values of a file again that are damaged here, if it lies elsewhere; they stay as long as the result lives.

    None: reading again does not help.

    Raises:
        FastRecordError: they cannot be brought.
    """
    supply = _placed(reader)
    if supply is None:
        return None
    hold = supply.need(fields, records, payloads=True)
    return hold if supply.mend(fields, records, payloads=True) else None


def is_whole(reader: Reader, fields: Sequence[str], generation: int, *, look: bool = True) -> bool:
    """Return whether all parts of fields of a file are known to be here; then the core can open it, too.

    Args:
        reader: The file. One that does not lie elsewhere is whole.
        fields: As in `ShardSource.is_whole`.
        generation: As there.
        look: As there.
    """
    supply, _ = supply_of(reader)
    if supply is None:
        return True
    if not supply.is_whole(tuple(fields), generation, look=look):
        return False
    # The supply of another data set may have brought it: this reader does not know yet where to.
    _placed(reader)
    return True


def _placed(reader: Reader) -> ShardSource | None:
    """Return the supply of a file that lies elsewhere, once the core knows where its parts are brought to."""
    supply, has_place = supply_of(reader)
    if supply is None:
        return None
    if not has_place:
        set_place(reader, supply.open())
    return cast("ShardSource", supply)


_Wanted = tuple[CachedFile, Sequence[str] | None, NDArray[np.int64] | None, bool]


def hold_all(cache: Cache, wanted: Sequence[_Wanted]) -> Hold:
    """Return a hold under which all values are here: of files, fields, records, with payloads or without.

    Raises:
        FastRecordError: the cache is too small; the store does not answer.
    """
    for number in range(_ROUNDS + _TURNS):
        if (hold := _held(cache, wanted)) is not None:
            return hold
        with nullcontext() if number < _ROUNDS else cache.turn((file, records) for file, _, records, _ in wanted):
            for file, fields, records, payloads in wanted:
                file.need(fields, records, payloads=payloads)
            if (hold := _held(cache, wanted)) is not None:
                return hold
    raise Code.CACHE.error(
        f"{cache.folder}: values are given up before they are read: give the cache more space (cache_size)"
    )


def _held(cache: Cache, wanted: Sequence[_Wanted]) -> Hold | None:
    """Return a hold if all values are here."""
    hold = cache.hold()
    if all(file.has(fields, records, payloads=payloads) for file, fields, records, payloads in wanted):
        return hold
    hold.release()
    return None


_forks = 0
_opening = Lock()


def _count_fork() -> None:
    global _forks, _opening
    _forks += 1
    _opening = Lock()  # another thread of the parent may hold it
    for known in _UNNAMED:
        known.after_fork()


os.register_at_fork(after_in_child=_count_fork)
_UNNAMED: list[Cache] = []


@cache
def _cache_of(folder: str | None, limit: int | None, forks: int) -> Cache:
    del forks  # a forked child has locks of its own
    made = Cache(folder, limit)
    if folder is None:
        _UNNAMED.append(made)
    return made
