"""Pack a folder of images, or the files of a list, into one file or several shards."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import FastRecordError, Reader, Writer
from fastrecord.interrupt import HeldInterrupt
from fastrecord.listing import Listing, list_csv, list_folder
from fastrecord.parts import Part, plan, refuse_strays
from fastrecord.recode import Recode
from fastrecord.target import Target, class_table, number_labels, open_target

Mode = Literal["x", "a", "w", "resume"]
BadFiles = Literal["stop", "skip"]

# One call into the core reads about this much, so that progress shows and Ctrl-C is heard a few times a second.
_CHUNK_BYTES = 64 << 20
_CHUNK_FILES = range(16, 1025)
_FIRST_CHUNK_FILES = 64
# Where images are recoded a chunk is done after about so long: by then it takes what CPUs give, not what disks do.
_RECODE_SECONDS = 0.3
_FIRST_RECODED_FILES = 2
# A writer commits by itself when its index takes 64 MiB of memory, in the middle of a chunk: this comes long before.
_COMMIT_RECORDS = 1 << 18


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far a pack is.

    Attributes:
        files: Input files done, packed or skipped, those of earlier runs included.
        total: Files in the input.
        bytes: Bytes that this run has written.
    """

    files: int
    total: int
    bytes: int


@dataclass(slots=True)
class PackSummary:
    """What a pack has done.

    Attributes:
        paths: The files written, in order.
        records: Records that they hold.
        packed: Records that this run has added to them.
        bytes: Size of the files together.
        written: Bytes that this run has written.
        classes: Class names, position = label; None if labels are bare numbers or absent.
        empty_classes: Classes of the input of which no file was packed.
        skipped: (key, reason) of each file of the input that is in no file.
        ignored: Files beside the class folders, which belong to no class.
        recoded: What became of the images that this run has packed, if any were to be changed: numbers of `images`
            and, of them, `kept` byte for byte, made `smaller`, `crop_ready`, `raw`; `bytes_in` of the input files and
            `bytes_out` of what is stored of them.
        seconds: Wall time.
    """

    paths: list[str] = field(default_factory=list)
    records: int = 0
    packed: int = 0
    bytes: int = 0
    written: int = 0
    classes: list[str] | None = None
    empty_classes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    ignored: int = 0
    recoded: dict[str, int] | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as values that JSON knows."""
        return asdict(self) | {"skipped": [{"key": key, "reason": reason} for key, reason in self.skipped]}


def pack_folder(
    src: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    mode: Mode = "x",
    list_path: str | os.PathLike[str] | None = None,
    classes_from: str | os.PathLike[str] | None = None,
    bad_files: BadFiles = "stop",
    allow_empty_classes: bool = False,
    shards: int | None = None,
    shard_size: int | None = None,
    short_side: int | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    raw: bool = False,
    crop_ready: str | None = None,
    commit_bytes: int = 1 << 30,
    progress: Callable[[PackProgress], None] | None = None,
) -> PackSummary:
    """Pack image files, as they are, byte for byte, unless told otherwise.

    A record has an image, a label (int64; absent if a list has none) and a key (path relative to `src`, with `/`).
    Records lie in the order of `torchvision.datasets.ImageFolder`, or of the list. Until its last commit a file says
    `complete: false`.

    Args:
        src: Folder with one sub-folder a class, or any folder that holds the files of the list.
        out: File to write. With shards, `train.frec` stands for `train-00000-of-00004.frec` and so on.
        mode: "x": `out` must not exist. "a": add records to it; its classes keep their numbers, new ones come behind.
            "w": replace it when all is packed. "resume": go on where a killed or interrupted pack of the same input
            stopped, or begin if there is nothing yet.
        list_path: CSV list of the files and their labels; see `fastrecord.listing.list_csv`.
        classes_from: .frec file whose classes give the label numbers; a class that it does not know is an error.
        bad_files: "stop": a file that is no image, or can not be read, ends the pack. "skip": it is left out, and
            listed in the summary and under "skipped" in the metadata.
        allow_empty_classes: Keep class folders without files as classes without records.
        shards: Number of files to write, whose numbers of records differ by one at most.
        shard_size: Size in bytes that no shard shall exceed (unless one record alone does). Only of images that stay as
            they are: what becomes of the others is known too late.
        short_side: Make images whose shorter side is above so many pixels smaller, and JPEGs of them. Of their metadata
            these keep the orientation only. All other images keep their bytes.
        max_side: The same for the longer side.
        quality: Of these JPEGs, 1 to 100; 90 by default.
        raw: Store all images as their pixels, in binary PPM; those above `short_side` or `max_side` made smaller.
        crop_ready: Rewrite JPEGs without loss, so that a crop is decoded without the rest of its image. Which of their
            marker segments are kept: "all", "none", or names out of "exif", "icc" and "other" with commas between them.
        commit_bytes: Make what is packed durable each time that so many bytes have been written.
        progress: Called a few times a second; an exception in it ends the pack.

    Raises:
        ValueError: options that contradict each other.
        FileExistsError: `out` exists and `mode` is "x". FileNotFoundError: it does not and `mode` is "a".
        LockedError: another process writes to `out`.
        FastRecordError: the input or `out` is not as it must be; the message has the name and the way out.
        OSError: reading a folder or writing failed. A file without any commit is removed; else it stays at its last
            commit.
        KeyboardInterrupt: Ctrl-C; what was packed so far is committed (with mode "w", dropped), and "resume" goes on
            from there. A second Ctrl-C does not wait for that: the file stays at its commit before.
    """
    started = time.perf_counter()
    _check_options(mode, bad_files, list_path, classes_from, allow_empty_classes, shards, shard_size, commit_bytes)
    recode = Recode(short_side, max_side, quality, raw, crop_ready)
    if shard_size is not None and recode.changes:
        raise ValueError("how large images become is known only when they are packed: give shards, not shard_size")
    source, target = os.fspath(src), os.fspath(out)
    if list_path is not None:
        listing = list_csv(source, os.fspath(list_path))
    else:
        listing = list_folder(source, allow_empty_classes=allow_empty_classes)
        _refuse_inside(target, listing)
    if listing.bad and bad_files == "stop":
        position = next(i for i, key in enumerate(listing.keys) if key in listing.bad)
        raise _bad_file(listing, position, listing.bad[listing.keys[position]])
    known = None if classes_from is None else class_table(os.fspath(classes_from))
    labels, classes = number_labels(listing, known, str(classes_from))
    parts = plan(listing, target, shards=shards, shard_size=shard_size)
    refuse_strays(target, parts)
    if mode == "x":
        for part in parts:
            if os.path.lexists(part.path):
                raise FileExistsError(
                    f"{part.path}: exists already: choose --resume (go on with a killed pack), --append (add to it) or "
                    '--overwrite (replace it); in Python mode="resume", "a" or "w"'
                )
    packer = _Packer(listing, bad_files, recode, commit_bytes, progress)
    with HeldInterrupt() as interrupt:
        for part in parts:
            packer.pack(part, open_target(part, mode, listing, labels, classes, recode), mode, interrupt)
    if interrupt.pending:
        raise KeyboardInterrupt(f"{target}: all is packed, the pack is complete")
    summary = packer.summary
    summary.bytes = sum(os.path.getsize(path) for path in summary.paths)
    summary.empty_classes = _empty_classes(listing, {key for key, _ in summary.skipped})
    summary.ignored = listing.ignored
    summary.seconds = time.perf_counter() - started
    return summary


class _Packer:
    """Packs one part after the other, and adds up what was done."""

    def __init__(
        self,
        listing: Listing,
        bad_files: BadFiles,
        recode: Recode,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
    ) -> None:
        self.listing, self.bad_files, self.recode = listing, bad_files, recode
        self.commit_bytes, self.progress = commit_bytes, progress
        self.summary = PackSummary()

    def pack(self, part: Part, target: Target, mode: Mode, interrupt: HeldInterrupt) -> None:
        summary = self.summary
        writer = target.writer
        if writer is not None:
            before = len(writer)
            try:
                finished = self._fill(part, target, writer, interrupt)
                if not finished and (mode == "w" or len(writer) == target.first_record):
                    raise KeyboardInterrupt
                if len(writer) == 0 and len(target.skipped) == len(self.listing):
                    raise self._nothing(part, target)
                writer.metadata = target.metadata()
                writer.complete = finished
                summary.packed += len(writer) - before
                target.records = len(writer)
                writer.close()
                self._count(writer.recoded)
            except BaseException as err:
                writer.abort()
                _explain(part.path, err)
                raise
            if not finished:
                raise KeyboardInterrupt(
                    f"{part.path}: {target.records:,} records are committed: `--resume` goes on from there"
                )
        summary.paths.append(part.path)
        summary.classes = target.classes
        summary.records += target.records
        summary.skipped += target.skipped

    def _fill(self, part: Part, target: Target, writer: Writer, interrupt: HeldInterrupt) -> bool:
        """Append what the file does not have yet; return whether all was done, or Ctrl-C came first."""
        position = target.position
        files = _FIRST_RECODED_FILES if self.recode.changes else _FIRST_CHUNK_FILES
        committed_bytes, committed_records = writer.bytes_written, len(writer)
        self._report(position)
        while position < part.stop:
            if interrupt.pending:
                return False
            stop = min(position + files, part.stop)
            before, started = writer.bytes_written, time.perf_counter()
            self._append(range(position, stop), target, writer)
            grown, seconds = writer.bytes_written - before, time.perf_counter() - started
            self.summary.written += grown
            files = self._next_files(stop - position, grown, seconds)
            position = stop
            bytes_since, records_since = writer.bytes_written - committed_bytes, len(writer) - committed_records
            if bytes_since >= self.commit_bytes or records_since >= _COMMIT_RECORDS:
                writer.metadata = target.metadata()
                writer.commit()
                committed_bytes, committed_records = writer.bytes_written, len(writer)
            self._report(position)
        return True

    def _next_files(self, files: int, grown: int, seconds: float) -> int:
        """Return how many files the next chunk takes, by what this one of `files` took."""
        by_bytes = int(_CHUNK_BYTES * files / max(grown, 1))
        if not self.recode.changes:
            return min(max(by_bytes, _CHUNK_FILES.start), _CHUNK_FILES.stop - 1)
        by_time = int(_RECODE_SECONDS * files / max(seconds, 1e-9))
        return min(max(min(by_bytes, by_time, 4 * files), 1), _CHUNK_FILES.stop - 1)

    def _count(self, recoded: dict[str, int]) -> None:
        if self.recode.changes:
            before = self.summary.recoded or {}
            self.summary.recoded = {name: count + before.get(name, 0) for name, count in recoded.items()}

    def _report(self, position: int) -> None:
        if self.progress is not None:
            self.progress(PackProgress(position, len(self.listing), self.summary.written))

    def _append(self, positions: range, target: Target, writer: Writer) -> None:
        listing = self.listing
        if listing.list_path is not None:
            listing.find_irregular(positions)
        readable: Sequence[int] = positions
        if listing.bad:
            readable = [i for i in positions if listing.keys[i] not in listing.bad]
        values: dict[str, Sequence[Any] | NDArray[Any]] = {"key": [listing.keys[i] for i in readable]}
        if target.labels is not None:
            values["label"] = target.labels[np.asarray(readable, np.int64)]
        # Also when the first bad file is to end the pack: only so is its place in the list known, and what was appended
        # behind it goes with the abort.
        paths = [listing.path(i) for i in readable]
        failed = writer.append_files("image", paths, values, on_error="skip", **self.recode.keywords())
        reasons = {readable[at]: _reason(listing, readable[at], message) for at, message in failed}
        if listing.bad:
            reasons |= {i: listing.bad[key] for i in positions if (key := listing.keys[i]) in listing.bad}
        if reasons and self.bad_files == "stop":
            raise _bad_file(listing, *min(reasons.items()))
        target.skipped += [(listing.keys[i], reasons[i]) for i in sorted(reasons)]

    def _nothing(self, part: Part, target: Target) -> FastRecordError:
        key, reason = target.skipped[0]
        return FastRecordError(
            f"{part.path}: none of its {part.stop - part.start:,} input files is an image; the first, {key}: {reason}"
        )


def _check_options(
    mode: str,
    bad_files: str,
    list_path: object,
    classes_from: object,
    allow_empty_classes: bool,
    shards: int | None,
    shard_size: int | None,
    commit_bytes: int,
) -> None:
    if mode not in ("x", "a", "w", "resume"):
        raise ValueError(f'mode is "x", "a", "w" or "resume", not {mode!r}')
    if bad_files not in ("stop", "skip"):
        raise ValueError(f'bad_files is "stop" or "skip", not {bad_files!r}')
    if shards is not None and shard_size is not None:
        raise ValueError("give shards or shard_size, not both")
    for name, value in (("shards", shards), ("shard_size", shard_size), ("commit_bytes", commit_bytes)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is at least 1, not {value}")
    if mode == "a" and (shards is not None or shard_size is not None):
        raise ValueError("records are appended to one file: name it, without shards or shard_size")
    if mode == "a" and classes_from is not None:
        raise ValueError("a file that is appended to keeps its own classes: leave classes_from out")
    if list_path is not None and allow_empty_classes:
        raise ValueError("a list has no class folders that could be empty: leave allow_empty_classes out")


def _refuse_inside(out: str, listing: Listing) -> None:
    relative = os.path.relpath(os.path.realpath(out), os.path.realpath(listing.source)).split(os.sep)
    if len(relative) > 1 and relative[0] in (listing.classes or ()):
        raise FastRecordError(
            f"{out}: lies in the class folder {relative[0]!r} that it is made of: choose a place outside"
        )


def _bad_file(listing: Listing, position: int, reason: str) -> FastRecordError:
    return FastRecordError(
        f"{listing.describe(position)}: {reason}: remove the file, or leave out all that "
        "are no images with `--bad-files skip`"
    )


def _reason(listing: Listing, position: int, message: str) -> str:
    """Return what the core says of a file, without the path that it begins with and the system's error number."""
    return re.sub(r" \(os error \d+\)$", "", message.removeprefix(f"{listing.path(position)}: "))


def _explain(path: str, err: BaseException) -> None:
    """Say in a note what an error leaves behind."""
    try:
        with Reader(path) as reader:
            records, complete = len(reader), reader.complete
    except FileNotFoundError:
        err.add_note(f"{path}: nothing was committed, and no file is left")
        return
    except (FastRecordError, OSError):
        return  # the error at hand matters more
    if complete:
        err.add_note(f"{path}: the file is as it was before, with {records:,} records")
    else:
        err.add_note(
            f"{path}: the file is readable up to its last commit, {records:,} records: `--resume` goes on from there"
        )


def _empty_classes(listing: Listing, skipped: set[str]) -> list[str]:
    if listing.classes is None or listing.labels is None:
        return []
    counts = np.bincount(np.asarray(listing.labels), minlength=len(listing.classes))
    if skipped:
        gone = [label for key, label in zip(listing.keys, listing.labels, strict=True) if key in skipped]
        counts -= np.bincount(gone, minlength=len(listing.classes))
    return [listing.classes[label] for label in np.flatnonzero(counts == 0)]
