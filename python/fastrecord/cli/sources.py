"""`Records`: what the FILE of a command names, a file or a data set of shards, as readers in order.

The one place that turns such an argument into readers. Prints nothing. Without a data set it does
not import numpy, which takes longer than most commands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastrecord._core import Reader
from fastrecord.dataset.manifest import is_one_file
from fastrecord.schema import Schema
from fastrecord.schema.classes import merge_classes
from fastrecord.schema.roles import lies_in_index
from fastrecord.store import is_url

if TYPE_CHECKING:
    from fastrecord.schema.classes import Table


# Shards in an object store that a command reads at once: most of the time is spent waiting for answers.
SHARDS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one or more files of the same fields, numbered one after the other.

    Attributes:
        readers: A reader of each file.
        ends: For each file, the number of records up to its end.
        lists: The class names of each file, if they are known without opening it.
        remote: Whether they lie in an object store.
    """

    readers: Sequence[Reader]
    ends: Sequence[int]
    lists: Sequence[list[str] | None] | None = None
    remote: bool = False

    @property
    def schema(self) -> Schema:
        """The fields, as the first file has them."""
        return self.readers[0].schema

    def __len__(self) -> int:
        """Return the number of records."""
        return self.ends[-1]

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, range]]:
        """Yield the position of each file with records in [start, stop), its first record's number, and their own."""
        while start < stop:
            shard = bisect_right(self.ends, start)
            before = self.ends[shard - 1] if shard else 0
            end = min(stop, self.ends[shard])
            yield shard, start, range(start - before, end - before)
            start = end

    def bring(self, start: int, stop: int) -> None:
        """Bring records in [start, stop) at once that would come one by one when they are read."""
        for shard, _, numbers in self.runs(start, stop) if self.remote else ():
            for name, kind in self.schema.items():
                if not lies_in_index(kind):
                    self.readers[shard].prefetch(numbers, name)

    def classes(self) -> Classes:
        """Return the classes of all files, as a data set numbers them.

        Raises:
            SchemaError: they cannot be matched.
        """
        return Classes(*merge_classes(self.readers, None, None if self.lists is None else list(self.lists)))


@dataclass(frozen=True, slots=True)
class Classes:
    """Class names, position = label; and for each file the table from its numbers to these, or None."""

    names: list[str]
    tables: Sequence[Table | None]

    def label(self, shard: int, label: Any) -> Any:
        """Return the data set's number for a label of a file; a number without a class stays."""
        table = self.tables[shard]
        return int(table[label]) if table is not None and 0 <= label < len(table) else label

    def named(self, label: Any) -> dict[str, str]:
        """Return `class` and the name of a label; nothing if it has none."""
        return {"class": self.names[int(label)]} if 0 <= label < len(self.names) else {}


@contextmanager
def opened(path: str) -> Iterator[Records]:
    """Open what a FILE names.

    Raises:
        FileNotFoundError: nothing is there, or no .frec file.
        SchemaError: the files have different fields.
        CorruptFileError: a file or a manifest is damaged.
    """
    if is_one_file(path) and not is_url(path):
        with Reader(path) as reader:
            yield Records([reader], [len(reader)])
        return
    from fastrecord.dataset.shards import Shards

    with closing(Shards.open_alike(path)) as shards:
        yield Records(shards.readers, shards.ends.tolist(), shards.class_lists(), remote=is_url(path))


@contextmanager
def opened_file(path: str) -> Iterator[Reader]:
    """Open what a FILE names that is a file by itself, to see its head; of a URL, no more than that is here.

    Raises:
        FileNotFoundError: it does not exist. CorruptFileError: it is damaged.
    """
    if is_url(path):
        from fastrecord.store.verification import open_url

        file = open_url(path)
        yield file.reader
        return
    with Reader(path) as reader:
        yield reader
