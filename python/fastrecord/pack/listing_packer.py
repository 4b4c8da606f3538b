"""`ListingPacker`: packs the files of a listing, in chunks with commits between them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable

from fastrecord._core import FastRecordError, Writer
from fastrecord.errors import Code
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.shard_names import Part
from fastrecord.pack.listing import Listing
from fastrecord.pack.output import Target
from fastrecord.pack.packer import COMMIT_RECORDS, BadFiles, Packer, PackProgress

# One call into the core reads about this much, so that progress and Ctrl-C work a few times a
# second.
_CHUNK_BYTES = 64 << 20
_CHUNK_FILES = range(16, 1025)
_FIRST_CHUNK_FILES = 64
# Target duration of a chunk when images are changed: its time then depends on CPUs, not on disks.
_CHUNK_SECONDS = 0.3
_FIRST_CHANGED_FILES = 2


class ListingPacker(Packer):
    """Packs the files of a listing.

    Args:
        listing: The input.
        bad_files: Whether a bad file ends the pack.
        commit_bytes: Commit durably each time this many bytes have been written.
        progress: Called after each chunk.
        changes: Whether storing images takes computation and changes their size.
        started: When the pack began, by `time.perf_counter`.
    """

    # The end of an error message: what is packed, and what each input must be.
    inputs = "input files is an image"

    def __init__(
        self,
        listing: Listing,
        bad_files: BadFiles,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        *,
        changes: bool,
        started: float,
    ) -> None:
        super().__init__(bad_files, commit_bytes, progress, total=len(listing), started=started)
        self.listing, self.changes = listing, changes
        self.summary.ignored = listing.ignored

    @abstractmethod
    def append(self, positions: range, target: Target, writer: Writer) -> None:
        """Append the records of some input files; skipped files are added to `target.skipped`."""

    @abstractmethod
    def describe_bad(self, position: int, reason: str) -> FastRecordError:
        """Return the error for a bad file."""

    def refuse_bad(self) -> None:
        """Raise the error for the first known bad file, if bad files end the pack."""
        if self.listing.bad and self.bad_files == "stop":
            position = next(i for i, key in enumerate(self.listing.keys) if key in self.listing.bad)
            raise self.describe_bad(position, self.listing.bad[self.listing.keys[position]])

    def fill(self, part: Part, target: Target, writer: Writer, interrupt: HeldInterrupt) -> bool:
        """Append the files that are not there yet, a chunk at a time."""
        position = target.position
        files = _FIRST_CHANGED_FILES if self.changes else _FIRST_CHUNK_FILES
        committed_bytes, committed_records = writer.bytes_written, len(writer)
        self.report(position)
        while position < part.stop:
            if interrupt.pending:
                return False
            stop = min(position + files, position + self.listing.together, part.stop)
            before, started = writer.bytes_written, time.perf_counter()
            self.append(range(position, stop), target, writer)
            grown, seconds = writer.bytes_written - before, time.perf_counter() - started
            self.summary.written += grown
            files = self._next_files(stop - position, grown, seconds)
            position = stop
            bytes_since, records_since = writer.bytes_written - committed_bytes, len(writer) - committed_records
            if bytes_since >= self.commit_bytes or records_since >= COMMIT_RECORDS:
                writer.metadata = target.metadata()
                writer.commit()
                committed_bytes, committed_records = writer.bytes_written, len(writer)
            self.report(position)
        return True

    def _next_files(self, files: int, grown: int, seconds: float) -> int:
        """Return the size of the next chunk in files, from the cost of this chunk of `files`."""
        by_bytes = int(_CHUNK_BYTES * files / max(grown, 1))
        if not self.changes:
            return min(max(by_bytes, _CHUNK_FILES.start), _CHUNK_FILES.stop - 1)
        by_time = int(_CHUNK_SECONDS * files / max(seconds, 1e-9))
        return min(max(min(by_bytes, by_time, 4 * files), 1), _CHUNK_FILES.stop - 1)

    def nothing(self, part: Part, target: Target) -> FastRecordError | None:
        """Return the error if every input file was skipped."""
        if len(target.skipped) < len(self.listing):
            return None
        key, reason = target.skipped[0]
        return Code.NO_IMAGES.error(
            f"{part.path}: none of its {part.stop - part.start:,} {self.inputs}; the first, {key}: {reason}"
        )
