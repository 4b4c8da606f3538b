"""`add_field` and `drop_field`: fields added after the records, such as embeddings or scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from itertools import islice
from os import PathLike, fspath
from typing import Any

from fastrecord._core import Writer
from fastrecord.errors import Code
from fastrecord.files.places import refuse_url

# Values written by one call: enough for its threads, few enough for memory and for progress.
_VALUES = 1024
_BYTES = 16 << 20


def add_field(
    path: str | PathLike[str],
    name: str,
    type: Any,  # noqa: A002  the public name
    values: Iterable[Any],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Add a field to an existing file without rewriting it: all or nothing, in one durable commit.

    Open readers and data sets keep their snapshot without the field; `refresh()` shows it. If the
    process is killed or fails, the file is unchanged. To replace the values of a field, add a new
    field ("label_v2").

    Args:
        path: The .frec file. No writer may have it open; readers may.
        name: Name of the new field.
        type: `fastrecord.array("float32", (512,))`, "float32" or another type, as for `Schema`.
        values: One for each of the file's N records, in record order. An array (N, ...) is fastest,
            also one in a file (`numpy.load(..., mmap_mode="r")`). Other iterables and generators
            are read incrementally, so the values need not fit in memory. For batches of values use
            `Writer.add_field`.
        progress: Called now and then with records done and records in total; an exception in it
            cancels the operation.

    Raises:
        SchemaError: the file already has a field of this name, a value does not fit (names its
            record), or the number of values is not N.
        FileNotFoundError, LockedError, CorruptFileError: as `Writer` in mode "a".
        TypeError: `values` is a str, bytes, a mapping or a set.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping, set, frozenset)):
        raise TypeError(f"field {name!r}: values are one for each record, not a single {values.__class__.__name__}")
    refuse_url(path)
    with Writer(path, mode="a") as writer, writer.add_field(name, type) as filler:
        records = len(writer)
        if isinstance(values, Sized) and len(values) != records:
            raise Code.VALUE_COUNT.error(f"{fspath(path)}: field {name!r}: {len(values)} values for {records} records")
        for batch in _batches(values):
            filler.extend(batch)
            if progress is not None:
                progress(len(filler), records)


def drop_field(path: str | PathLike[str], name: str) -> None:
    """Remove a field from a file, durably, without rewriting it.

    Its bytes stay in the file, and only older snapshots refer to them.

    Raises:
        KeyError: the file has no such field.
        SchemaError: it is the only field.
        FileNotFoundError, LockedError, CorruptFileError: as `Writer` in mode "a".
    """
    refuse_url(path)
    with Writer(path, mode="a") as writer:
        writer.drop_field(name)


def _batches(values: Iterable[Any]) -> Iterator[Any]:
    """Cut values into batches: slices of arrays, lists of other values."""
    if hasattr(values, "shape") and hasattr(values, "__getitem__") and isinstance(values, Sized):
        each = getattr(values, "nbytes", 0) // max(len(values), 1)
        step = max(_BYTES // max(each, 16), 1)
        for start in range(0, len(values), step):
            yield values[start : start + step]
        return
    rest = iter(values)
    while batch := list(islice(rest, _VALUES)):
        yield batch
