"""`Destination`: where records go in another format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Name of a field -> why a format cannot hold it.
Refusal: TypeAlias = Mapping[str, str]


class Views(list[memoryview]):
    """Images or bytes that lie one after the other in memory.

    Attributes:
        whole: That memory.
        ends: int64 (N + 1,): value i is `whole[ends[i] : ends[i + 1]]`.
    """

    def __init__(self, whole: memoryview, ends: NDArray[np.int64]) -> None:
        super().__init__(whole[start:stop] for start, stop in pairwise(ends.tolist()))
        self.whole, self.ends = whole, ends


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
                only memoryviews for images and bytes (an export passes `Views`), arrays (N, ...)
                for numbers and arrays of fixed shape, lists of arrays, of str, of values. They may
                be kept.

        Raises:
            FastRecordError: the format cannot hold a value; `Code.CANNOT_HOLD.error(...)` with the
                record's number and field; its `way_out` is by default to drop the field.
            OSError: writing failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the files: they are complete afterwards. The caller syncs them to the disk."""

    def abort(self) -> None:  # noqa: B027 - by default there is nothing to release
        """Release files and memory; the caller removes what was written."""

    def begin(self, path: str) -> None:
        """Begin a file. A format that holds no folders of several files has no such method."""
        raise NotImplementedError

    def next_shard(self, path: str) -> None:
        """Finish this file and begin another one; called between two records."""
        self.close()
        self.begin(path)
