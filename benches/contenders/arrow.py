"""Arrow: a mapped IPC file, the same through Hugging Face datasets, and parquet."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benches.contenders.source import BATCH, Source
from benches.contenders.store import Copied, Records, Store

# int64 offsets: a column may have more than 2 GiB.
SCHEMA = pa.schema({"image": pa.large_binary(), "label": pa.int64(), "key": pa.string()})


def _tables(source: Source, size: int) -> Iterator[Any]:
    for payloads, labels, keys in source.batches(size):
        yield pa.record_batch([pa.array(payloads, pa.large_binary()), pa.array(labels), pa.array(keys)], schema=SCHEMA)


def _extents(column: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The offsets and the bytes of an array of binary values, without a copy."""
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    _, offsets, values = column.buffers()
    ends = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    return ends.astype(np.int64), np.frombuffer(values if values is not None else b"", np.uint8)


def _copy(batch: Any, out: NDArray[np.uint8]) -> Copied:
    """Copy the payloads of a table or a record batch with one copy for each part."""
    lengths, at = [], 0
    column = batch.column("image")
    for part in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        ends, values = _extents(part)
        size = int(ends[-1] - ends[0])
        out[at : at + size] = values[ends[0] : ends[-1]]
        at += size
        lengths.append(np.diff(ends))
    return np.concatenate(lengths), batch.column("label").to_numpy()


class Arrow(Store):
    """One record batch in the mapped file; a payload is a slice of it."""

    suffix = ".arrow"

    @classmethod
    def version(cls) -> str:
        return f"pyarrow {pa.__version__}"

    def write(self) -> None:
        with pa.OSFile(str(self.path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            for batch in _tables(self.source, BATCH):
                writer.write_batch(batch)

    def open(self) -> None:
        self.file = pa.memory_map(str(self.path))
        batches = pa.ipc.open_file(self.file)
        self.parts = [batches.get_batch(number) for number in range(batches.num_record_batches)]
        self.columns = [_extents(part.column("image")) for part in self.parts]
        self.labels = np.concatenate([part.column("label").to_numpy() for part in self.parts])

    def close(self) -> None:
        del self.parts, self.columns
        self.file.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        payloads = []
        for part, at in zip((rows // BATCH).tolist(), (rows % BATCH).tolist(), strict=True):
            ends, values = self.columns[part]
            payloads.append(values[ends[at] : ends[at + 1]])
        return payloads, self.labels[rows]

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for part in self.parts:
            yield _copy(part, out)


class HuggingFace(Store):
    """A data set on the disk, which maps its Arrow files; a batch is one call, in Arrow's form."""

    suffix = ".hf"

    @classmethod
    def version(cls) -> str:
        import datasets

        return f"datasets {datasets.__version__}, pyarrow {pa.__version__}"

    def write(self) -> None:
        from datasets.arrow_writer import ArrowWriter

        self.path.mkdir()
        with ArrowWriter(path=str(self.path / "data.arrow"), schema=SCHEMA, writer_batch_size=BATCH) as writer:
            for batch in _tables(self.source, BATCH):
                writer.write_table(pa.Table.from_batches([batch]))
            writer.finalize()

    def open(self) -> None:
        import datasets

        self.rows = datasets.Dataset.from_file(str(self.path / "data.arrow")).with_format("arrow")

    def close(self) -> None:
        del self.rows

    def read(self, rows: NDArray[np.int64]) -> Records:
        table = self.rows[rows]
        payloads: list[Any] = []
        for part in table.column("image").chunks:
            ends, values = _extents(part)
            places = ends.tolist()
            payloads += [values[first:end] for first, end in pairwise(places)]
        return payloads, table.column("label").to_numpy()

    def read_into(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> Copied:
        return _copy(self.rows[rows], out)

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for table in self.rows.iter(BATCH):
            yield _copy(table, out)


class Parquet(Store):
    """Small row groups: a record costs the row group that holds it."""

    suffix = ".parquet"

    @classmethod
    def version(cls) -> str:
        return f"pyarrow {pa.__version__}"

    @property
    def group(self) -> int:
        """Records in a row group: about 800 KB of images, or 25 KB of small records."""
        return 8 if self.source.images else BATCH

    def write(self) -> None:
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(self.path, SCHEMA, **options) as writer:
            for batch in _tables(self.source, BATCH):
                writer.write_batch(batch, row_group_size=self.group)

    def open(self) -> None:
        self.file = pq.ParquetFile(self.path, memory_map=True)

    def close(self) -> None:
        self.file.close()

    def read(self, rows: NDArray[np.int64]) -> Records:
        groups, inverse = np.unique(rows // self.group, return_inverse=True)
        table = self.file.read_row_groups(groups.tolist(), ["image", "label"], use_threads=False)
        # All groups are full, but the last, which comes last.
        places = inverse * self.group + rows % self.group
        picked = table.take(pa.array(places))
        return [value.as_buffer() for value in picked.column("image")], picked.column("label").to_numpy()

    def read_into(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> Copied:
        groups, inverse = np.unique(rows // self.group, return_inverse=True)
        table = self.file.read_row_groups(groups.tolist(), ["image", "label"], use_threads=False)
        return _copy(table.take(pa.array(inverse * self.group + rows % self.group)), out)

    def scan(self, out: NDArray[np.uint8]) -> Generator[Copied]:
        for batch in self.file.iter_batches(BATCH, columns=["image", "label"], use_threads=False):
            yield _copy(batch, out)
