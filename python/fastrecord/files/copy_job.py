"""`Job`: the sources and new files of merge, split, shuffle, select and compact, and their summary.

Either all new files are finished, or none is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fastrecord._core import Copier, Reader
from fastrecord.errors import Code
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.places import refuse_irregular, refuse_url
from fastrecord.schema.shard_sets import made_of
from fastrecord.store import is_url

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Progress = Callable[[int, int], None]
PathLike = str | os.PathLike[str]

# Records passed to the core by one call.
ROWS = 1 << 16


@dataclass(slots=True)
class CopySummary:
    """Result of a merge, split, shuffle, select or compact.

    Attributes:
        paths: The files written, in order.
        counts: Number of records of each file.
        records: Number of records of all files.
        bytes: Total size of the files.
        source_bytes: Total size of the source files.
        classes: Class names, position = label; None without classes.
        differing: Metadata keys whose values differ between the sources; the value comes from the
            first file that has the key.
        manifest: The `dataset.json` that names the files as shards of one data set; None without one.
        not_named: Why no `dataset.json` names the new shards; None if one does, or the output is one file.
        seconds: Wall time.
    """

    paths: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    source_bytes: int = 0
    classes: list[str] | None = None
    differing: list[str] = field(default_factory=list)
    manifest: str | None = None
    not_named: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


class Job:
    """The new files of one call: in the end all are whole, or each path is as it was before."""

    def __init__(
        self,
        readers: Sequence[Reader],
        paths: Sequence[str],
        *,
        overwrite: bool,
        verify: bool,
        progress: Progress | None,
        in_place: bool = False,
    ) -> None:
        self.paths, self.verify, self.progress = list(paths), verify, progress
        self.overwrite = overwrite or in_place
        self.source_bytes = sum(
            reader.nbytes if is_url(reader.path) else os.path.getsize(reader.path) for reader in readers
        )
        self.total = sum(reader.nbytes for reader in readers)
        # A file compacted in place keeps its origin; it is not made from another file.
        self.origin = {} if in_place else made_of(readers)
        self.copiers: list[Copier] = []
        self.before = 0  # size of the files copied so far
        if in_place:
            return
        for path in self.paths:
            check_target(path, [reader.path for reader in readers], overwrite=self.overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for copier in self.copiers:
            copier.abort()  # closed files stay

    def begin(self, number: int, like: Reader, records: int) -> Copier:
        """Begin a file for this many records; a file begun under the same number is discarded."""
        for copier in self.copiers[number:]:
            copier.abort()
        self.before = sum(copier.bytes_written for copier in self.copiers[:number])
        path = self.paths[number]
        self.copiers[number:] = [Copier(path, like, records, overwrite=self.overwrite, verify=self.verify)]
        return self.copiers[number]

    def report(self, written: int) -> None:
        """Report the progress of all files, given the bytes written of the current file."""
        if self.progress is not None:
            self.progress(min(self.before + written, self.total), self.total)

    def finish(self, *metadata: dict[str, Any], complete: bool = True) -> None:
        """Commit all files, each with its metadata, then rename them.

        Ctrl-C during these steps is raised at the end.
        """
        with HeldInterrupt() as interrupt:
            for copier, own in zip(self.copiers, metadata, strict=True):
                copier.commit(own | self.origin, complete=complete)
            # Everything that can fail for lack of space is done.
            for copier in self.copiers:
                copier.close()
        if self.progress is not None:
            self.progress(self.total, self.total)
        if interrupt.pending:
            raise KeyboardInterrupt(f"{self.paths[0]}: everything is written")

    def summary(self, started: float, classes: list[str] | None, differing: list[str]) -> CopySummary:
        """Return the result since `started`, a value of `time.perf_counter`."""
        counts = [len(copier) for copier in self.copiers]
        size = sum(os.path.getsize(path) for path in self.paths)
        seconds = time.perf_counter() - started
        return CopySummary(
            self.paths, counts, sum(counts), size, self.source_bytes, classes, differing, seconds=seconds
        )


def check_target(path: str, sources: Iterable[str], *, overwrite: bool) -> None:
    """Refuse an output that is also a source, or that exists and may not be replaced."""
    refuse_irregular(path)
    for source in sources:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise Code.OUTPUT_IS_INPUT.error(f"{path}: is the file to read from: choose another path for the output")
    if not overwrite and os.path.lexists(path):
        raise FileExistsError(f"{path}: exists already: `--overwrite` (overwrite=True) replaces it")


def open_source(path: PathLike, *, allow_incomplete: bool, access: str = "mmap") -> Reader:
    """Open a file to read from, mapped or by system calls (access="pread").

    Raises:
        FastRecordError: its packing is not complete, and `allow_incomplete` is False; or it is a URL.
    """
    refuse_url(path)
    reader = Reader(path, access)
    if not reader.complete and not allow_incomplete:
        reader.close()
        raise Code.INCOMPLETE.error(
            f"{os.fspath(path)}: its packing is not complete: `fastrecord pack --resume` finishes it, "
            "`--allow-incomplete` (allow_incomplete=True) accepts it"
        )
    return reader


def steps(n: int) -> Iterable[NDArray[np.int64]]:
    """Yield all positions in [0, n), in chunks."""
    import numpy as np

    for start in range(0, n, ROWS):
        yield np.arange(start, min(start + ROWS, n), dtype=np.int64)
