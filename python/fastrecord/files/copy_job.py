"""`Job`: the sources and new files of merge, split, shuffle, select, compact and repair, and their summary.

Either all new files are finished, or none is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypedDict

from fastrecord._core import Copier, Reader
from fastrecord.errors import Code, FastRecordError
from fastrecord.files.division import Part, PathLike
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.manifest import name_new_shards
from fastrecord.files.merging import check_same_fields, note_conversion
from fastrecord.files.places import exists_already, refuse_irregular, refuse_url
from fastrecord.schema.shard_sets import COMMANDS, check_together, made_of
from fastrecord.store import is_url

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    # Records of a file, one after the other or by their numbers; and a field with a table of its new labels.
    Piece = tuple[Reader, range | NDArray[np.int64], tuple[str, NDArray[np.int64]] | None]

Progress = Callable[[int, int], None]

# Records passed to the core by one call.
ROWS = 1 << 16


class Replacing(TypedDict, total=False):
    """Options of the functions that write files of another format.

    Attributes:
        overwrite: Replace existing outputs once all is written; by default they are refused. Old and new
            files need room together. A folder is replaced only if it holds an export in this format.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets, and
            files together with files made from them.
        progress: Called now and then with records done and records in total; an exception in it cancels
            the call.
    """

    overwrite: bool
    allow_incomplete: bool
    progress: Progress | None


class Copying(Replacing, total=False):
    """Options of the functions that copy records as they are stored.

    Attributes:
        overwrite: Replace existing outputs once all is copied; by default they are refused. Old and new
            files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets, and
            files together with files made from them.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels the
            call.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
    """

    verify: bool


class Converting(Copying, total=False):
    """Options of the functions that copy records, and may store their images in the other form.

    Attributes:
        overwrite: Replace existing outputs once all is copied; by default they are refused. Old and new
            files need room together.
        allow_incomplete: Also accept files whose own packing is unfinished, incomplete shard sets, and
            files together with files made from them.
        progress: Called now and then with bytes done and bytes in total; an exception in it cancels the
            call.
        verify: Compare the checksum of each payload while copying; slower. Checksums are copied in any
            case, so `fastrecord verify` finds earlier damage later.
        packed: Store JPEGs as packed coefficients, as for `pack` (True), or packed ones as the files
            that they were (False). Works on all CPUs, and decodes no pixels. Readers give the same
            bytes in both forms. Crop indexes of images that change are left out. Default: each image
            stays as it is stored.
    """

    packed: bool | None


@dataclass(slots=True)
class RewriteSummary:
    """Result of a merge, split, shuffle, select or compact.

    Attributes:
        paths: The files written, in order.
        counts: Number of records of each file.
        records: Number of records of all files.
        bytes: Total size of the files.
        source_bytes: Total size of the source files.
        classes: Class names, position = label; None without classes.
        packed: Number of images that were packed.
        unpacked: Number of images that were unpacked.
        unchanged: Number of images that were to change, and stay as they are stored: images of other
            formats, JPEGs that would not come back byte for byte, and damaged ones.
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
    packed: int = 0
    unpacked: int = 0
    unchanged: int = 0
    differing: list[str] = field(default_factory=list)
    manifest: str | None = None
    not_named: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


class Job:
    """The new files of one call: in the end all are whole, or each path is as it was before.

    Args:
        readers: The sources.
        parts: The new files.
        in_place: Whether the only new file replaces its source.
        overwrite: As in `Copying`, as are `progress` and `verify`.
        allow_incomplete: What opened the sources has seen to it.
        progress: Likewise.
        verify: Likewise.
        packed: As in `Converting`.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        parts: Sequence[Part],
        *,
        in_place: bool = False,
        overwrite: bool = False,
        allow_incomplete: bool = False,
        progress: Progress | None = None,
        verify: bool = False,
        packed: bool | None = None,
    ) -> None:
        del allow_incomplete
        self.readers, self.parts, self.in_place = readers, parts, in_place
        self.paths = [part.path for part in parts]
        self.verify, self.progress, self.overwrite = verify, progress, overwrite or in_place
        self.packed = packed
        self.source_bytes = sum(
            reader.nbytes if is_url(reader.path) else os.path.getsize(reader.path) for reader in readers
        )
        copied = sum(part.stop - part.start for part in parts)
        self.total = sum(reader.nbytes for reader in readers) * copied // max(sum(map(len, readers)), 1)
        # A file compacted in place keeps its origin; it is not made from another file.
        self.origin = {} if in_place else made_of(readers)
        self.copiers: list[Copier] = []
        self.before = 0  # size of the files copied so far
        self._started = time.perf_counter()
        for part in () if in_place else parts:
            check_target(part.path, [reader.path for reader in readers], overwrite=self.overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for copier in self.copiers:
            copier.abort()  # closed files stay

    def run(
        self,
        pieces: Callable[[Part], Iterable[Piece]],
        metadata: dict[str, Any],
        classes: list[str] | None,
        *,
        complete: bool = True,
    ) -> RewriteSummary:
        """Copy all records, and return what was done.

        Args:
            pieces: Returns the records of a part.
            metadata: Metadata of each file, besides its place in a set.
            classes: The class names of all files.
            complete: As for `finish`.
        """
        with self:
            for number, part in enumerate(self.parts):
                copier = self.begin(number)
                # Commits made before the lock was taken must not be lost.
                while self.in_place and self.readers[0].refresh():
                    copier = self.begin(number)
                for reader, records, renumber in pieces(part):
                    if isinstance(records, range):
                        at = records.start, len(records)
                        copier.copy_run(reader, *at, renumber=renumber, progress=self.report)
                    else:
                        copier.copy_rows(reader, records, renumber=renumber, progress=self.report)
                copier.settle()
            metadata = metadata if self.packed is None else note_conversion(metadata, packed=self.packed)
            own = metadata if classes is None else metadata | {"classes": classes}
            self.finish(*(own | part.entry for part in self.parts), complete=complete)
        summary = RewriteSummary(self.paths, [len(copier) for copier in self.copiers], classes=classes)
        summary.records, summary.source_bytes = sum(summary.counts), self.source_bytes
        converted = sum(copier.converted[0] for copier in self.copiers)
        summary.unchanged = sum(copier.converted[1] for copier in self.copiers)
        summary.packed, summary.unpacked = (converted, 0) if self.packed else (0, converted)
        summary.bytes = sum(map(os.path.getsize, self.paths))
        if self.in_place or self.parts[0].shard is not None:
            self._name(summary)
        summary.seconds = time.perf_counter() - self._started
        return summary

    def begin(self, number: int) -> Copier:
        """Begin a file; one begun under the same number is discarded."""
        for copier in self.copiers[number:]:
            copier.abort()
        self.before = sum(copier.bytes_written for copier in self.copiers[:number])
        part, like = self.parts[number], self.readers[0]
        records = len(like) if self.in_place else part.stop - part.start
        overwrite, verify, packed = self.overwrite, self.verify, self.packed
        self.copiers[number:] = [Copier(part.path, like, records, overwrite=overwrite, verify=verify, packed=packed)]
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

    def _name(self, summary: RewriteSummary) -> None:
        """Make the manifest of the folder name the new shards."""
        try:
            new = name_new_shards(summary.paths, only_renew=self.in_place)
        except (FastRecordError, OSError) as err:
            err.add_note(f"{summary.paths[0]}: all records are written; only the manifest of the folder is as before")
            raise
        if new is not None:
            summary.manifest, summary.not_named = new.manifest, new.left


def check_target(path: str, sources: Iterable[str], *, overwrite: bool) -> None:
    """Refuse an output that is also a source, or that exists and may not be replaced."""
    refuse_irregular(path)
    for source in sources:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise Code.OUTPUT_IS_INPUT.error(f"{path}: is the file to read from: choose another path for the output")
    if not overwrite and os.path.lexists(path):
        raise exists_already(path)


@contextmanager
def opened(
    paths: Iterable[PathLike], *, access: str = "mmap", whole: bool = True, allow_incomplete: bool = False, **_: object
) -> Iterator[list[Reader]]:
    """Open files to read from, which have the same fields.

    Args:
        paths: The files.
        access: As for `Reader`.
        whole: Whether they must be whole sets of shards.
        allow_incomplete: As in `Replacing`.

    Raises:
        FastRecordError: its packing is not complete, shards are missing, or it is a URL.
        SchemaError: fields differ.
    """
    with ExitStack() as stack:
        readers = []
        for path in paths:
            refuse_url(path)
            readers.append(stack.enter_context(Reader(path, access)))
            if not readers[-1].complete and not allow_incomplete:
                raise Code.INCOMPLETE.error(
                    f"{os.fspath(path)}: its packing is not complete: `fastrecord pack --resume` finishes it, "
                    "`--allow-incomplete` (allow_incomplete=True) accepts it"
                )
        if whole and not allow_incomplete:
            check_together(readers, option=COMMANDS)
        for reader in readers[1:]:
            check_same_fields(readers[0], reader)
        yield readers


def steps(n: int) -> Iterable[NDArray[np.int64]]:
    """Yield all positions in [0, n), in chunks."""
    import numpy as np

    for start in range(0, n, ROWS):
        yield np.arange(start, min(start + ROWS, n), dtype=np.int64)
