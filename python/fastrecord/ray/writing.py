"""`write_frec`: the records of a Ray data set as shards of a data set."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from ray.data import Datasink
from ray.data.block import BlockAccessor

from fastrecord.checks import choice, integer
from fastrecord.errors import Code
from fastrecord.files.division import Part
from fastrecord.files.manifest import ManifestSummary
from fastrecord.files.publish.local import find_shard
from fastrecord.files.publish.shard_write import ShardWrite, WriteMode, agreed_schema, new_name
from fastrecord.files.publish.shards import FoundShard
from fastrecord.interchange.files.arrow import ArrowFile, ArrowSource, features_of
from fastrecord.interchange.source import ROWS
from fastrecord.packing.fields import LABEL, PlannedField, number_labels, plan_fields, schema_of
from fastrecord.packing.job import NEVER, Job
from fastrecord.packing.options import BadFiles, Fields
from fastrecord.packing.pack import known_classes
from fastrecord.packing.packer import Packer
from fastrecord.ray.tensors import without_tensors
from fastrecord.ray.workers import Workers
from fastrecord.recode import Recode
from fastrecord.schema.classes import check_names

if TYPE_CHECKING:
    from ray.data import Dataset

_WHERE = "the Ray data set"


def write_frec(
    ray_dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    mode: WriteMode = "error",
    fields: Fields = Fields(),
    classes: Sequence[str] | None = None,
    records_per_shard: int | None = None,
    bad_files: BadFiles = "stop",
    workers: Workers = Workers(),
) -> ManifestSummary:
    """Write the records of a Ray data set to a folder, as one data set of several shards.

    Each task writes shards of its own, where no reader looks. When all are there, this process adds
    them to the folder's manifest in one step: before it, readers see the data set as it was; after
    it, with all records. That holds if tasks fail, are repeated or run twice, and if workers or this
    process are killed. The next call, or `fastrecord manifest --clean`, removes what a killed one
    has left.

    Types are the ones that an import of Parquet gives (docs/formats.md): the first task that
    writes decides, and all others follow. Tensors become arrays. Shards have the order of Ray's
    tasks: the records keep their order if Ray's execution option `preserve_order` is set.

    Args:
        ray_dataset: The data set.
        path: The folder, on a file system that all machines of the cluster share.
        mode: "error": refuse a folder that holds a data set. "append": add records to it; they
            need the same fields. "overwrite": replace it.
        fields: Which columns are stored, and as what, as for `fastrecord.pack`; by default all.
        classes: Class names, position = label. A field "label" of names is numbered by them.
        records_per_shard: Largest number of records in a shard. By default a shard holds what Ray
            gives to a task, about 128 MiB.
        bad_files: "stop": a record that does not fit ends the write. "skip": it is left out, and
            listed under "skipped" in the metadata of its shard.
        workers: How many tasks there are.

    Returns:
        The manifest's new state.

    Raises:
        FileExistsError: the folder holds a data set, and the mode is "error".
        FastRecordError: there are no records; a record does not fit, or blocks have different
            columns; a shard is not on this machine.
        ValueError, TypeError: an argument is not allowed; `path` is a URL.
        Besides, what Ray raises for tasks that fail.
    """
    if records_per_shard is not None:
        integer("records_per_shard", records_per_shard, 1)
    choice("bad_files", bad_files, get_args(BadFiles))
    if classes is None:
        classes = known_classes(fields).names
    names = None if classes is None else check_names(classes)
    with ShardWrite(path, mode) as write:
        sink = _FrecDatasink(_Options(write.staging, fields, names, records_per_shard, bad_files))
        ray_dataset.write_datasink(sink, concurrency=workers.count, ray_remote_args={"num_cpus": workers.cpus})
        parts = sorted(sink.written, key=lambda part: part.task)
        return write.commit([shard for part in parts for shard in part.shards])


@dataclass(frozen=True, slots=True)
class _Options:
    """What tasks need to know; see `write_frec`."""

    staging: str
    fields: Fields
    classes: list[str] | None
    records_per_shard: int | None
    bad_files: BadFiles


@dataclass(frozen=True, slots=True)
class _Written:
    """What one task has written."""

    task: int
    shards: list[FoundShard]


class _FrecDatasink(Datasink[_Written]):
    def __init__(self, options: _Options) -> None:
        self._options = options
        self.written: list[_Written] = []

    def write(self, blocks: Iterable[Any], ctx: Any) -> _Written:
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        return _Written(ctx.task_idx, write_tables([table for table in tables if table.num_rows], self._options))

    def on_write_complete(self, write_result: Any) -> None:
        self.written = list(write_result.write_returns)

    def get_name(self) -> str:
        return "Frec"

    @property
    def min_rows_per_write(self) -> int | None:
        return self._options.records_per_shard


def write_tables(tables: Sequence[Any], options: _Options) -> list[FoundShard]:
    """Write the records of Arrow tables as shards; return what the commit needs to know of them."""
    if not tables:
        return []
    features: dict[str, Mapping[str, Any]] = {}
    files = []
    for number, table in enumerate(tables):
        plain, more = without_tensors(table)
        features |= more
        files.append(_Block(plain, f"block {number}"))
    source = ArrowSource(files, {**features_of(files[0].schema.metadata), **features})
    source.where, source.home = _WHERE, "ray"
    fields, classes = _fields(source, options)
    total = source.count()
    count = -(-total // (options.records_per_shard or total))
    ends = [total * (number + 1) // count for number in range(count)]
    names = {planned.name: [planned.source.name, str(planned.type)] for planned in fields}
    entry = {"import": {"format": "ray", "digest": "", "fields": names, "settings": {}}}
    job = Job(source, fields, classes, Recode(), options.bad_files, entry)
    shards = []
    for start, stop in zip([0, *ends], ends, strict=False):
        packer = Packer(job, NEVER, may_be_empty=True)
        packer.seen = None  # keys of other tasks are not known: they may come twice
        path = os.path.join(options.staging, new_name())
        packer.run([Part(path, start, stop)], path, "create")
        found = find_shard(path)
        if found.entry.records:
            shards.append(found)
    return shards


class _Block(ArrowFile):
    """A block of Ray as a file."""

    def __init__(self, table: Any, path: str) -> None:
        self.path, self.schema, self.rows = path, table.schema, table.num_rows
        self._table = table

    def batches(self, start: int, names: Sequence[str]) -> Iterator[Any]:
        """See `ArrowFile.batches`."""
        yield from self._table.select(list(names)).slice(start).to_batches(ROWS)


def _fields(source: ArrowSource, options: _Options) -> tuple[list[PlannedField], list[str] | None]:
    """Return the fields to store, of the types that all tasks have agreed on, and the classes."""
    wanted = options.fields
    planned = plan_fields(source, wanted.names, wanted.parsed, fill=wanted.fill)
    known = source.class_names()
    classes = options.classes if known is None or options.classes is not None else list(known)
    label = next((field for field in planned if field.name == LABEL), None)
    numbered = options.classes is not None and label is not None and label.type.name == "string"
    table = {name: number for number, name in enumerate(options.classes or ())}
    if numbered:
        planned = number_labels(planned, table)
    agreed = agreed_schema(options.staging, schema_of(planned))
    if agreed.keys() != {field.name for field in planned}:
        mine, others = ", ".join(field.name for field in planned), ", ".join(agreed)
        raise Code.FIELDS_DIFFER.error(
            f"{_WHERE}: a block has the fields {mine}, and the data set has {others}: give all blocks the "
            "same columns, or choose some by fields="
        )
    types = {name: kind for name, kind in agreed.items() if not (numbered and name == LABEL)}
    planned = plan_fields(source, wanted.names, types, wanted.compression, wanted.fill)
    found = {field.name: field for field in (number_labels(planned, table) if numbered else planned)}
    return [found[name] for name in agreed], None if label is None else classes
