"""Files that lie in object stores: requests, copies of the parts that were read, and a cache that knows the future.

A file of which only parts are here is a sparse file with the bytes of those parts in their places,
so the core reads it like any other (`cached_file`). `Supply` brings what a reader is about to read.
A `Plan` says from a sampler's order what to bring and what to give up (`plan`); threads do it (`ahead`).
"""

from __future__ import annotations

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https", "file")


def is_url(path: object) -> bool:
    """Return whether a path names something in an object store."""
    scheme, found, _ = path.partition("://") if isinstance(path, str) else ("", "", "")
    return bool(found) and scheme in _SCHEMES
