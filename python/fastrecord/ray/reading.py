"""`read_frec`: the records of a data set as a Ray data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from fastrecord._core import Reader, decode_records
from fastrecord.checks import flag, integer
from fastrecord.dataset.selection import Selection, check_selection
from fastrecord.dataset.shards import Paths
from fastrecord.dataset.where import find_matching
from fastrecord.errors import Code
from fastrecord.interchange.destination import Views
from fastrecord.interchange.files.to_arrow import CannotHoldError, arrow_array
from fastrecord.look.values import widened
from fastrecord.ray.tensors import ragged, stacked
from fastrecord.ray.workers import Workers
from fastrecord.schema import FieldType

if TYPE_CHECKING:
    from ray.data import Dataset

    from fastrecord.dataset.dataset import FastRecordDataset

# A task hands over blocks of about this size; Ray joins them to its own.
_BLOCK = 32 << 20
# Records whose sizes are looked up before anything is read.
_SAMPLE = 4096


def read_frec(
    path: Paths | FastRecordDataset,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002
    decode: bool = False,
    workers: Workers = Workers(),
    override_num_blocks: int | None = None,
) -> Dataset:
    """Read records as a Ray data set.

    Each task reads a run of records, in order. Rows and sizes are known before the first one
    starts: the manifest and the indexes of the files have them.

    Columns are Arrow's: numbers and strings; images and bytes as `binary`, encoded as they are
    stored; JSON as text; arrays as Ray's tensors, which `iter_batches` shows as numpy arrays.
    bfloat16 becomes float32. Labels have the data set's numbers, as in `FastRecordDataset`.

    Args:
        path: As for `FastRecordDataset`, on a file system that all machines of the cluster share, or
            a URL; or a `FastRecordDataset`, which has further options: a view of it is read in its
            order.
        columns: Names of the fields, in the order wanted; by default all (of a data set in fields
            mode: its fields).
        filter: Only records that meet a condition, a text as of `--where`, such as "label in ('cat',
            'owl') and image.width > 500". This process evaluates it, from the indexes.
        decode: Decode images to tensors of uint8 (H, W, 3), RGB.
        workers: How many tasks there are.
        override_num_blocks: As for Ray's own `read_parquet`.

    Raises:
        FileNotFoundError, FastRecordError, SchemaError: as `FastRecordDataset`; a column has a type
            that Arrow lacks; the condition is not one.
        TypeError, ValueError: an argument is not allowed.
    """
    flag("decode", decode)
    from fastrecord.dataset.dataset import FastRecordDataset  # imports torch, which no task needs

    data = path if isinstance(path, FastRecordDataset) else FastRecordDataset(path, decode=None)
    schema = data.selection.shards.schema
    names = check_selection(columns if columns is not None else data.fields or tuple(schema))
    selection = data.selection.with_fields(names)
    if filter is not None:
        selection = find_matching(selection, filter)
    for name in names:
        _refuse(name, schema[name])
    found: Dataset = ray.data.read_datasource(
        _FrecDatasource(_Columns(ray.put(selection), decode=decode), selection),
        concurrency=workers.count,
        num_cpus=workers.cpus,
        override_num_blocks=override_num_blocks,
    )
    return found


def _refuse(name: str, kind: FieldType) -> None:
    """Refuse a field that Arrow cannot hold."""
    inner = kind
    while inner.item is not None:
        inner = inner.item
    dtype = inner.dtype or ""
    if dtype.startswith("complex") or (dtype == "bfloat16" and inner is not kind):
        raise Code.CANNOT_HOLD.error(f"field {name!r}: Arrow cannot hold {kind}: leave it out by naming other columns=")


class _FrecDatasource(Datasource):
    def __init__(self, columns: _Columns, selection: Selection) -> None:
        self._columns, self._records = columns, len(selection)
        self._schema = columns.table(selection, np.empty(0, np.int64)).schema
        self._bytes = _record_bytes(selection, decode=columns.decode)
        self._paths = (str(selection.readers[0].path),) if len(selection.readers) == 1 else None

    def get_name(self) -> str:
        return "Frec"

    def estimate_inmemory_data_size(self) -> int:
        return round(self._bytes * self._records)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        del data_context
        count = max(min(integer("parallelism", parallelism, 1), self._records), 1)
        ends = [self._records * (number + 1) // count for number in range(count)]
        tasks = []
        for start, stop in zip([0, *ends], ends, strict=False):
            about = BlockMetadata(
                num_rows=stop - start,
                size_bytes=round(self._bytes * (stop - start)),
                input_files=self._paths,
                exec_stats=None,
            )
            read = partial(self._columns.blocks, start, stop)
            tasks.append(ReadTask(read, about, schema=self._schema, per_task_row_limit=per_task_row_limit))
        return tasks


@dataclass(frozen=True)
class _Columns:
    """Reads records as Arrow tables, in any process of the cluster.

    Attributes:
        selection: The records and fields, in Ray's object store.
        decode: Whether images are decoded.
    """

    selection: Any
    decode: bool

    def blocks(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the records with these numbers in the selection, in order."""
        selection = _fetched(self.selection)
        for first in range(start, stop, _SAMPLE):
            rows = selection.rows.take(np.arange(first, min(first + _SAMPLE, stop)))
            ends = np.cumsum(_sizes(selection, rows, decode=self.decode))
            at = 0
            while at < len(rows):
                before = int(ends[at - 1]) if at else 0
                last = max(int(np.searchsorted(ends, before + _BLOCK, side="right")), at + 1)
                yield self.table(selection, rows[at:last])
                at = last
        if start == stop:
            yield self.table(selection, np.empty(0, np.int64))

    def table(self, selection: Selection, rows: NDArray[np.int64]) -> Any:
        """Return records as a table.

        Args:
            selection: The fields and files.
            rows: Numbers over all files, int64 (N,).
        """
        parts = [(shard, records) for shard, _, records in _runs(selection, rows)] or [(0, rows)]
        tables = [self._part(selection, shard, records) for shard, records in parts]
        return pa.concat_tables(tables) if len(tables) > 1 else tables[0]

    def _part(self, selection: Selection, shard: int, records: NDArray[np.int64]) -> Any:
        reader, schema = selection.readers[shard], selection.shards.schema
        names = selection.fields
        label = selection.mapped_label
        decoded = [name for name in names if self.decode and schema[name].name == "image"]
        payloads = [name for name in names if schema[name].name in ("image", "bytes") and name not in decoded]
        others = [name for name in names if name not in (*payloads, *decoded, label)]
        batch = reader.read_batch(records, others, copy=True)
        found: dict[str, Any] = {}
        for name in names:
            try:
                if name == label:
                    found[name] = pa.array(selection.labels.of_file(shard, records))
                elif name in decoded:
                    found[name] = ragged(decode_records(reader, records, name), np.uint8, 3)
                elif name in payloads:
                    found[name] = arrow_array(_payloads(reader, records, name), schema[name])
                else:
                    found[name] = _column(batch[name], schema[name])
            except CannotHoldError as err:
                place = f"{reader.path}: record {records[err.row]}, field {name!r}"
                raise Code.CANNOT_HOLD.error(f"{place}: {err}") from None
        return pa.table(found)


@lru_cache(maxsize=1)
def _fetched(selection: Any) -> Selection:
    """Return a selection from the object store; the tasks of a worker share its open files."""
    found: Selection = ray.get(selection)
    return found


def _runs(selection: Selection, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Divide rows into runs of one file, without changing their order."""
    shards = np.searchsorted(selection.shards.ends, rows, side="right")
    for run in np.split(rows, np.flatnonzero(np.diff(shards)) + 1):
        yield from selection.shards.split(run)


def _payloads(reader: Reader, records: NDArray[np.int64], name: str) -> Views:
    memory = np.empty(int(reader.lengths(name, records).sum()), np.uint8)
    ends = reader.read_batch_into(records, name, memory)
    return Views(memory.data.toreadonly(), ends)


def _column(values: Any, kind: FieldType) -> Any:
    dtype, shape = kind.dtype or "", kind.shape or ()
    if dtype == "bfloat16":
        dtype = "float32"
        values = [widened(each, kind) for each in values] if None in shape else widened(values, kind)
    if None in shape:
        return ragged(values, dtype, len(shape))
    if shape:
        return stacked(values)
    return pa.array(values) if kind.shape == () else arrow_array(values, kind)


def _sizes(selection: Selection, rows: NDArray[np.int64], *, decode: bool) -> NDArray[np.int64]:
    """Return the bytes of records in memory."""
    sizes = np.zeros(len(rows), np.int64)
    schema = selection.shards.schema
    for shard, slots, records in selection.shards.split(rows):
        reader = selection.readers[shard]
        for name in selection.fields:
            kind = schema[name]
            if kind.name == "image" and decode:
                pixels = reader.column(f"{name}.width", copy=True)[records].astype(np.int64)
                sizes[slots] += 3 * pixels * reader.column(f"{name}.height", copy=True)[records]
            elif name == selection.mapped_label:
                sizes[slots] += 8
            else:
                sizes[slots] += reader.lengths(name, records) if kind.nbytes is None else kind.nbytes
    return sizes


def _record_bytes(selection: Selection, *, decode: bool) -> float:
    """Return about how many bytes a record takes, from the index of the first file."""
    count = min(len(selection), _SAMPLE)
    if not count:
        return 0.0
    rows = selection.rows.take(np.arange(count))
    first = rows[rows < selection.shards.ends[0]]
    return float(_sizes(selection, first if len(first) else rows[:1], decode=decode).mean())
