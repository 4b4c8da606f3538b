"""The exceptions of fastrecord, and `Code`, the table of their codes.

An exception holds what it says as values, and joins them in `__str__` alone.
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


class Code(StrEnum):
    """The codes of errors that Python raises, each with its class. docs/errors.md says what all codes mean.

    A code never changes its meaning and is never reused. The core has codes of its own:
    rust/core/src/error/code.rs.
    """

    _kind: type[Exception]

    def __new__(cls, code: str, kind: type[Exception] = FastRecordError) -> Self:
        """Make a member whose value is the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member._kind = kind
        return member

    @property
    def kind(self) -> type[Exception]:
        """The class of its errors."""
        return self._kind

    def error(self, text: str, **place: Any) -> FastRecordError:
        """Return an error of the code's class.

        Args:
            text: What is wrong.
            place: Other attributes of a `FastRecordError`.
        """
        kind: Any = self.kind
        error = kind(text, **place) if issubclass(kind, FastRecordError) else kind(self.text(text))
        error.code = str(self)
        return cast("FastRecordError", error)

    def text(self, message: str) -> str:
        """Return a message with the code at its end."""
        return f"{message} [{self}]"

    THREADS = "FR103", RuntimeError
    VALUE_TOO_LARGE = "FR107", MemoryError

    VERSION = "FR202", UnsupportedVersionError
    REPLACED = "FR205"
    INCOMPLETE = "FR206"
    MISSING_SHARDS = "FR208"
    RECORDS_TWICE = "FR209"
    BAD_MANIFEST = "FR210", CorruptFileError
    STORE = "FR211"
    CACHE = "FR212"

    CHECKSUM = "FR302", CorruptFileError
    NOTHING_LEFT = "FR310", CorruptFileError
    BAD_SIDE = "FR311", CorruptFileError

    SCHEMA = "FR401", SchemaError
    BAD_VALUE = "FR402", SchemaError
    SCHEMA_MISMATCH = "FR403", SchemaError
    VALUE_COUNT = "FR405", SchemaError
    NO_FIELD = "FR407", SchemaError
    FIELD_TYPE = "FR408", SchemaError
    NO_VALUE = "FR409"
    FIELDS_DIFFER = "FR410", SchemaError
    RAGGED = "FR411"
    SEVERAL_FIELDS = "FR412", SchemaError
    NO_CLASSES = "FR420", SchemaError
    UNKNOWN_CLASS = "FR421", SchemaError
    BAD_CLASSES = "FR422", SchemaError
    UNKNOWN_LABEL = "FR424", SchemaError
    NO_LABELS = "FR425", SchemaError
    LARGE_LABEL = "FR426", SchemaError
    BAD_CONDITION = "FR427", SchemaError

    UNKNOWN_IMAGE = "FR501", DecodeError
    IMAGE_KIND = "FR504", DecodeError
    IMAGE_PIXELS = "FR505", DecodeError
    BAD_INPUT_IMAGE = "FR510", DecodeError
    NO_IMAGE = "FR511", DecodeError
    PILLOW = "FR512", DecodeError
    NONE_DECODED = "FR513"
    SIXTEEN_BIT = "FR515", DecodeError

    LOCKED = "FR601", LockedError
    NAME_LOST = "FR607"
    NO_LOCKS = "FR608", OSError

    NO_FILES = "FR701"
    EMPTY_CLASS = "FR702"
    LINK_LOOP = "FR703"
    BAD_LIST_FILE = "FR704"
    FILE_NAME = "FR705"
    SAME_FOLDER = "FR706"
    BAD_FILE = "FR710"
    NO_IMAGES = "FR711"
    NO_PARTNER = "FR712"
    OTHER_SCALE = "FR713"
    TOO_MANY_SHARDS = "FR720"
    OTHER_SHARDS = "FR721"
    NOTHING_FOUND = "FR726"
    KEY_TAKEN = "FR730"
    OTHER_SETTINGS = "FR731"
    OTHER_INPUT = "FR732"
    NOT_PACKED = "FR733"
    PACK_RUNNING = "FR734"
    KEY_AS_NAME = "FR740"
    NOT_A_FOLDER = "FR741"
    OUTPUT_IS_INPUT = "FR742"
    SAME_OUTPUT = "FR743"
    NOT_REGULAR = "FR744"
    REMOTE = "FR745"
    UNKNOWN_FORMAT = "FR750"
    NO_LIBRARY = "FR751"
    SOURCE = "FR752"
    SOURCE_RECORD = "FR753"
    MIXED_FIELDS = "FR754"
    SAME_KEY = "FR755"
    PICKLE = "FR756"
    CANNOT_HOLD = "FR757"
    NO_SUCH_FIELD = "FR758"

    NONE_LOADED = "FR807"
    TOO_MANY_SKIPPED = "FR808"


def system_text(error: OSError) -> str:
    """Return the message of a system error in one line: the file and the reason."""
    if error.filename is None or not error.strerror:
        return str(error)
    reason = error.strerror
    if "://" in str(error.filename) and reason == os.strerror(errno.ENOENT):
        reason = "it is not a file of this machine: FastRecordDataset reads URLs (s3, gs, az, https, file)"
    return f"{error.filename}: {reason}"
