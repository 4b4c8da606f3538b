"""`Destination`: where records go in another format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

# Name of a field -> why a format cannot hold it.
Refusal: TypeAlias = Mapping[str, str]


class Destination(ABC):
    """Files of another format that are being written.

    The caller passes a path with a temporary name, and renames it after `close`; after an error it
    calls `abort` and removes it. Memory stays bounded.
    """

    @abstractmethod
    def write(self, start: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append records.

        Args:
            start: Number of the first one, counted from 0 without gaps.
            columns: For each field its values, as a `Batch` of `Reader.read_batch` has them: read-
                only memoryviews for images and bytes, arrays (N, ...) for numbers and arrays of
                fixed shape, lists of arrays, of str, of values. They may be kept.

        Raises:
            FastRecordError: the format cannot hold a value; `Code.CANNOT_HOLD.error(...)` with the
                record's number and field.
            OSError: writing failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the files: they are complete and synced to the disk afterwards."""

    def abort(self) -> None:  # noqa: B027 - by default there is nothing to release
        """Release files and memory; the caller removes what was written."""

    def next_shard(self, path: str) -> None:
        """Finish this file and begin another one at `path`.

        Called between two records for formats that hold several files only as a folder of them.
        Formats with shards of their own never see this call.
        """
        raise NotImplementedError
