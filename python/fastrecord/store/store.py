"""`Store`: how URLs are read and written. Knows no URL, and opens nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastrecord.checks import byte_count


@dataclass(frozen=True, init=False)
class Store:
    """How URLs are read and written: options of an object store, and a cache on this machine (docs/stores.md).

    Data sets are read through the cache. Commands, `pack` and the functions of `fastrecord.files` use none.

    Attributes:
        options: Arguments of `obstore.store.from_url`, such as `region`, `endpoint` or
            `skip_signature`; and `profile`, `retry_seconds` and `silence_seconds`. Without them,
            credentials come from where the store's own tools find them.
        cache: A folder on this machine for what is read. All processes and jobs share it. None:
            what was read is kept until the process ends.
        cache_size: Bytes that the cache keeps at most, such as `"500GiB"` or a number. None: as many
            as the data sets have.

    Raises:
        ValueError: `cache_size` is not a size, or is given without `cache`.
    """

    options: Mapping[str, Any] = field(repr=False, hash=False)
    cache: str | None
    cache_size: int | None

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        if cache is None and cache_size is not None:
            raise ValueError("cache_size is the size of a cache: give its folder too, cache=")
        place = None if cache is None else os.path.abspath(os.path.expanduser(os.fspath(cache)))
        limit = None if cache_size is None else byte_count("cache_size", cache_size)
        for name, value in (("options", dict(options or {})), ("cache", place), ("cache_size", limit)):
            object.__setattr__(self, name, value)


def refuse_other(store: object) -> None:
    """Refuse what is neither a `Store` nor None, for files of this machine too: a mapping would be without effect.

    Raises:
        TypeError: it is something else.
    """
    if store is not None and not isinstance(store, Store):
        raise TypeError(f"store is a fastrecord.Store, not {type(store).__name__}")
