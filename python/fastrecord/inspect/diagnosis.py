"""`doctor`: properties of this machine and of files that make reading slow or unsafe.

Fast: takes less than a second for a file, and the only speed it measures is that of decoding a few images.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import shlex
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastrecord._core import (
    FastRecordError,
    Reader,
    codecs,
    count_chunks,
    image_size,
    side_kinds,
)
from fastrecord.dataset.manifest import is_one_file
from fastrecord.errors import system_text
from fastrecord.inspect.findings import Answer, Finding, Level
from fastrecord.inspect.machine import Machine, judge_machine, read_text, this_machine, versions
from fastrecord.inspect.mounts import (
    Disk,
    Mount,
    disk_of,
    judge_disk,
    judge_mount,
    mount_of,
    parse_locks,
    parse_mounts,
)
from fastrecord.inspect.packed_gain import PackedGain
from fastrecord.inspect.page_cache import resident_size
from fastrecord.look.values import CROP_INDEX, PACKED_JPEG
from fastrecord.store import is_url
from fastrecord.store.address import Url

if TYPE_CHECKING:
    from fastrecord.inspect.stores import StoreReport

# Number of records sampled to identify the images of a file.
_SAMPLE = 8
# Bytes of an image searched for its size.
_HEAD = 64 << 10
_JPEG = b"\xff\xd8\xff"
# Images below this number of pixels decode faster than their parts can be selected.
_SMALL_IMAGE = 96 * 96
# From this number of chunks of one column, looking up a record is slower than necessary.
_MANY_CHUNKS = 64
# A file whose pieces are smaller than this on average takes more read requests than necessary.
_PIECE_BYTES = 1 << 20
_MANY_PIECES = 64
_COLD = 0.1
# A smaller file is read quickly from any location.
_LARGE = 64 << 20
_FIEMAP = 0xC020660B  # FS_IOC_FIEMAP of linux/fs.h


@dataclass(slots=True)
class FileReport(Answer):
    """Properties of a file; None if unknown.

    Attributes:
        file: The caller's name for it.
        error: Why it cannot be read, or None.
        size: Size in bytes.
        mode: Permissions, as in `st_mode`.
        mappable: Whether the file system can map it into memory.
        resident: Number of its bytes in the page cache.
        pieces: Number of runs in which the file system stores it.
        mount: Its file system.
        disk: The disk below the file system.
        writer: Process that has it open for writing.
        records: Records in its newest commit.
        commits: Number of the newest commit.
        complete: False if its packing is unfinished.
        tail_bytes: Bytes after the newest commit.
        chunks: Number of chunks of the column with the most chunks.
        crop_index: Share of the sampled JPEGs that have a crop index; None if none is large enough to
            matter.
        packed: Share of them that are stored as packed coefficients.
        packed_gain: What packing them would cost and gain, measured here; None if most are packed, or
            have a crop index.
    """

    file: str
    error: str | None = None
    size: int | None = None
    mode: int | None = None
    mappable: bool | None = None
    resident: int | None = None
    pieces: int | None = None
    mount: Mount | None = None
    disk: Disk | None = None
    writer: int | None = None
    records: int | None = None
    commits: int | None = None
    complete: bool | None = None
    tail_bytes: int | None = None
    chunks: int | None = None
    crop_index: float | None = None
    packed: float | None = None
    packed_gain: PackedGain | None = None


@dataclass(slots=True)
class Report(Answer):
    """What was examined, and the findings.

    Attributes:
        versions: What is installed and built in.
        machine: Resources of this machine.
        files: The files, in the order given.
        stores: What was measured of each URL.
        findings: Findings about the machine, then about each file.
    """

    versions: dict[str, str | None]
    machine: Machine
    files: list[FileReport] = field(default_factory=list)
    stores: list[StoreReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def readable(self) -> bool:
        """Whether every file could be read."""
        return all(file.error is None for file in self.files)


def doctor(files: Sequence[str | os.PathLike[str]] = ()) -> Report:
    """Examine this machine and files: their file systems, disks, page cache and state.

    Changes nothing. Reads the newest commit of each file, and some of its images, which it decodes if
    they might be stored in a faster form.

    Args:
        files: .frec files, or data sets: folders of files, or their manifests. An unreadable file is
            a finding, not an exception. Or URLs, whose store is measured for some seconds.

    Raises:
        FileNotFoundError: a folder has no .frec file. CorruptFileError: a manifest is damaged.
        FastRecordError: a store does not answer.
    """
    from fastrecord.inspect.stores import measure_store

    stores = [measure_store(os.fspath(url)) for url in files if is_url(url)]
    paths = [name for path in files if not is_url(path) for name in _named(os.fspath(path))]
    machine = this_machine()
    report = Report(versions(), machine, stores=stores, findings=judge_machine(machine, len(paths)))
    mounts = parse_mounts(read_text("/proc/self/mountinfo") or "")
    locks = read_text("/proc/locks") or ""
    for path in paths:
        file = _look_at(Url(path), mounts, locks)
        report.files.append(file)
        report.findings += judge_file(file, machine)
    return report


def _named(path: str) -> list[str]:
    """Return the files of a data set; a file by itself is examined even if it cannot be read."""
    if is_one_file(path):
        return [path]
    from fastrecord.dataset.shards import find_files

    return find_files(path)


def _look_at(path: str, mounts: Sequence[Mount], locks: str) -> FileReport:
    about = FileReport(path)
    try:
        status = os.stat(path)
        about.mount = mount_of(os.path.realpath(path), mounts)
        about.disk = disk_of(status.st_dev)
        about.writer = parse_locks(locks, status.st_ino)
        about.size, about.mode = status.st_size, stat.S_IMODE(status.st_mode)
        # Before any other access: opening the file, and reading its images, brings parts of it into
        # memory.
        about.resident = resident_size(path)
        about.mappable = True
        try:
            reader = Reader(path, threads=1)
        except OSError as err:
            if err.errno != errno.ENODEV:
                raise
            reader, about.mappable = Reader(path, "pread", threads=1), False
        with reader:
            about.records, about.commits, about.complete = len(reader), reader.commit, reader.complete
            about.tail_bytes, about.chunks = reader.tail_bytes, count_chunks(reader)
            _look_at_images(reader, about)
        about.pieces = _pieces(path)
    except (FastRecordError, OSError) as err:
        about.error = system_text(err) if isinstance(err, OSError) else str(err)
    return about


def _pieces(path: str) -> int | None:
    """Return the number of runs of a file on its disk; None if it is not reported."""
    # start, length, flags, extents found, extents requested, reserved: with none requested, extents
    # are only counted.
    request = array.array("B", struct.pack("=QQIIII", 0, 2**64 - 1, 0, 0, 0, 0))
    with open(path, "rb") as file:
        try:
            fcntl.ioctl(file, _FIEMAP, request)
        except OSError:
            return None
    return int(struct.unpack("=QQIIII", request.tobytes())[3])


def _look_at_images(reader: Reader, about: FileReport) -> None:
    """Find how the JPEGs that are large enough to matter are stored, from a sample."""
    names = [name for name, kind in reader.schema.items() if kind.name == "image"]
    if not names or not len(reader):
        return
    name = names[0]
    numbers = sorted({i * (len(reader) - 1) // (_SAMPLE - 1) for i in range(_SAMPLE)})
    indexed, packed, originals = [], [], []
    stored = zip(
        numbers, side_kinds(reader, name, numbers).tolist(), codecs(reader, name, numbers).tolist(), strict=True
    )
    for number, kind, codec in stored:
        value = reader.get(number, name)
        head = b"" if value is None else bytes(value[:_HEAD])
        if head.startswith(_JPEG):
            # only a large image has so long a header
            width, height = image_size(head) or (_SMALL_IMAGE, 1)
            if width * height >= _SMALL_IMAGE:
                indexed.append(kind == CROP_INDEX)
                packed.append(codec == PACKED_JPEG)
                originals.append(bytes(value))
    if originals:
        about.crop_index, about.packed = (sum(each) / len(originals) for each in (indexed, packed))
        if max(about.crop_index, about.packed) < 0.5:
            about.packed_gain = PackedGain.measure(originals)


def judge_file(file: FileReport, machine: Machine) -> list[Finding]:
    """Return the findings about a file on a machine."""
    if file.error is not None:
        message = file.error.removeprefix(f"{file.file}: ")
        command = f"fastrecord verify {shlex.quote(file.file)}" if os.path.isfile(file.file) else None
        return [Finding("warning", "unreadable", message, command, file.file)]
    found = [] if file.mount is None else judge_mount(file.file, file.mount)
    if file.disk is not None:
        found += judge_disk(file.file, file.disk)
    if file.mappable is False:
        message = 'its file system does not map files: open it with access="pread", which copies views'
        found.append(Finding("warning", "no-mapping", message, file=file.file))
    found += [*_judge_state(file), *_judge_cache(file, machine)]
    if (file.mode or 0) & stat.S_IWOTH:
        message = "everyone may write to it: a program that truncates or changes it may end its readers"
        found.append(Finding("warning", "writable", message, f"chmod o-w {shlex.quote(file.file)}", file.file))
    return found


def _judge_state(file: FileReport) -> list[Finding]:
    quoted, pieces, size = shlex.quote(file.file), file.pieces or 0, file.size or 0
    compact = f"fastrecord compact {quoted}"
    found: list[tuple[Level, str, str, str]] = []
    if not file.complete:
        message = "its packing is not complete: data sets refuse it"
        found.append(("warning", "incomplete", message, f"fastrecord pack --resume SRC {quoted}"))
    if file.writer is not None:
        message = f"process {file.writer} is writing to it; readers see what is committed, and more by `refresh`"
        found.append(("note", "writer", message, f"ps -fp {file.writer}"))
    elif file.tail_bytes:
        message = (
            f"{file.tail_bytes:,} bytes after the last commit: a writer was stopped; they are harmless, and the next "
        )
        found.append(("note", "tail", f"{message}writer drops them", compact))
    if (file.chunks or 0) >= _MANY_CHUNKS:
        message = f"its index lies in {file.chunks:,} pieces: looking up records takes longer than necessary"
        found.append(("note", "chunks", message, compact))
    if file.packed_gain is not None and file.packed_gain.worth_it:
        message = f"its JPEGs could be packed, with the same values: {file.packed_gain}"
        found.append(("note", "packed", message, f"{compact} --packed"))
    elif file.crop_index is not None and max(file.crop_index, file.packed or 0.0) < 0.5:
        message = "its JPEGs have no crop index: a random crop decodes all rows above it, too"
        found.append(("note", "crop-index", message, f"fastrecord index {quoted}"))
    if pieces >= _MANY_PIECES and size / pieces < _PIECE_BYTES:
        message = f"the file system keeps it in {pieces:,} pieces of {size / pieces / 1e3:,.0f} kB on average"
        found.append(("note", "fragmented", message, compact))
    if not found:
        message = f"{file.records:,} records, complete, its index in {file.chunks:,} pieces a column at most"
        return [Finding("ok", "state", message, file=file.file)]
    return [Finding(*each, file.file) for each in found]


def _judge_cache(file: FileReport, machine: Machine) -> list[Finding]:
    size, granted, quoted = file.size or 0, machine.memory_granted, shlex.quote(file.file)
    if granted is not None and size > granted:
        message = (
            f"{size / 1e9:.1f} GB, and {granted / 1e9:.1f} GB of memory at most: every epoch reads from the disk, "
        )
        message += "which `fastrecord bench` measures"
        return [Finding("note", "larger-than-memory", message, f"fastrecord bench --cold {quoted}", file.file)]
    if file.resident is None or not size:
        return []
    share = file.resident / size
    message = f"{100 * share:.0f} % of it lie in the page cache"
    if share < _COLD and size >= _LARGE:
        message += ": the first epoch reads from the disk"
        return [Finding("note", "cold", message, f"cat {quoted} > /dev/null", file.file)]
    return [Finding("ok", "page-cache", message, file=file.file)]
