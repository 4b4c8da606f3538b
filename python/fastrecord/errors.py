"""The exceptions of fastrecord, and `Code`, the table of their codes.

An exception holds what it says as values, and joins them in `__str__` alone. `scripts/error_codes.py` copies the
table into docs/errors.md.
"""

from __future__ import annotations

import errno
import os
import re
from enum import StrEnum
from typing import Any, Self, cast

_CODE = re.compile(r"\[(FR\d{3})\]\s*$", re.MULTILINE)


class FastRecordError(Exception):
    """Base class of the errors of fastrecord. Its message has the place, the text, the way out and the code.

    A worker of a `DataLoader` passes on the message alone: the code is then read from it.

    Attributes:
        code: The code, such as "FR302", which docs/errors.md explains; None without a code.
        text: What is wrong.
        path: The file that it is about; None if the text names it, or there is none.
        record: The number of the record in its file; None if it is not about one record.
        field: The field of the value; None if it is not about one value.
        key: The key of the record, if it is known.
        way_out: What to do, unless the text says it.
    """

    def __init__(
        self,
        text: str = "",
        code: str | None = None,
        path: str | None = None,
        record: int | None = None,
        field: str | None = None,
        *,
        key: str | None = None,
        way_out: str | None = None,
    ) -> None:
        super().__init__(text)
        if code is None and (code := code_of(text)) is not None:
            text = text.rstrip().removesuffix(f" [{code}]")
        self.code, self.text, self.way_out = code, text, way_out
        self.path, self.record, self.field, self.key = path, record, field, key

    def __str__(self) -> str:
        """Return the message."""
        record = None if self.record is None else f"record {self.record}"
        key = None if self.key is None else f"key {self.key!r}"
        field = None if self.field is None else f"field {self.field}"
        place = ", ".join(filter(None, (record, key, field)))
        message = ": ".join(filter(None, (self.path, place, self.text, self.way_out)))
        return message if self.code is None else f"{message} [{self.code}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class CorruptFileError(FastRecordError):
    """Bytes break the format, or a checksum differs."""


class NoCommitError(CorruptFileError):
    """The file's writer was stopped before its first commit."""


class SchemaError(FastRecordError):
    """A schema is not allowed, or a value does not fit it."""


class LockedError(FastRecordError):
    """Another writer has the file open."""


class DecodeError(FastRecordError):
    """Bytes are not an image, or one that cannot be decoded."""

    output: int  # of the loader, set by `Load.make_of`


class UnsupportedVersionError(FastRecordError):
    """The file was written by a newer fastrecord."""


def parsed(message: str) -> FastRecordError:
    """Return the error of a message in a report."""
    return FastRecordError(message)


def code_of(text: str) -> str | None:
    """Return the code of a message: the last one that ends a line, as in a traceback; None without a code."""
    found = _CODE.findall(text)
    return found[-1] if found else None


_Kind = type[Exception]


class Code(StrEnum):
    """The code of an error: its classes, what it means, and what to do.

    A code never changes its meaning and is never reused. The core raises errors of these codes too:
    rust/core/src/error/code.rs.
    """

    kinds: tuple[_Kind, ...]
    meaning: str
    way_out: str

    def __new__(cls, code: str, kinds: _Kind | tuple[_Kind, ...], meaning: str, way_out: str) -> Self:
        """Make a member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        member.meaning, member.way_out = meaning, way_out
        return member

    def error(self, text: str, **place: Any) -> FastRecordError:
        """Return an error of the code's class, which is one of fastrecord's.

        Args:
            text: What is wrong.
            place: Other attributes of a `FastRecordError`.
        """
        kind: Any = self.kinds[0]
        error = kind(text, **place) if issubclass(kind, FastRecordError) else kind(self.text(text))
        error.code = str(self)
        return cast("FastRecordError", error)

    def text(self, message: str) -> str:
        """Return a message with the code at its end."""
        return f"{message} [{self}]"

    # fmt: off

    # 1: the system
    IO = ("FR101", OSError,
        "the system refuses to open, read or write; errno and path are named",
        "as errno says: free space, permissions, the disk's health (`dmesg`)")
    MEMORY = ("FR102", MemoryError,
        "no memory for a batch, an image, or for compressing",
        "use smaller batches; keep fewer of them; add memory")
    THREADS = ("FR103", RuntimeError,
        "no thread can be started",
        "raise the limit of the user or the container on processes (`ulimit -u`, `pids.max`) or on memory "
        "(`ulimit -v`)")
    INTERRUPTED = ("FR104", FastRecordError,
        "the call was interrupted",
        "nothing: the interruption was requested")
    UNREADABLE = ("FR105", OSError,
        "a part of the file cannot be read; errno, the path, and the record or the place in the "
        "file are named",
        "check the disk's or mount's health (`dmesg`); `fastrecord verify` lists all records that "
        "cannot be read")
    PAGE_LOST = ("FR106", OSError,
        "a page of the file's mapping could not be read, though now it can",
        'open the file again, or `refresh()`; if it happens again, use `access="pread"`, and check'
        " the mount")
    VALUE_TOO_LARGE = ("FR107", MemoryError,
        "one value does not fit into memory, as in `verify --deep` and `extract`, which continue "
        "with the others",
        "use a machine with more memory, or fewer threads")
    INTERNAL = ("FR108", FastRecordError,
        "a bug in fastrecord: a case that its code rules out",
        "report it, with the message")

    # 2: a file that cannot be used as it is
    NOT_FREC = ("FR201", CorruptFileError,
        "not a .frec file: other content, or its first page is damaged",
        "check the path; restore the file if it was one")
    VERSION = ("FR202", UnsupportedVersionError,
        "the file has a newer format version",
        "upgrade fastrecord")
    UNSUPPORTED = ("FR203", UnsupportedVersionError,
        "the file holds something that a newer fastrecord has written",
        "upgrade fastrecord")
    NO_COMMIT = ("FR204", NoCommitError,
        "the file has no commit: its writer was stopped before the first one, or is still writing "
        "it",
        "wait for the writer; if there is none, delete the file and write it again")
    REPLACED = ("FR205", FastRecordError,
        "the path holds another file, or another history, than when this one was opened",
        "open it again; earlier states and workers belong to the old file")
    INCOMPLETE = ("FR206", FastRecordError,
        "packing was not finished",
        "`fastrecord pack --resume`, or `allow_incomplete=True`")
    LIMIT = ("FR207", FastRecordError,
        "something exceeds [a limit](format.md#9-limits), in a file or in what is to be written",
        "as the message says; data that grow with the records go into a field")
    MISSING_SHARDS = ("FR208", FastRecordError,
        "shards of a set are missing; the message names them",
        "name all shards, or their folder; finish the pack with `--resume`; or "
        "`allow_incomplete=True`")
    RECORDS_TWICE = ("FR209", FastRecordError,
        "files hold records twice or come from two packs: a file and one made of it, two copies of"
        " a shard, shards of two sets under one set of names",
        "as the message says: remove or move one, or pack again with `--overwrite`; or "
        "`allow_incomplete=True`")
    BAD_MANIFEST = ("FR210", CorruptFileError,
        "a `dataset.json` is damaged, or breaks a rule of [its format](manifest.md)",
        "remove it, and `fastrecord manifest` makes another from the shards")
    STORE = ("FR211", FastRecordError,
        "a URL names what no store can have, or an object store refuses a request or does not answer",
        "check the URL, the credentials, endpoint and region, and the network; "
        "`fastrecord doctor URL` measures it")
    CACHE = ("FR212", FastRecordError,
        "the local cache of an object store is too small for what is read at once, or its folder "
        "holds something else",
        "give it more space (`cache_size=`), or a folder of its own")

    # 3: damage
    CORRUPT = ("FR301", CorruptFileError,
        "an index, a directory, metadata or a dictionary is damaged",
        "as above: many records may be affected")
    CHECKSUM = ("FR302", CorruptFileError,
        "a payload differs from its checksum",
        "as above: this record is affected")
    TRUNCATED = ("FR303", CorruptFileError,
        "the file is shorter than its commit: a copy was cut short, or another program truncates "
        "it now",
        "copy it again")
    BAD_EXTENT = ("FR304", CorruptFileError,
        "an index entry points where no payload can be",
        "as for FR301")
    BAD_PAYLOAD = ("FR305", CorruptFileError,
        "a compressed payload cannot be decompressed",
        "as for FR302")
    BAD_STRING = ("FR306", CorruptFileError,
        "a text is not valid UTF-8",
        "as for FR302; its writer did not check it")
    BAD_LIST = ("FR307", CorruptFileError,
        "a list's payload is not a list",
        "as for FR302")
    BAD_JSON = ("FR308", CorruptFileError,
        "a JSON value is not JSON",
        "as for FR302")
    BAD_STORED = ("FR309", CorruptFileError,
        "a value does not fit its field, although its checksum is right: a bool that is not 0 or "
        "1, an image of another size than the file says (`verify --deep`)",
        "as for FR302; its writer did not check it")
    NOTHING_LEFT = ("FR310", CorruptFileError,
        "`fastrecord repair` finds nothing to save",
        "restore a good copy")
    BAD_SIDE = ("FR311", CorruptFileError,
        "the crop index of an image is damaged, or is of another image (`verify --deep`)",
        "`fastrecord index --rebuild`; the image itself is not affected")

    # 4: fields, values and classes
    SCHEMA = ("FR401", SchemaError,
        "a schema is not allowed, or is missing",
        "correct it, as the message says")
    BAD_VALUE = ("FR402", SchemaError,
        "a value is missing, is one too many, or does not fit its field",
        "correct the record that is named; nothing of it was written")
    SCHEMA_MISMATCH = ("FR403", SchemaError,
        "the records to append have other fields than the file",
        "leave the schema out, or write to another file")
    ADD_FIELD = ("FR404", SchemaError,
        "a field cannot be added: its name is taken or not allowed",
        "choose another name")
    VALUE_COUNT = ("FR405", SchemaError,
        "a new field has fewer, or more, values than the file has records",
        "give one for each, in order")
    FIELD_PENDING = ("FR406", SchemaError,
        "a field is still being added",
        "commit or drop it first")
    NO_FIELD = ("FR407", (SchemaError, KeyError),
        "the field does not exist",
        "choose one of the fields that are named")
    FIELD_TYPE = ("FR408", (SchemaError, TypeError),
        "a field's type does not allow the request, or no field has the type needed",
        "choose another field")
    NO_VALUE = ("FR409", FastRecordError,
        "a record has no value for the field",
        "leave such records out, or add the field to all")
    FIELDS_DIFFER = ("FR410", SchemaError,
        "files that are to be used together have different fields",
        "select the fields that they share, or pack them alike")
    RAGGED = ("FR411", FastRecordError,
        "arrays of a batch differ where they must not",
        '`Delivery(ragged=...)` of `"list"` or `"pad"` for the field')
    SEVERAL_FIELDS = ("FR412", SchemaError,
        "several fields match",
        "name one")
    NO_CLASSES = ("FR420", SchemaError,
        "a file names no classes, but classes are needed",
        "pack it from class folders, or with `--classes-from`; or name the classes with "
        "`set_metadata(path, classes=[...])`")
    UNKNOWN_CLASS = ("FR421", SchemaError,
        "a class is not among the known ones",
        "correct the name, or take the classes from the file that has it")
    BAD_CLASSES = ("FR422", SchemaError,
        "the class names in a file's metadata are not a list of distinct names",
        "correct the metadata")
    UNKNOWN_LABEL = ("FR424", SchemaError,
        "a label has no class",
        "correct the labels, or the list of classes")
    NO_LABELS = ("FR425", SchemaError,
        "the input has no labels, but classes are known",
        "add a column `class` to the list")
    LARGE_LABEL = ("FR426", SchemaError,
        "a label is above the largest int64",
        "store labels as smaller integers")

    BAD_CONDITION = ("FR427", SchemaError,
        "the condition of `--where` cannot be parsed, or its constant does not fit the field",
        "compare fields with constants, as in `label == 3 and image.width > 500`")

    # 5: images
    UNKNOWN_IMAGE = ("FR501", DecodeError,
        "not an image of a known type",
        "check what it is; [loader.md](loader.md#image-formats) lists the types")
    IMAGE_TRUNCATED = ("FR502", DecodeError,
        "the image is truncated",
        'get it again, or decode what is there: `truncated="accept"`')
    IMAGE_DAMAGED = ("FR503", DecodeError,
        "the image is damaged",
        "get it again")
    IMAGE_KIND = ("FR504", DecodeError,
        "this kind of image is not decoded; the message names the kind",
        '`Decoding(decoder="auto")` leaves it to Pillow, with the plugin that the kind needs; or convert it')
    IMAGE_PIXELS = ("FR505", DecodeError,
        "the image has more pixels than the limit",
        "make it smaller, or raise `max_pixels`")
    IMAGE_OUTPUT = ("FR506", DecodeError,
        "memory of another size than the output's (Rust only)",
        "correct the call")
    CROP = ("FR507", DecodeError,
        "a crop does not fit the image",
        "correct the crop")
    PAIR_SIZES = ("FR508", DecodeError,
        "the sizes of a pair's images do not match",
        "leave the pair out, or pack it again")
    DECODER = ("FR509", DecodeError,
        "an error of the decoder itself",
        "please report it, with the image")
    BAD_INPUT_IMAGE = ("FR510", DecodeError,
        "an input file is not an image, or cannot be decoded to be made smaller",
        "leave it out, or replace it")
    NO_IMAGE = ("FR511", DecodeError,
        "the record has no image",
        "leave such records out")
    PILLOW = ("FR512", DecodeError,
        "Pillow cannot decode it",
        '`decode="native"` decodes other kinds; otherwise as for FR503')
    NONE_DECODED = ("FR513", FastRecordError,
        "none of many values could be decoded",
        "choose another field")
    IMAGE_BYTES = ("FR514", DecodeError,
        "the image has more bytes than allowed",
        "store it in a field of type bytes")
    SIXTEEN_BIT = ("FR515", DecodeError,
        "16-bit grey, where an image has 8 bits",
        '`Decoding(sixteen_bit=...)` of `"scale"` or `"clip"`; store arrays to keep all bits')
    JPEG_SCANS = ("FR516", DecodeError,
        "a JPEG has more scans than any encoder writes",
        "rewrite it: `jpegtran -copy all -optimize`")
    MASK = ("FR517", DecodeError,
        "an image that may be a mask, beside another image",
        "store masks as arrays, or leave the field out of `images=`: its bytes, opened by Pillow, keep the numbers")

    # 6: writing
    LOCKED = ("FR601", LockedError,
        "another writer has the file open; the message names it if the system reports it",
        "wait for it, or end it: its lock ends with it")
    WRITER_CLOSED = ("FR602", ValueError,
        "the writer is closed",
        "open another")
    WRITER_FAILED = ("FR603", FastRecordError,
        "an earlier write failed, and the writer accepts no more",
        "see the first error; the file is good up to its last commit: open it again to continue")
    WRONG_PROCESS = ("FR604", FastRecordError,
        "a writer is used in another process than its own",
        "open it where it is used")
    REPLACE_FAILED = ("FR605", OSError,
        "the finished file could not replace the other",
        "move it by hand: the message names it")
    WRITE_FAILED = ("FR606", OSError,
        "a write or a sync failed; errno and path are named, and a note says what is safe",
        "make room, or check the disk; then follow the note")
    NAME_LOST = ("FR607", FastRecordError,
        "the file was removed, moved or replaced before a commit; the message says where the "
        "records are",
        "continue with the file that it names, or write the records again")
    NO_LOCKS = ("FR608", OSError,
        "the file system has no locks, which keep a second writer out; nothing is left",
        "write on a local disk, and copy the file from there; reading needs no locks")

    # 7: input and output of commands
    NO_FILES = ("FR701", FastRecordError,
        "a folder without class folders, or without files",
        "check the path; use `--set list=CSV` for files that are sorted otherwise")
    EMPTY_CLASS = ("FR702", FastRecordError,
        "an empty class folder",
        "remove it, or `--set allow_empty_classes=yes`")
    LINK_LOOP = ("FR703", FastRecordError,
        "a link leads back to a folder above it",
        "remove the link")
    BAD_LIST_FILE = ("FR704", FastRecordError,
        "a list of files cannot be parsed",
        "correct the line that is named")
    FILE_NAME = ("FR705", FastRecordError,
        "a file name is not valid UTF-8",
        "rename the file")
    SAME_FOLDER = ("FR706", FastRecordError,
        "both folders of pairs are the same",
        "name two")
    BAD_FILE = ("FR710", FastRecordError,
        "a file is not an image, or cannot be read",
        "make it readable, remove it, or `--bad-files skip`")
    NO_IMAGES = ("FR711", FastRecordError,
        "none of the files is an image",
        "check the path")
    NO_PARTNER = ("FR712", FastRecordError,
        "files without a partner",
        "add the missing ones, or `--bad-files skip`")
    OTHER_SCALE = ("FR713", FastRecordError,
        "pairs of different scales",
        "`--set any_scale=yes`, or `--bad-files skip`")
    TOO_MANY_SHARDS = ("FR720", FastRecordError,
        "more shards than records or files to divide",
        "ask for fewer")
    OTHER_SHARDS = ("FR721", FastRecordError,
        "shards of another division are in the way",
        "remove them, or choose another name")
    NOTHING_FOUND = ("FR726", FastRecordError,
        "no record meets the conditions, or has a key that is asked for",
        "correct the class, the condition or the key")
    KEY_TAKEN = ("FR730", FastRecordError,
        "a key is in the file already",
        "give the new files other keys")
    OTHER_SETTINGS = ("FR731", FastRecordError,
        "a pack cannot be resumed with other settings",
        "give the same settings, or begin again")
    OTHER_INPUT = ("FR732", FastRecordError,
        "a pack cannot be resumed with another input",
        "give the same input, or begin again")
    NOT_PACKED = ("FR733", FastRecordError,
        "the file was not written by `fastrecord pack`, or holds other metadata under its names",
        "begin again; rename that metadata")
    PACK_RUNNING = ("FR734", FastRecordError,
        "another pack is writing the file",
        "let it finish")
    KEY_AS_NAME = ("FR740", FastRecordError,
        "keys cannot be file names",
        "`--numbered`")
    NOT_A_FOLDER = ("FR741", FastRecordError,
        "a link, or something that is not a folder, is in the way",
        "choose another folder, or remove it")
    OUTPUT_IS_INPUT = ("FR742", FastRecordError,
        "the output would lie in its own input",
        "choose another place")
    SAME_OUTPUT = ("FR743", FastRecordError,
        "two outputs would be one file",
        "choose another place for one of them")
    NOT_REGULAR = ("FR744", FastRecordError,
        "the output is a device, a pipe or a socket",
        "choose another path")
    REMOTE = ("FR745", FastRecordError,
        "a command that works on files of this machine was given a URL",
        "`fastrecord copy` brings the file or data set here, and sends it back")
    UNKNOWN_FORMAT = ("FR750", FastRecordError,
        "the format of a source is not known",
        "name it with `--format`")
    NO_LIBRARY = ("FR751", FastRecordError,
        "a library is not installed: of a format, of object stores, or of `fastrecord.ray`",
        "the pip line in the message")
    SOURCE = ("FR752", FastRecordError,
        "a source of another format is damaged, cut short, or not what its format demands",
        "repair the part that is named, then `--resume`")
    SOURCE_RECORD = ("FR753", FastRecordError,
        "a record of a source cannot be read",
        "repair the source, or `--bad-files skip`; then `--resume`")
    MIXED_FIELDS = ("FR754", FastRecordError,
        "the records of a source have different fields, or values of different types",
        "`--map` to take the fields that all have, `--type` for a type that fits all")
    SAME_KEY = ("FR755", FastRecordError,
        "two records of a source have one key",
        "remove one, or leave the key out with `--map`")
    PICKLE = ("FR756", FastRecordError,
        "a pickle holds something else than plain data, and is not run",
        "convert it with the program that wrote it")
    CANNOT_HOLD = ("FR757", FastRecordError,
        "a format cannot hold a field, or one of its values",
        "`--drop` the field, or another format")
    NO_SUCH_FIELD = ("FR758", FastRecordError,
        "`--map` or `--type` names a field that the source does not have, or gives a type that its "
        "values do not fit",
        "`--dry-run` shows the fields")

    # 8: reading and loading
    RECORD_RANGE = ("FR801", IndexError,
        "the record number does not exist",
        "correct the number")
    READER_CLOSED = ("FR802", ValueError,
        "the reader is closed",
        "open it again")
    SMALL_BUFFER = ("FR803", ValueError,
        "a buffer is too small",
        "give a larger one")
    ARGUMENTS = ("FR804", ValueError,
        "a loader's arguments do not fit each other",
        "correct the call")
    FORKED_LOADER = ("FR805", RuntimeError,
        "a loader's iterator is used in a forked process",
        "start a new iteration there")
    LOADER_CLOSED = ("FR806", RuntimeError,
        "the loader was closed before its batch was whole",
        "start a new iteration")
    NONE_LOADED = ("FR807", FastRecordError,
        "nothing of a batch, or of an epoch, could be loaded",
        "see the error that it quotes")
    TOO_MANY_SKIPPED = ("FR808", FastRecordError,
        "more records were skipped than `Skip(at_most=...)` allows",
        "`fastrecord verify` finds them all; a larger `at_most` continues")
    # fmt: on


def system_text(error: OSError) -> str:
    """Return the message of a system error in one line: the file and the reason."""
    if error.filename is None or not error.strerror:
        return str(error)
    reason = error.strerror
    if "://" in str(error.filename) and reason == os.strerror(errno.ENOENT):
        reason = "it is not a file of this machine: FastRecordDataset reads URLs (s3, gs, az, https, file)"
    return f"{error.filename}: {reason}"
