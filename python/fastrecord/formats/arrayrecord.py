"""ArrayRecord files, as `array_record` and TensorFlow Datasets write them.

The format: https://github.com/google/array_record; its package reads and writes the files. Their
records are bytes. Records that are tf.train.Example messages come in by feature, as from TFRecord;
others as one field, of images or of bytes. An export writes one tf.train.Example per record, as
`formats.tfrecord` describes it, in groups of one record, which readers access at random.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import example_names
from fastrecord.errors import Code
from fastrecord.formats.tfrecord import Run, TFRecordDestination, TFRecordFormat, TFRecordSource
from fastrecord.interchange.card import Card
from fastrecord.interchange.format import Found, Setting
from fastrecord.interchange.infer import SAMPLE
from fastrecord.interchange.libraries import library
from fastrecord.interchange.paths import expand, several
from fastrecord.interchange.source import ROWS, ROWS_BYTES, CountedSource, Rows, Source, SourceField
from fastrecord.schema import FieldType
from fastrecord.schema.infer import common_type

# The first 64 bytes of each file of Riegeli, the format below, have these.
_SIGNATURE = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
# Names of shards by TensorFlow Datasets end in numbers.
_NAME = re.compile(r".+\.array_?record(-\d+-of-\d+)?")
_FIELD = "record"


class _File:
    """A file whose number of records is known."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._bytes = os.path.getsize(path)
        reader = self._open()
        good = reader.ok()
        self.count = int(reader.num_records()) if good else 0
        try:
            reader.close()  # says what is wrong
        except (RuntimeError, ValueError) as err:
            raise Code.SOURCE.error(f"{path}: record 0: {err}: the file is cut short or damaged; get it again") from err
        if not good:
            raise Code.SOURCE.error(f"{path}: record 0: the file is cut short or damaged; get it again")

    def _open(self) -> Any:
        module = library("array_record.python.array_record_module", "arrayrecord", "ArrayRecord")
        return module.ArrayRecordReader(os.fsencode(self.path), "readahead_buffer_size:0")

    def runs(self, start: int) -> Iterator[tuple[list[bytes | None], dict[int, str]]]:
        """Yield runs of records: the records, and why some cannot be read."""
        each = self._bytes / max(self.count, 1)
        reader = self._open()
        try:
            while start < self.count:
                stop = min(start + int(min(max(ROWS_BYTES // max(each, 1), 1), ROWS)), self.count)
                bad: dict[int, str] = {}
                found: list[bytes | None] = []
                try:
                    found += reader.read(start, stop)
                except (RuntimeError, IndexError, ValueError):  # find the records that are bad
                    for number in range(start, stop):
                        try:
                            found += reader.read(number, number + 1)
                        except (RuntimeError, IndexError, ValueError) as err:
                            found.append(None)
                            bad[number - start] = str(err)
                # Compressed records are larger than the file says.
                each = max(self._bytes / self.count, sum(len(data or b"") for data in found) / len(found))
                yield found, bad
                start = stop
        finally:
            with suppress(RuntimeError):  # what was wrong has been said
                reader.close()


def _are_examples(files: Sequence[_File]) -> bool:
    first = next((file for file in files if file.count), None)
    if first is None:
        return False
    found, _ = next(first.runs(0))
    data, starts, ends = _joined([each for each in found[:SAMPLE] if each is not None])
    names, damaged = example_names(data, starts, ends)
    return bool(names) and not damaged


def _joined(found: Sequence[bytes]) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]:
    ends = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return memoryview(b"".join(found)), ends[:-1], ends[1:]


class _Examples(TFRecordSource):
    """Records that are tf.train.Example messages."""

    def __init__(self, files: Sequence[_File], settings: Mapping[str, str]) -> None:
        self._values = _Values(files)
        if not self._values.count():
            raise Code.SOURCE.error(f"{files[0].path}: the file holds no record: leave it out, or --set records=bytes")
        super().__init__([file.path for file in files], settings)

    def count(self) -> int:
        """Return the number of records."""
        return self._values.count()

    def place(self, number: int) -> str:
        """Return the file of a record and its number in it."""
        return self._values.place(number)

    def _runs(self, start: int) -> Iterator[Run]:
        for number, (found, bad) in self._values.found(start):
            yield number, *_joined([each or b"" for each in found]), bad


class _Values(CountedSource):
    """Records that are images, or other bytes."""

    def __init__(self, files: Sequence[_File]) -> None:
        super().__init__([file.path for file in files], [file.count for file in files])
        self._files = {file.path: file for file in files}
        _, (found, _) = next(self.found(0), (0, ([], {})))
        values = [each for each in found[:SAMPLE] if each is not None]
        kind = (common_type(values) if values else None) or FieldType("bytes")
        self.fields = [SourceField(_FIELD, kind, "records", "image" if kind.name == "image" else None)]

    def found(self, start: int) -> Iterator[tuple[int, tuple[list[bytes | None], dict[int, str]]]]:
        """Yield the number of the first record of each run, the records, and why some cannot be read."""

        def read(path: str, skip: int) -> Iterator[tuple[int, Any]]:
            yield skip, None
            yield from ((len(run[0]), run) for run in self._files[path].runs(skip))

        return self.runs(start, read)

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        for number, (found, bad) in self.found(start):
            good = [each for each in found if each is not None]
            yield Rows(number, len(found), dict.fromkeys(names, good), {number + row: why for row, why in bad.items()})


class _Destination(TFRecordDestination):
    def __init__(self, path: str, card: Card, settings: Mapping[str, str]) -> None:
        images = any(kind.name == "image" for kind in card.schema.values())
        none = settings.get("compression", "none" if images else "zstd") == "none"
        self._options = "group_size:1,uncompressed" if none else "group_size:1,zstd"
        super().__init__(path, card, settings)

    def begin(self, path: str) -> None:
        """Begin a file."""
        module = library("array_record.python.array_record_module", "arrayrecord", "ArrayRecord")
        self._writer = module.ArrayRecordWriter(os.fsencode(path), self._options)
        self._first = True

    def _record(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._writer.write(b"".join(pieces))

    def close(self) -> None:
        """See `Destination.close`."""
        self._writer.close()

    def abort(self) -> None:
        """See `Destination.abort`."""
        self._writer.close()


class ArrayRecordFormat(TFRecordFormat):
    """See the module."""

    name = "arrayrecord"
    destination = _Destination
    title = "ArrayRecord"
    suffixes = (".array_record", ".arrayrecord")
    settings: Mapping[str, Setting] = {
        "records": Setting("what the records are; by default what the first ones look like", ("example", "bytes")),
        "compression": Setting(
            "how an export compresses: none (the default for records with images) or zstd", ("none", "zstd")
        ),
        **TFRecordFormat.settings,
    }

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        if not found.is_folder:
            return "it begins with the signature of Riegeli's files" if found.head.startswith(_SIGNATURE) else None
        name = next((name for name in found.names if _NAME.fullmatch(name)), None)
        if name is None or not found.inside(name).head.startswith(_SIGNATURE):
            return None
        return f"the folder holds files like {name}"

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        paths: list[str] = []
        for each in several(source):
            if os.path.isdir(each):
                names = [name for name in sorted(os.listdir(each)) if _NAME.fullmatch(name)]
                if not names:
                    raise Code.SOURCE.error(f"{each}: the folder holds no files *.array_record")
                paths += [os.path.join(each, name) for name in names]
            else:
                paths += expand(each)
        files = [_File(path) for path in paths]
        kind = settings.get("records") or ("example" if _are_examples(files) else "bytes")
        return _Examples(files, settings) if kind == "example" else _Values(files)
