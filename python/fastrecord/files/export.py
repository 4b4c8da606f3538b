"""`export`: writes the records of .frec files in a format of other tools."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from typing import Any, Unpack

from fastrecord._core import Reader
from fastrecord.checks import integer
from fastrecord.dataset.shards import Paths, find_files
from fastrecord.errors import Code, FastRecordError
from fastrecord.files.copy_job import Progress, Replacing, opened
from fastrecord.files.interrupt import HeldInterrupt
from fastrecord.files.merging import merge_metadata
from fastrecord.files.publish.staging import Staging, sync_folder
from fastrecord.files.read_ahead import ReadAhead
from fastrecord.files.runs import read_runs
from fastrecord.interchange import Destination, Format
from fastrecord.interchange.format import Found
from fastrecord.interchange.registry import load, names
from fastrecord.schema import Schema
from fastrecord.schema.classes import class_names

# A disk with less room than this is full.
_FULL = 1 << 20
# A sync for each of more files than this, if they are small, takes longer than one of everything, which tells no error.
_MANY, _SMALL = 100, 1 << 20


@dataclass(slots=True)
class ExportSummary:
    """Result of an export.

    Attributes:
        path: The file or folder written.
        format: Name of its format.
        records: Number of records.
        fields: Names of the fields written.
        dropped: Names of the fields left out.
        files: Number of files written.
        bytes: Total size of these files.
        source_bytes: Total size of the .frec files.
        seconds: Wall time.
    """

    path: str
    format: str
    records: int = 0
    fields: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    source_bytes: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return asdict(self)


def export(
    path: Paths,
    destination: str | os.PathLike[str],
    format: str,  # noqa: A002  the public name
    *,
    shard_size: int | None = None,
    drop: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    **options: Unpack[Replacing],
) -> ExportSummary:
    """Write all records, in order, in a format of other tools, with verified checksums.

    `fastrecord.pack` makes the same records of it again. One thread reads ahead of the writing one.
    Memory stays below some hundred MB, unless single records are larger.

    Args:
        path: A .frec file; or a folder, a pattern or a sequence of files, such as the shards of a
            set: one after the other.
        destination: The file or folder to write. It appears when it is complete.
        format: Name of the format: folder, webdataset, lmdb, tfrecord, recordio, hdf5, numpy, parquet,
            arrayrecord, mds, or one that an installed package adds.
        shard_size: Make `destination` a folder of files `NAME-00000.EXT`, each with values of at
            most so many bytes (unless a single record has more): images as they are stored, text as
            UTF-8, numbers as in the .frec file. The files are larger by what the format adds.
            Formats that divide their records themselves count in their own way.
        drop: Fields to leave out.
        settings: Settings of the format, by name; docs/formats.md lists them.
        options: As in `fastrecord.files.Replacing`.

    Raises:
        FastRecordError: no such format; a package that it needs is not installed; the format cannot
            hold fields or a value (names them); a file is incomplete, or shards are missing;
            `destination` is one of the files, or holds one.
        SchemaError: several files differ in their fields or classes; no field of a name in `drop`.
        CorruptFileError: a checksum differs; names the record.
        FileExistsError: `destination` exists.
        ValueError: an unknown setting, or a value that it does not have.
        OSError: reading or writing failed.
        KeyboardInterrupt: Ctrl-C.

    After an error `destination` is as it was before. What a killed export leaves beside it, in
    `destination.tmp-xxxxxxxx`, the next one to this destination removes.
    """
    started = time.perf_counter()
    kind, values = check_format(format, shard_size, settings or {})
    paths = [path] if isinstance(path, (str, os.PathLike)) and os.path.isfile(path) else find_files(path)
    with opened(paths, access="pread", **options) as readers:
        schema = _schema(readers[0], kind, drop)
        metadata = _metadata(readers)
        _check_destination(os.fspath(destination), [reader.path for reader in readers], kind)
        with Staging(destination, overwrite=options.get("overwrite", False)) as staging:
            try:
                create = partial(kind.create, schema=schema, metadata=metadata, settings=values)
                _write(readers, list(schema), kind, create, staging, shard_size, options.get("progress"))
                files, size = _synced(staging.path)
                with HeldInterrupt() as interrupt:
                    staging.finish()
            except KeyboardInterrupt as err:
                raise KeyboardInterrupt(_left(staging)) from err
            except Exception as err:
                told = _told(err, staging)
                told.add_note(_left(staging))
                if told is err:
                    raise
                raise told from err
        if interrupt.pending:
            raise KeyboardInterrupt(f"{staging.given}: everything is written")
        return ExportSummary(
            path=staging.given,
            format=kind.name,
            records=sum(len(reader) for reader in readers),
            fields=list(schema),
            dropped=[name for name in readers[0].schema if name not in schema],
            files=files,
            bytes=size,
            source_bytes=sum(os.path.getsize(reader.path) for reader in readers),
            seconds=time.perf_counter() - started,
        )


def check_format(name: str, shard_size: int | None, settings: Mapping[str, str]) -> tuple[Format, dict[str, str]]:
    """Return a format, and settings for `Format.create`.

    Raises:
        ValueError, FastRecordError: as `export`, for arguments that do not fit the format.
    """
    kind = load(name)
    if not kind.writes:
        raise Code.UNKNOWN_FORMAT.error(
            f"{kind.title} can only be read: the formats that can be written are {', '.join(names(writes=True))}"
        )
    values = kind.check_settings(settings)
    if shard_size is None:
        return kind, values
    integer("shard_size", shard_size, 1)
    if not kind.shards:
        if "shard_size" not in kind.settings:
            raise ValueError(f"{kind.title} cannot be divided into shards: leave out shard_size (--shard-size)")
        values["shard_size"] = str(shard_size)
    return kind, values


def _schema(reader: Reader, kind: Format, drop: Sequence[str]) -> Schema:
    if isinstance(drop, str):
        raise TypeError(f"drop is a sequence of names of fields, not one str: {drop!r}")
    for name in drop:
        if name not in reader.schema:
            raise Code.NO_FIELD.error(
                f"{reader.path}: no field {name!r} to leave out: it has {', '.join(reader.schema)}"
            )
    schema = Schema({name: each for name, each in reader.schema.items() if name not in drop})
    if not schema:
        raise Code.NO_FIELD.error(f"{reader.path}: every field is to be left out: keep one")
    if refused := kind.refuse(schema):
        reasons = "; ".join(f"{name!r}: {why}" for name, why in refused.items())
        options = " ".join(f"--drop {name}" for name in refused)
        what, them = ("a field", "it") if len(refused) == 1 else ("these fields", "them")
        raise Code.CANNOT_HOLD.error(
            f"{reader.path}: {kind.title} cannot hold {what}: {reasons}: `{options}` (drop={list(refused)}) leaves "
            f"{them} out; or choose another format"
        )
    return schema


def _metadata(readers: Sequence[Reader]) -> dict[str, Any]:
    metadata, _ = merge_metadata(readers)
    classes = class_names(readers[0])
    for reader in readers[1:]:
        if class_names(reader) != classes:
            raise Code.FIELDS_DIFFER.error(
                f"{reader.path}: has other classes than {readers[0].path}: `fastrecord merge` gives both the same ones"
            )
    return metadata if classes is None else metadata | {"classes": classes}


def _check_destination(path: str, sources: Sequence[str], kind: Format) -> None:
    """Refuse to replace what is read, and folders that hold something else than an export."""
    target = os.path.realpath(path)
    for source in map(os.path.realpath, sources):
        if source == target or source.startswith(target + os.sep):
            raise Code.OUTPUT_IS_INPUT.error(f"{path}: is or holds {source}, which is to be read: choose another place")
    if not os.path.isdir(target):
        return
    found = Found.at(target)
    stem, ending = _shard_name(target, kind)
    shard = re.compile(rf"{re.escape(stem)}-\d{{5,}}{re.escape(ending)}")
    other = next((name for name in found.names if not shard.fullmatch(name)), None)
    if other is not None and kind.recognise(found) is None:
        raise FileExistsError(
            f"{path}: exists already, a folder whose {other!r} may be another thing than an export to {kind.title}: "
            "remove the folder, or choose another place"
        )


def _shard_name(path: str, kind: Format) -> tuple[str, str]:
    """Return the beginning and the end of the names of shards."""
    name = os.path.basename(path)
    endings = sorted((each for each in kind.suffixes if name.endswith(each)), key=len)
    ending = endings[-1] if endings else kind.suffixes[0] if kind.suffixes else ""
    return name.removesuffix(ending), ending


def _write(
    readers: Sequence[Reader],
    fields: Sequence[str],
    kind: Format,
    create: Callable[[str], Destination],
    staging: Staging,
    shard_size: int | None,
    progress: Progress | None,
) -> None:
    """Write all records into one file, or into a folder of shards."""
    stem, ending = _shard_name(staging.target, kind)
    shards = (os.path.join(staging.path, f"{stem}-{number:05d}{ending}") for number in count())
    several = kind.shards and shard_size is not None
    if several:
        os.mkdir(staging.path)
    destination = create(next(shards) if several else staging.path)
    try:
        done, total = 0, sum(map(len, readers))
        # A format that makes its own shards, or none, is not told of new ones.
        with ReadAhead(read_runs(readers, fields, shard_size if several else None)) as runs:
            for run, columns in runs:
                if run.new_shard:
                    destination.next_shard(next(shards))
                destination.write(done, columns)
                done += run.stop - run.start
                columns.clear()  # its memory is used again
                if progress is not None:
                    progress(done, total)
        destination.close()
    except BaseException:
        with suppress(Exception):  # the error that led here counts
            destination.abort()
        raise


def _synced(path: str) -> tuple[int, int]:
    """Sync what lies at a path to the disk, and return the number of files and their size in bytes."""
    below = list(os.walk(path))
    files = [os.path.join(folder, name) for folder, _, names in below for name in names] or [path]
    size = sum(map(os.path.getsize, files))
    at_once = len(files) > _MANY and size < len(files) * _SMALL
    if at_once:
        os.sync()
    for each in () if at_once else files:
        with open(each, "rb") as file:
            os.fsync(file.fileno())
    for folder, _, _ in below:
        sync_folder(folder)
    return len(files), size


def _told(err: Exception, staging: Staging) -> Exception:
    """Return an error as the caller should see it: with the path that was given, and the way out."""
    if isinstance(err, FastRecordError):
        if err.code in (Code.NO_VALUE, Code.CANNOT_HOLD) and err.way_out is None:
            err.way_out = "`--drop` (drop=) leaves the field out"
        return err
    module = type(err).__module__.partition(".")[0]
    if module != "builtins" or isinstance(err, RuntimeError) or getattr(err, "errno", 0) in (None, errno.EIO):
        room = os.statvfs(os.path.dirname(staging.path))
        if room.f_bavail * room.f_frsize < _FULL:  # libraries say that in many ways
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), staging.given)
    if module != "builtins":
        return OSError(errno.EIO, f"{module}: {err}", staging.given)
    if isinstance(err, OSError) and err.errno is not None and err.strerror is not None:
        name = staging.given if err.filename is None else str(err.filename)
        return type(err)(err.errno, err.strerror, name.replace(staging.path, staging.given))
    return err


def _left(staging: Staging) -> str:
    """Return what a failed export leaves, for a message."""
    return f"{staging.given}: {'is as it was before' if os.path.lexists(staging.target) else 'nothing is written'}"
