"""Files that lie in object stores: requests, copies of the parts that were read, and a cache that knows the future.

A file that is here in parts is a sparse file with the bytes of those parts in their places,
so the core reads it like any other (`cached_file`). `ShardSource` brings what a reader is about to read.
A `Plan` says from a sampler's order what to bring and what to give up (`plan`); threads do it (`plan_executor`).
"""

from __future__ import annotations

AZURE = ("az", "azure", "adl", "abfs", "abfss")
# Schemes of stores with buckets; the others are those of URLs as the web has them.
BUCKETS = ("s3", "s3a", "gs", *AZURE)
_SCHEMES = (*BUCKETS, "http", "https", "file")


def is_url(path: object) -> bool:
    """Return whether a path names something in an object store."""
    scheme, found, _ = path.partition("://") if isinstance(path, str) else ("", "", "")
    return bool(found) and scheme in _SCHEMES
