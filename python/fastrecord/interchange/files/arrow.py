"""`ArrowSource`: records in columns of Apache Arrow, from Parquet files or Arrow IPC files and streams.

What the types of Arrow become is in `_column`. pyarrow decodes the files; values of bytes and
numbers are views of the memory that it decodes into.
"""

from __future__ import annotations

import json
import mmap
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastrecord.errors import Code
from fastrecord.interchange.card import CARD, Card
from fastrecord.interchange.format import Setting
from fastrecord.interchange.infer import SAMPLE, most_images, renamed
from fastrecord.interchange.libraries import library
from fastrecord.interchange.source import ROWS, ROWS_BYTES, CountedSource, DamageError, Rows, SourceField, converted
from fastrecord.interchange.stored import is_stored, open_file
from fastrecord.schema import FieldType, array, list_

# Records that are looked at to tell images from other bytes; few, since each may be large.
_FIRST = 16
# The allocator keeps the memory of pages, which in larger groups may be large. Giving it back costs
# as much as reading, because it must be found again.
_LARGE_GROUP = 64 << 20
# After so many bytes the pages of a mapping are dropped: they count as memory of the process.
_MAPPED = 64 << 20
_PAIR = ["bytes", "path"]
_NUMBERS = {"halffloat": "float16", "float": "float32", "double": "float64"}
_FILL = "put a value in its place with --fill, or leave the column out by naming the others with --map"
_MESSAGE = b"\xff\xff\xff\xff"
_END = _MESSAGE + bytes(4)

STRUCTS = Setting(
    "What the members of structs are: `fields` of their own, called STRUCT.MEMBER (the default), or `json`",
    ("fields", "json"),
)

_Feature: TypeAlias = Mapping[str, Any]
F = TypeVar("F")


def arrow() -> Any:
    """Import and return pyarrow."""
    return library("pyarrow", "parquet", "Arrow and Parquet")


def is_stream(head: bytes) -> bool:
    """Return whether a file begins as an Arrow IPC stream."""
    return head.startswith(_MESSAGE) and len(head) > 8 and 0 < int.from_bytes(head[4:8], "little") < 1 << 28


def features_of(metadata: Mapping[bytes, bytes] | None) -> dict[str, _Feature]:
    """Return the features of Hugging Face's datasets in the metadata of an Arrow schema, by column."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


class ArrowFile(ABC):
    """One file.

    Attributes:
        path: Its path.
        schema: Its Arrow schema.
        rows: The number of its records.
        broken: Why what follows these records cannot be read; None if nothing follows.
    """

    path: str
    schema: Any
    rows: int
    broken: str | None = None

    @abstractmethod
    def batches(self, start: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches with some columns from a record on, each of about `ROWS_BYTES`."""

    def nulls(self, name: str, column: str) -> int | None:
        """Return the number of nulls in a part of a column, which is the column itself or a member; None: unknown."""
        del name, column
        return None


class ParquetFile(ArrowFile):
    """A Parquet file. Only one batch is decoded at a time, however large a row group is."""

    def __init__(self, path: str) -> None:
        self.path = path
        file = self._open()
        self.schema = file.schema_arrow
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        self.rows = int(self._ends[-1]) if groups else 0
        self._bytes = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1.0)
        self._large = max((group.total_byte_size for group in groups), default=0) > _LARGE_GROUP
        file.close(force=True)

    def nulls(self, name: str, column: str) -> int | None:
        """See `ArrowFile.nulls`."""
        leaf = f"{name}.bytes" if name == column and _is_pair(self.schema.field(column).type) else name
        count = 0
        file = self._open()
        try:
            groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
            for found in (group.column(at) for group in groups for at in range(group.num_columns)):
                if found.path_in_schema == leaf:
                    if found.statistics is None or not found.statistics.has_null_count:
                        return None
                    count += found.statistics.null_count
        except UnicodeDecodeError:  # of a damaged name
            return None
        finally:
            file.close(force=True)
        return count

    def batches(self, start: int, names: Sequence[str]) -> Iterator[Any]:
        """See `ArrowFile.batches`."""
        file = self._open()
        try:
            for group in range(bisect_right(self._ends, start), len(self._ends)):
                first = int(self._ends[group - 1]) if group else 0
                skip = max(start - first, 0)
                # Less than elsewhere: pages of 100 MB, which are common, take memory enough.
                rows = int(min(max(ROWS_BYTES // 4 // max(self._bytes, 1), 1), ROWS))
                for batch in file.iter_batches(rows, row_groups=[group], columns=list(names)):
                    # Dictionaries in the file make records larger than the file's own numbers say.
                    self._bytes = max(self._bytes, batch.nbytes / max(batch.num_rows, 1))
                    if skip < batch.num_rows:
                        yield batch.slice(skip)
                        if self._large:
                            arrow().default_memory_pool().release_unused()
                    skip = max(skip - batch.num_rows, 0)
        finally:
            file.close(force=True)

    def _open(self) -> Any:
        parquet = library("pyarrow.parquet", "parquet", "Parquet")
        # As bytes: Arrow takes no name that the locale's encoding lacks.
        file = open_file(self.path) if is_stored(self.path) else arrow().OSFile(os.fsencode(self.path))
        return parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)


class IpcFile(ArrowFile):
    """An Arrow IPC file or stream, mapped into memory.

    Args:
        path: Its path.
        marked: Whether a stream must end with a mark, as most writers put one there.
        part: Where it lies in the file: first byte, size; None: the whole file.
    """

    def __init__(self, path: str, *, marked: bool = False, part: tuple[int, int] | None = None) -> None:
        self.path = path
        self._part = part
        with open(path, "rb") as file:
            file.seek(part[0] if part is not None else 0)
            self._stream = is_stream(file.read(16))
            file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
            if marked and self._stream and file.read() != _END:
                self.broken = "the file is cut short: it has no end mark"
        with self._open(None) as (reader, _):
            self.schema = reader.schema
        types = arrow().types
        small = [field.name for field in self.schema if types.is_primitive(field.type)] or self.schema.names
        counts: list[int] = []
        try:
            with self._open(small[:1]) as (reader, _):
                counts.extend(batch.num_rows for batch in _each(reader))
        except (arrow().ArrowException, OSError) as err:
            self.broken = str(err)
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.rows = int(self._ends[-1]) if counts else 0

    def batches(self, start: int, names: Sequence[str]) -> Iterator[Any]:
        """See `ArrowFile.batches`."""
        first = bisect_right(self._ends, start)
        mapped = 0
        with self._open(names) as (reader, mapping):
            for number, batch in zip(range(first, len(self._ends)), _each(reader, first), strict=False):
                batch.validate()
                mapped += batch.nbytes
                if mapped >= _MAPPED:  # used again, pages come back
                    mapped = 0
                    mapping.madvise(mmap.MADV_DONTNEED)
                rows = batch.slice(max(start - (int(self._ends[number - 1]) if number else 0), 0))
                step = int(min(max(ROWS_BYTES * rows.num_rows // max(rows.nbytes, 1), 1), ROWS))
                for at in range(0, rows.num_rows, step):
                    yield rows.slice(at, step)

    @contextmanager
    def _open(self, names: Sequence[str] | None) -> Iterator[tuple[Any, mmap.mmap]]:
        """Open the file with some columns; also return its mapping, which lives as long as values in it do."""
        ipc = arrow().ipc
        columns = [] if names is None else sorted(self.schema.get_field_index(name) for name in names)
        options = ipc.IpcReadOptions(included_fields=columns)
        with open(self.path, "rb") as file:
            first, size = self._part or (0, os.fstat(file.fileno()).st_size)
            if not size:
                raise OSError("the file is empty")
            mapping = mmap.mmap(file.fileno(), first + size, prot=mmap.PROT_READ)
        view = memoryview(mapping)[first:]
        yield (ipc.open_stream if self._stream else ipc.open_file)(arrow().py_buffer(view), options=options), mapping


def _each(reader: Any, first: int = 0) -> Iterator[Any]:
    """Yield the record batches from number `first` on."""
    if hasattr(reader, "get_batch"):
        yield from (reader.get_batch(number) for number in range(first, reader.num_record_batches))
    else:  # a stream has no index
        yield from islice(reader, first, None)


@dataclass(slots=True)
class _Column:
    """How the values of a column become values of a field.

    Attributes:
        type: The field's type.
        values: Arrow array without nulls -> values. Raises `ValueError` if it cannot be.
        classes: The names of classes, if the column has some.
        certain: Whether the type is known without looking at the values.
        of: The column of the file that it is, or is a part of.
        pick: Returns it from that column.
        nulls: What stands for a null; None: a null makes a bad record.
    """

    type: FieldType
    values: Callable[[Any], Any]
    classes: Sequence[str] | None = None
    certain: bool = True
    of: str = ""
    pick: Callable[[Any], Any] = lambda values: values
    nulls: Any = None


class ArrowSource(CountedSource):
    """Records of one or more files with the same columns.

    Args:
        files: The files, in order.
        features: Features of Hugging Face's datasets by column; None: as the first file's schema says.
        metadata: Entries for the metadata of a .frec file.
        structs: Whether the members of structs are fields of their own, called "struct.member"; else
            structs are JSON.
    """

    # The column of files whose paths are the keys.
    _paths: tuple[str, ...] = ()

    def __init__(
        self,
        files: Sequence[ArrowFile],
        features: Mapping[str, _Feature] | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        structs: bool = True,
    ) -> None:
        super().__init__([file.path for file in files], [file.rows for file in files])
        self._files = files
        self._structs = structs
        own = files[0].schema.metadata or {}
        self._card = Card.from_json(own.get(CARD.encode()))
        self._features = features_of(own) if features is None else features
        self.metadata = {**(self._card.metadata if self._card is not None else {}), **(metadata or {})}
        self._columns = self._columns_of(files[0])
        self._look()
        self.fields = self._fields()
        self._compare()

    def read(self, start: int, names: Sequence[str]) -> Iterator[Rows]:
        """See `Source.read`."""
        for number, (file, batch) in self._batches(start, self._of(names)):
            yield from self._rows_of(batch, file, number, names)

    def fill(self, name: str, value: Any) -> bool:
        """Take a value for nulls."""
        self._columns[name].nulls = value
        return True

    def nulls(self) -> dict[str, int]:
        """Return the number of nulls by field, as far as the files' own counts tell."""
        found: dict[str, int] = {}
        for file in self._files:
            for name, column in self._columns.items():
                if column.type.name != "json" and (count := file.nulls(name, column.of)):
                    found[name] = found.get(name, 0) + count
        return found

    def _of(self, names: Sequence[str]) -> list[str]:
        """Return the columns of the files that hold fields."""
        return list(dict.fromkeys(self._columns[name].of for name in names))

    def _batches(self, start: int, names: Sequence[str]) -> Iterator[tuple[int, tuple[ArrowFile, Any]]]:
        """Yield record batches: the number of the first record, the file, and the batch."""
        files = dict(zip(self.paths, self._files, strict=True))

        def read(path: str, skip: int) -> Iterator[tuple[int, Any]]:
            file, count = files[path], skip
            yield skip, None
            with damage():
                for batch in file.batches(skip, names):
                    yield batch.num_rows, (file, batch)
                    count += batch.num_rows
            if count != file.rows or file.broken is not None:
                raise DamageError(file.broken or "the file ends before its last record")

        return self.runs(start, read)

    def _rows_of(self, batch: Any, file: ArrowFile, start: int, names: Sequence[str]) -> Iterator[Rows]:
        columns = self._columns if file is self._files[0] else self._columns_of(file)
        readers = {}
        for name in names:
            column = columns[name]
            column.nulls = self._columns[name].nulls
            readers[name] = partial(_part, column, column.pick(batch.column(column.of)))
        return converted(start, batch.num_rows, readers)

    def _columns_of(self, file: ArrowFile) -> dict[str, _Column]:
        columns: dict[str, _Column] = {}
        for field in file.schema:
            feature = self._features.get(field.name)
            if self._card is not None and field.name in self._card.schema:
                kind = self._card.schema[field.name]
                parts = {field.name: replace(_exported(field.type, _column(field.type, feature), kind), of=field.name)}
            else:
                parts = _parts(field.name, field.type, feature, structs=self._structs)
            for name in parts.keys() & columns.keys():
                raise Code.SOURCE.error(f"{file.path}: two columns are called {name!r}: rename one")
            columns |= parts
        for name in self._paths:
            columns[f"{name}.path"] = _Column(FieldType("string"), _to_list, of=name, pick=_member("path"))
        return columns

    def _look(self) -> None:
        """Tell columns of images from columns of other bytes by the first records."""
        columns = self._columns
        names = [name for name, column in columns.items() if not column.certain]
        files = [field.name for field in self._files[0].schema if _is_pair(field.type) and field.name in columns]
        if len(files) != 1 or columns.keys() & {"key", "__key__", f"{files[0]}.path"} or self._card is not None:
            files = []
        if not (names or files) or not self.firsts[-1]:
            return
        for _, (_, batch) in self._batches(0, self._of([*names, *files])):
            for name in files:
                paths = _member("path")(batch.column(name)).slice(0, SAMPLE).to_pylist()
                if all(paths) and len(set(paths)) == len(paths):
                    self._paths = (name,)
                    self._columns |= self._columns_of(self._files[0])
            columns = self._columns
            for name in names:
                column, items = columns[name], []
                for row in range(min(_FIRST, batch.num_rows)):
                    with suppress(ValueError):
                        value = _values(column, column.pick(batch.column(column.of)).slice(row, 1))[0]
                        items += value if isinstance(value, list) else [value]
                if most_images(items):
                    kind = FieldType("image")
                    column.type = kind if column.type.name == "bytes" else list_(kind)
            return

    def _compare(self) -> None:
        """Check that all files have the columns of the first one."""
        first = {name: _loose(column.type) for name, column in self._columns.items()}
        for file in self._files[1:]:
            found = {name: _loose(column.type) for name, column in self._columns_of(file).items()}
            for name in first | found:
                if first.get(name) != found.get(name):
                    raise Code.MIXED_FIELDS.error(
                        f"{file.path}: column {name!r} is {found.get(name, 'missing')}, but "
                        f"{first.get(name, 'missing')} in {self.paths[0]}: import files with other columns on "
                        "their own"
                    )

    def _fields(self) -> list[SourceField]:
        fields = []
        for name, column in self._columns.items():
            origin = _origin(self._files[0].schema.field(column.of), self._features.get(column.of))
            origin = origin if name == column.of else f"{name.removeprefix(column.of + '.')} of the {origin}"
            fields.append(SourceField(name, column.type, origin))
        if self._card is not None:
            self.classes = self._card.metadata.get("classes")
            return fields
        classes = {n: c.classes for n, c in self._columns.items() if c.classes is not None and n == c.of}
        fields = renamed(fields, [*classes], ["__key__", *(f"{name}.path" for name in self._paths)])
        label = next((each.name for each in fields if (each.rename or each.name) == "label"), "")
        self.classes = classes.get(label)
        return fields


def open_files(paths: Sequence[str], *, marked: bool = False) -> list[ArrowFile]:
    """Open Parquet files and Arrow IPC files and streams.

    Args:
        paths: Their paths.
        marked: Whether streams must end with a mark.

    Raises:
        FastRecordError: a file is damaged, or of another kind.
        OSError: a file cannot be read.
    """
    return [_open(path, marked=marked) for path in paths]


def _open(path: str, *, marked: bool) -> ArrowFile:
    with open_file(path) as file:
        head = file.read(16)
    if head.startswith(b"PAR1"):
        return opened(path, ParquetFile)
    if head.startswith(b"ARROW1") or is_stream(head):
        if is_stored(path):
            raise Code.SOURCE.error(f"{path}: Arrow IPC files are mapped into memory: copy it here first")
        return opened(path, partial(IpcFile, marked=marked))
    kinds = {b"PARE": "an encrypted Parquet file", b"FEA1": "a Feather file of version 1", b"": "empty"}
    what = kinds.get(head[:4], "neither Parquet nor Arrow IPC")
    raise Code.SOURCE.error(f"{path}: the file is {what}: leave it out, or write it again as Parquet")


def opened(path: str, kind: Callable[[str], F]) -> F:
    """Return a file, which is closed again.

    Raises:
        FastRecordError: it is damaged.
    """
    try:
        with damage():
            return kind(path)
    except DamageError as err:
        raise Code.SOURCE.error(f"{path}: {err}: the file is damaged or cut short; get it again") from err


@contextmanager
def damage() -> Iterator[None]:
    """Make a `DamageError` of what pyarrow raises for damage."""
    try:
        yield
    except (arrow().ArrowException, UnicodeDecodeError) as err:
        raise DamageError(str(err)) from err
    except OSError as err:
        raise (err if err.errno else DamageError(str(err))) from err


def _loose(kind: FieldType) -> str:
    """Return the type for comparisons, in which images are bytes."""
    return str(kind).replace("image", "bytes")


def _origin(field: Any, feature: _Feature | None) -> str:
    kind = str(field.type)
    kind = kind if len(kind) <= 60 else f"{kind[:57]}..."
    name = feature.get("_type") if feature is not None else None
    return f"column of {kind}" if name in (None, "Value") else f"column of {kind}, {name}"


def _part(column: _Column, values: Any, first: int, end: int) -> Any:
    return _values(column, values.slice(first, end - first))


def _values(column: _Column, values: Any) -> Any:
    if values.null_count and column.nulls is not None:
        good = iter(_values(column, values.drop_null()))
        return [next(good) if valid else column.nulls for valid in values.is_valid().to_pylist()]
    if values.null_count and column.type.name != "json":
        raise ValueError(f"the value is null: {_FILL}")
    values.validate(full=True)
    return column.values(values)


def _parts(name: str, kind: Any, feature: _Feature | None, *, structs: bool) -> dict[str, _Column]:
    """Return how a column of a file is read, or the members of a struct, by name."""
    if not (structs and arrow().types.is_struct(kind) and kind.num_fields and not _is_pair(kind)):
        return {name: replace(_column(kind, feature), of=name)}
    found = {}
    for member in kind:
        inner = _parts(f"{name}.{member.name}", member.type, _member_feature(feature, member.name), structs=True)
        for part, column in inner.items():
            found[part] = replace(column, of=name, pick=partial(_both, _member(member.name), column.pick))
    return found


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any], values: Any) -> Any:
    return second(first(values))


def _member(name: str) -> Callable[[Any], Any]:
    """Return how a member of structs is taken: it is null where the struct is."""
    return lambda values: library("pyarrow.compute", "parquet", "Parquet").struct_field(values, name)


def _member_feature(feature: _Feature | None, name: str) -> _Feature | None:
    """Return the feature of a struct's member; a sequence of structs is stored as a struct of lists."""
    inner = feature.get("feature", feature) if feature is not None else None
    found = inner.get(name) if isinstance(inner, dict) else None
    if not isinstance(found, dict):
        return None
    return found if inner is feature else {"_type": "Sequence", "feature": found}


def _is_pair(kind: Any) -> bool:
    """Return whether a type is a file of Hugging Face's datasets: its bytes, and its path."""
    types = arrow().types
    if not types.is_struct(kind) or sorted(field.name for field in kind) != _PAIR:
        return False
    held = kind.field("bytes").type
    return bool(types.is_binary(held) or types.is_large_binary(held) or types.is_binary_view(held))


def _to_list(values: Any) -> list[Any]:
    found: list[Any] = values.to_pylist()
    return found


def _column(kind: Any, feature: _Feature | None) -> _Column:
    """Return how a column of an Arrow type is read."""
    pa = arrow()
    types = pa.types
    name = feature.get("_type") if feature is not None else None
    if isinstance(kind, pa.FixedShapeTensorType):
        sizes = [kind.shape[axis] for axis in kind.permutation or range(len(kind.shape))]
        return _Column(array(_number(kind.value_type), sizes), _tensors)
    if isinstance(kind, pa.BaseExtensionType):
        inner = _column(kind.storage_type, feature)
        if kind.extension_name == "arrow.json":
            return _Column(FieldType("json"), lambda values: [_json(text) for text in values.storage.to_pylist()])
        return _Column(inner.type, lambda values: inner.values(values.storage), inner.classes, inner.certain)
    if feature is not None and name in ("Array2D", "Array3D", "Array4D", "Array5D"):
        shape = _shape(feature.get("shape"))
        dtype = _number(_leaf(kind, len(shape)))
        if shape and dtype is not None:
            return _Column(array(dtype, shape), lambda values: _arrays(values, shape))
    dtype = _number(kind)
    if dtype is not None:
        names = feature.get("names") if feature is not None and name == "ClassLabel" else None
        classes = [str(each) for each in names] if isinstance(names, list) else None
        return _Column(FieldType(dtype), _numbers, classes)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _Column(FieldType("string"), _to_list)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return _Column(FieldType("image" if name == "Image" else "bytes"), _binary, certain=name == "Image")
    if types.is_fixed_size_binary(kind):
        return _Column(FieldType("bytes"), lambda values: _binary(values.cast(pa.binary())), certain=False)
    if types.is_dictionary(kind):
        inner = _column(kind.value_type, feature)
        values = _categories if inner.type.name == "string" else lambda values: inner.values(values.dictionary_decode())
        return _Column(inner.type, values, inner.classes, inner.certain)
    if _is_pair(kind):
        inner = _column(kind.field("bytes").type, feature)
        return _Column(inner.type, lambda values: _files(values, inner.values), certain=name is not None)
    if types.is_fixed_size_list(kind):
        fixed = _fixed(kind)
        if fixed is not None:
            return _Column(array(*fixed), lambda values: _arrays(values, fixed[1]))
    if _is_list(kind):
        features = feature.get("feature") if feature is not None else None
        item = _column(kind.value_type, features if isinstance(features, dict) else None)
        if item.type.name not in ("json", "list"):
            return _Column(list_(item.type), lambda values: _lists(values, item), certain=item.certain)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return _Column(FieldType("string"), _texts)
    return _Column(FieldType("json"), _plain)


def _exported(kind: Any, column: _Column, written: FieldType) -> _Column:
    """Return how a column is read that an export wrote for a field of type `written`."""
    name, found = written.name, column.type.name
    if name == "json" and found == "string":
        return _Column(written, lambda values: [_json(text) for text in column.values(values)])
    if name == "array" and written.shape and _number(_leaf(kind, len(written.shape))) == written.dtype:
        shape = written.shape
        return _Column(written, lambda values: _arrays(values, shape))
    if name == "list" and written.item is not None and _is_list(kind):
        item = _exported(kind.value_type, _column(kind.value_type, None), written.item)
        return _Column(written, lambda values: _lists(values, item)) if item.type == written.item else column
    same = name == found or (name in ("image", "bytes") and found in ("image", "bytes"))
    return _Column(written, column.values, column.classes) if same else column


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _fixed(kind: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return (dtype, shape) of nested lists of fixed size with numbers in them."""
    shape = []
    while arrow().types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    dtype = _number(kind)
    return None if dtype is None else (dtype, tuple(shape))


def _leaf(kind: Any, depth: int) -> Any:
    """Return the type of the items of lists that are nested `depth` times."""
    for _ in range(depth):
        kind = kind.value_type if kind is not None and _is_list(kind) else None
    return kind


def _shape(value: object) -> tuple[int | None, ...]:
    """Return the shape in the description of a column; () if it is none."""
    sizes = value if isinstance(value, list) else []
    good = all(size is None or (isinstance(size, int) and size >= 0) for size in sizes)
    return tuple(sizes) if good else ()


def _number(kind: Any) -> str | None:
    """Return numpy's name of a type of numbers."""
    types = arrow().types
    if kind is None or not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    return _NUMBERS.get(str(kind), str(kind))


def _lists(values: Any, inner: _Column) -> list[Sequence[Any]]:
    if arrow().types.is_fixed_size_list(values.type):
        size = values.type.list_size
        ends = [row * size for row in range(len(values) + 1)]
    else:
        ends = _offsets(values).tolist()
    found = inner.values(_inner(values))
    return [found[start:end] for start, end in pairwise(ends)]


def _offsets(values: Any) -> NDArray[np.int64]:
    """Return where each list begins in `values.flatten()`, and where the last one ends."""
    if not len(values):
        return np.zeros(1, np.int64)
    offsets = np.asarray(values.offsets)
    return np.asarray(offsets - offsets[0], np.int64)


def _inner(values: Any) -> Any:
    """Return the items of all lists."""
    items = values.flatten()
    if items.null_count:
        raise ValueError("an item of the list is null: leave the column out by naming the others with --map")
    return items


def _binary(values: Any) -> list[memoryview]:
    pa = arrow()
    if pa.types.is_binary_view(values.type):
        values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    if not len(values):
        return []
    dtype = np.dtype(np.int64 if pa.types.is_large_binary(values.type) else np.int32)
    ends = np.frombuffer(offsets, dtype, len(values) + 1, values.offset * dtype.itemsize).tolist()
    view = memoryview(b"" if data is None else data).cast("B")
    return [view[start:end] for start, end in pairwise(ends)]


def _files(values: Any, inner: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
    """Return the bytes in pairs of bytes and path."""
    found = values.field("bytes")
    if found.null_count:
        raise ValueError(
            "the file is not stored, only its path: store the bytes, as `Dataset.push_to_hub` and "
            "`Dataset.save_to_disk` do"
        )
    return inner(found)


def _categories(values: Any) -> list[Any]:
    names = values.dictionary.to_pylist()
    if None in names:
        raise ValueError("the value is null: leave the column out by naming the others with --map")
    return [names[index] for index in values.indices.to_pylist()]


def _arrays(values: Any, shape: Sequence[int | None]) -> Any:
    """Return nested lists as arrays of a shape.

    Raises:
        ValueError: lists of one array differ in length, or have another one than `shape` says.
    """
    count = len(values)
    # For each dimension: its size in each array, and where the arrays begin in all lists so far.
    sizes, starts = [], np.arange(count + 1)
    for size in shape:
        if arrow().types.is_fixed_size_list(values.type):
            ends = np.arange(len(values) + 1) * values.type.list_size
        else:
            ends = _offsets(values)
        lengths = np.diff(ends)
        if size is not None and (lengths != size).any():
            raise ValueError(f"a list of {lengths[lengths != size][0]} items instead of {size}")
        filled = starts[:-1] < starts[1:]
        own = np.zeros(count, np.int64)
        own[filled] = lengths[starts[:-1][filled]]
        if size is None and (lengths != np.repeat(own, np.diff(starts))).any():
            raise ValueError("the lists in it differ in length, so that it is not an array")
        sizes.append(own if size is None else np.full(count, size))
        values, starts = _inner(values), ends[starts]
    flat = _numbers(values)
    if None not in shape:
        return flat.reshape(count, *(size for size in shape if size is not None))
    shapes = np.stack(sizes, 1).tolist()
    return [flat[start:end].reshape(own) for (start, end), own in zip(pairwise(starts.tolist()), shapes, strict=True)]


def _numbers(values: Any) -> NDArray[Any]:
    found: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _tensors(values: Any) -> NDArray[Any]:
    count, kind = len(values), values.type
    flat = _numbers(_inner(values.storage)).reshape(count, *kind.shape)
    return flat if kind.permutation is None else flat.transpose(0, *(axis + 1 for axis in kind.permutation))


def _texts(values: Any) -> Sequence[str]:
    pa = arrow()
    try:
        found: list[str] = values.cast(pa.string()).to_pylist()
    except pa.ArrowNotImplementedError:
        found = [str(value) for value in values.to_pylist()]
    return found


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _plain(values: Any) -> Any:
    try:
        return json.loads(json.dumps(values.to_pylist(), default=_text))
    except TypeError as err:
        raise ValueError(f"{err}: leave the column out by naming the others with --map") from err


def _text(value: object) -> str:
    """Return a date, a time or a decimal inside of a JSON value as text."""
    if isinstance(value, (bytes, bytearray)):
        raise TypeError("JSON cannot hold bytes")
    return str(value)
