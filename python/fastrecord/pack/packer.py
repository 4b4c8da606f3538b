"""`Packer`: fills the files of a pack, one after the other.

Leaves files in a known state after errors and Ctrl-C.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from fastrecord._core import FastRecordError, Reader, Writer
from fastrecord.checks import choice, flag, integer
from fastrecord.dataset.manifest import NAME
from fastrecord.errors import Code
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.manifest import name_new_shards
from fastrecord.files.places import refuse_irregular
from fastrecord.files.shard_names import Part, as_set, as_set_begun, refuse_strays
from fastrecord.pack.output import Target
from fastrecord.store import is_url

if TYPE_CHECKING:  # what packs into files does without it
    from fastrecord.files.upload import Upload

_log = logging.getLogger("fastrecord.pack")

Mode = Literal["create", "append", "resume", "overwrite"]
BadFiles = Literal["stop", "skip"]

# Maximum number of skipped files named in the log.
_NAMED = 20
# A writer commits by itself, within a chunk, when its index takes 64 MiB of memory; this limit
# comes long before.
COMMIT_RECORDS = 1 << 18


@dataclass(frozen=True, slots=True)
class PackProgress:
    """Progress of a pack.

    Attributes:
        files: Input files, or records of another format, done, packed or skipped, including earlier
            runs.
        total: Their number in the input; None if it is not known.
        bytes: Bytes that this run has written.
        stage: "sizes" during the lookup of the sizes of pairs, then "pack".
    """

    files: int
    total: int | None
    bytes: int
    stage: Literal["sizes", "pack"] = "pack"


@dataclass(slots=True)
class PackSummary:
    """Result of a pack.

    Attributes:
        paths: The files written, in order.
        records: Total number of records in them.
        packed: Number of records that this run added.
        bytes: Total size of the files.
        written: Bytes that this run has written.
        classes: Class names, position = label; None if labels are plain numbers or absent.
        empty_classes: Classes of the input without any packed file.
        skipped: (key, reason) for each input file that was left out.
        ignored: Files beside the class folders, which have no class.
        foreign: Kind -> number of images of this run that fastrecord itself cannot decode, such as
            AVIF. The loader has Pillow decode them, one by one.
        recoded: Counts of this run if images were to be changed: the number of `images`, and how
            many were `kept` byte for byte, made `smaller`, `crop_ready` or `raw`, or have a
            `crop_index`; `bytes_in` of the input files and `bytes_out` as stored.
        scale: Ratio of the sizes of the larger and smaller images of pairs; None without pairs, or
            without a common scale.
        format: Format of the source of an import; None for a pack.
        recognised: Why the source was taken for it; None if the caller named the format.
        left_out: What the source of an import holds and does not give, and why.
        manifest: The `dataset.json` that names the files as shards of one data set; None without one.
        not_named: Why no `dataset.json` names the new shards; None if one does, or the output is one file.
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
    foreign: dict[str, int] = field(default_factory=dict)
    recoded: dict[str, int] | None = None
    scale: int | None = None
    format: str | None = None
    recognised: str | None = None
    left_out: list[str] = field(default_factory=list)
    manifest: str | None = None
    not_named: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self) | {"skipped": [{"key": key, "reason": reason} for key, reason in self.skipped]}


@contextmanager
def destination(
    out: str | os.PathLike[str],
    mode: Mode,
    *,
    sharded: bool,
    staging: str | os.PathLike[str] | None,
    options: Mapping[str, Any] | None,
) -> Iterator[tuple[str, Mode, Upload | None]]:
    """Yield the path to pack to, what to do with files there, and the way to a store if `out` is a URL.

    Args:
        out: The output of a pack.
        mode: What to do with existing files.
        sharded: Whether it is divided into shards.
        staging: Folder for shards on their way to a store.
        options: Options of the store.

    Raises:
        FileExistsError, FastRecordError: as `Upload`.
    """
    path = os.fspath(out)
    if not is_url(path):
        yield path, mode, None
        return
    from fastrecord.files.upload import Upload

    with Upload(path, mode, sharded=sharded, staging=staging, options=options) as upload:
        yield upload.base, "resume", upload


class Packer(ABC):
    """Packs one part after the other, and sums up the results.

    Args:
        bad_files: Whether a bad file or record ends the pack.
        commit_bytes: Commit durably each time this many bytes have been written.
        progress: Called a few times a second.
        total: Number of input files or records; None if unknown.
        started: When the pack began, by `time.perf_counter`.
    """

    def __init__(
        self,
        bad_files: BadFiles,
        commit_bytes: int,
        progress: Callable[[PackProgress], None] | None,
        *,
        total: int | None,
        started: float,
    ) -> None:
        self.bad_files, self.commit_bytes, self.progress, self.total = bad_files, commit_bytes, progress, total
        self.summary = PackSummary()
        # The way to an object store, if the files go there, and what tells this pack from others.
        self.upload: Upload | None = None
        self.identity: Any = None
        self._started = started

    @abstractmethod
    def fill(self, part: Part, target: Target, writer: Writer, interrupt: HeldInterrupt) -> bool:
        """Append what the file lacks; return whether everything was done, or Ctrl-C came first."""

    @abstractmethod
    def nothing(self, part: Part, target: Target) -> FastRecordError | None:
        """Return the error for a file without any record; None if it may be empty."""

    def count(self, writer: Writer) -> None:  # noqa: B027 - by default there is nothing to count
        """Add a writer's counts to the summary."""

    def count_foreign(self, kinds: Mapping[str, int]) -> None:
        """Add images of kinds that the core cannot decode to the summary."""
        for kind, number in kinds.items():
            self.summary.foreign[kind] = self.summary.foreign.get(kind, 0) + number

    def report(self, position: int) -> None:
        """Tell the caller how much of the input is done."""
        if self.progress is not None:
            self.progress(PackProgress(position, self.total, self.summary.written))

    def run(self, parts: Sequence[Part], out: str, mode: Mode, opened: Callable[[Part], Target]) -> PackSummary:
        """Pack all parts.

        Args:
            parts: The files to write.
            out: The caller's name for them.
            mode: What to do with existing files.
            opened: Opens the file of a part.
        """
        if self.upload is not None:
            return self._send(self.upload, parts, opened)
        refuse_strays(out, parts)
        for part in parts:
            refuse_irregular(part.path)
        if mode == "create":
            for part in parts:
                if os.path.lexists(part.path):
                    raise FileExistsError(
                        f"{part.path}: exists already: `--resume` (resume=True) continues a killed pack, `--append` "
                        "(append=True) adds records, `--overwrite` (overwrite=True) replaces it"
                    )
        if parts[0].path != out:
            parts = as_set_begun(parts) if mode == "resume" else as_set(parts)
        with HeldInterrupt() as interrupt:
            if mode == "overwrite":
                self._replace(parts, opened, interrupt)
            else:
                with self._naming(parts):
                    for part in parts:
                        self._pack(part, opened(part), interrupt)
            self._name(out, parts)
        if interrupt.pending:
            raise KeyboardInterrupt(f"{out}: the pack is complete")
        self.summary.bytes = sum(os.path.getsize(path) for path in self.summary.paths)
        return self._summed_up()

    @contextmanager
    def _naming(self, parts: Sequence[Part]) -> Iterator[None]:
        """Add the shards that an error leaves to it."""
        try:
            yield
        except BaseException as err:
            whole = self.summary.paths
            if whole and len(parts) > 1:
                to = f" to {whole[-1]}" if len(whole) > 1 else ""
                err.add_note(
                    f"{len(whole):,} of {len(parts):,} shards are whole, {whole[0]}{to}: `--resume` packs the others"
                )
            raise

    def _send(self, upload: Upload, parts: Sequence[Part], opened: Callable[[Part], Target]) -> PackSummary:
        """Pack all parts and send each; together they become a data set in the end."""
        summary = self.summary
        begun = upload.begin(parts, self.identity)
        with HeldInterrupt() as interrupt:
            for part in begun:
                if (sent := upload.sent(part.path)) is None:
                    target = opened(part)
                    self._pack(part, target, interrupt)
                    upload.send(part.path, target.skipped, lambda: interrupt.pending)
                    continue
                entry, skipped = sent
                summary.paths.append(part.path)
                summary.classes = entry.classes
                summary.records += entry.records
                summary.skipped += skipped
                if self.total is not None:
                    self.report(min(part.stop, self.total))
            entries = upload.finish([part.path for part in begun], lambda: interrupt.pending) if begun else []
        if interrupt.pending:
            raise KeyboardInterrupt(f"{upload.url}: the pack is complete")
        if not begun:
            entries = upload.stored()
            summary.records, summary.classes = sum(entry.records for entry in entries), entries[0].classes
        summary.paths = [upload.where(entry.name) for entry in entries]
        summary.bytes = sum(entry.bytes for entry in entries)
        summary.manifest = None if upload.is_file else upload.where(NAME)
        return self._summed_up()

    def _summed_up(self) -> PackSummary:
        summary = self.summary
        summary.seconds = time.perf_counter() - self._started
        self._tell()
        return summary

    def _name(self, out: str, parts: Sequence[Part]) -> None:
        """Make the manifest of the folder name the shards, now that all are whole."""
        try:
            new = name_new_shards([part.path for part in parts], only_renew=parts[0].path == out)
        except (FastRecordError, OSError) as err:
            folder = os.path.dirname(os.path.abspath(parts[0].path))
            err.add_note(f"{out}: all records are packed; only the manifest of {folder} is as it was before")
            raise
        if new is not None:
            self.summary.manifest, self.summary.not_named = new.manifest, new.left

    def _tell(self) -> None:
        summary = self.summary
        for key, reason in summary.skipped[:_NAMED]:
            _log.warning("skipped: %s: %s", key, reason)
        if len(summary.skipped) > _NAMED:
            _log.warning("skipped %d more files", len(summary.skipped) - _NAMED)
        if summary.foreign:
            _log.warning("%s: %s", summary.paths[0], foreign_text(summary.foreign))
        if summary.not_named is not None:
            _log.warning("%s", summary.not_named)
        counts = summary.packed, summary.records, len(summary.paths), summary.seconds
        _log.info("%s: %d records packed, of %d in %d file(s), in %.1f s", summary.paths[0], *counts)

    def _pack(self, part: Part, target: Target, interrupt: HeldInterrupt, *, replaces: bool = False) -> None:
        """Pack one part; a file that replaces another one is then durable, but not yet renamed."""
        summary = self.summary
        writer = target.writer
        if writer is not None:
            before = len(writer)
            with _explained(part.path, writer):
                finished = self.fill(part, target, writer, interrupt)
                if not finished and (replaces or len(writer) == target.first_record):
                    raise KeyboardInterrupt
                if len(writer) == 0 and (error := self.nothing(part, target)) is not None:
                    raise error
                writer.metadata = target.metadata()
                writer.complete = finished
                summary.packed += len(writer) - before
                target.records = len(writer)
                if replaces:
                    writer._finish()
                else:
                    writer.close()
                self.count(writer)
            if not finished:
                raise KeyboardInterrupt(
                    f"{part.path}: {target.records:,} records are committed: `--resume` continues from there"
                )
        summary.paths.append(part.path)
        summary.classes = target.classes
        summary.records += target.records
        summary.skipped += target.skipped

    def _replace(self, parts: Sequence[Part], opened: Callable[[Part], Target], interrupt: HeldInterrupt) -> None:
        """Pack all parts, and rename them when all are whole; until then the old files stay."""
        with ExitStack() as stack:
            begun: list[tuple[Part, Target, Writer]] = []
            # Find obstacles to the final rename before hours of work.
            for part in parts:
                target = opened(part)
                if target.writer is not None:
                    stack.callback(target.writer.abort)
                    begun.append((part, target, target.writer))
            for part, target, _ in begun:
                self._pack(part, target, interrupt, replaces=True)
            for part, _, writer in begun:
                with _explained(part.path, writer):
                    writer.close()


@contextmanager
def _explained(path: str, writer: Writer) -> Iterator[None]:
    """Abort a writer after an error, and add a note about what is left."""
    try:
        yield
    except BaseException as err:
        writer.abort()
        _explain(path, err)
        raise


def foreign_text(kinds: Mapping[str, int]) -> str:
    """Return a text about images of kinds that the core cannot decode."""
    names = ", ".join(f"{kind}: {number:,}" for kind, number in sorted(kinds.items()))
    return (
        f"{sum(kinds.values()):,} images are of kinds that fastrecord does not decode ({names}): the loader leaves "
        "them to Pillow, one by one, in the training loop's thread"
    )


def _explain(path: str, err: BaseException) -> None:
    """Add a note to an error about what remains."""
    if isinstance(err, FastRecordError) and err.code == Code.NAME_LOST:
        return  # it names the location of the records, which the path does not lead to
    if isinstance(err, OSError):
        err.__notes__ = []  # the writer's own notes, which do not mention `--resume`
    room = "make room, then " if isinstance(err, OSError) and err.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    try:
        with Reader(path) as reader:
            records, complete = len(reader), reader.complete
    except FileNotFoundError:
        err.add_note(f"{path}: nothing was committed, and no file is left{room and ': make room, then pack again'}")
        return
    except (FastRecordError, OSError):
        return  # the original error matters more
    if complete:
        err.add_note(f"{path}: the file is as it was before, with {records:,} records")
    else:
        kept = f"{path}: the file is readable up to its last commit, {records:,} records"
        err.add_note(f"{kept}: {room}`--resume` continues from there")


def check_options(
    append: bool,
    resume: bool,
    overwrite: bool,
    bad_files: str,
    shards: int | None,
    shard_size: int | None,
    commit_bytes: int,
    out: str | os.PathLike[str] = "",
    staging: str | os.PathLike[str] | None = None,
) -> Mode:
    """Refuse options that are invalid for any pack to `out`; return what the pack does with its output.

    Raises:
        ValueError: the message names the option.
    """
    modes: dict[Mode, bool] = {"append": append, "resume": resume, "overwrite": overwrite}
    given = [mode for mode, value in modes.items() if flag(mode, value)]
    if len(given) > 1:
        raise ValueError("give one of append, resume and overwrite: resume also continues a killed append")
    choice("bad_files", bad_files, get_args(BadFiles))
    if shards is not None and shard_size is not None:
        raise ValueError("give shards or shard_size, not both")
    for name, value in (("shards", shards), ("shard_size", shard_size), ("commit_bytes", commit_bytes)):
        if value is not None:
            integer(name, value, 1)
    if staging is not None and not is_url(out):
        raise ValueError("staging is where shards wait that go to an object store: leave it out")
    if append and (shards is not None or shard_size is not None) and not is_url(out):
        raise ValueError("records are appended to one file: name it, without shards or shard_size")
    return given[0] if given else "create"
