"""`bench`: measures reading, decoding and loading of a file on this machine.

Draws no conclusions; `verdict` does.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from dataclasses import field as attribute
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord._core import DecodeError, Reader, codecs, decode_records, default_threads, image_size, side_kinds
from fastrecord.checks import integer
from fastrecord.errors import Code
from fastrecord.inspect.machine import this_machine
from fastrecord.inspect.packed_gain import PackedGain
from fastrecord.inspect.page_cache import drop_from_cache, resident_share
from fastrecord.look.values import CROP_INDEX, PACKED_JPEG, image_format
from fastrecord.store.address import Url
from fastrecord.store.threads import no_thread

_SAMPLE_BYTES = 512 << 20
_SAMPLE_RECORDS = 1 << 18
_DESCRIBED = 512
_PACKED = 16
_TRIES = 100
_BATCH = 64
_KINDS = ("image", "bytes", "string")
_LONGEST = 3600.0
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        name: The operation: "read", "views", "copies", "decode" or "load".
        threads: Number of threads.
        records: Records processed within `seconds`.
        bytes: Their bytes in the file; 0 for "views".
        seconds: Wall time.
        cpu_seconds: CPU time of the process within it.
        shares: For "load": the shares of the threads' time, by "read", "decode", "resize" and
            "idle".
    """

    name: str
    threads: int
    records: int
    bytes: int
    seconds: float
    cpu_seconds: float
    shares: dict[str, float] = attribute(default_factory=dict)

    @property
    def records_per_second(self) -> float:
        """Records processed per second of wall time."""
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """Millions of bytes processed per second of wall time."""
        return self.bytes / 1e6 / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the row with its rates, ready for JSON."""
        rates = {
            "records_per_second": self.records_per_second,
            "megabytes_per_second": self.megabytes_per_second,
        }
        return {**asdict(self), **rates}


@dataclass
class Report:
    """Measurements and properties of a file.

    Attributes:
        file: The path as given.
        records: Number of records in the file.
        nbytes: Size of the file in bytes.
        field: The field that was read.
        kind: Its type.
        mean_bytes: Mean size of the sampled values in bytes.
        mean_width, mean_height: Mean size of the sampled images in pixels; None without images.
        formats: Share of the sampled images by their first bytes, such as {"JPEG": 1.0}.
        crop_index: Whether most of the sampled images have a crop index.
        packed: Whether most of the sampled images are packed JPEGs. Copies of them are restored ones.
        packed_gain: What packing them would cost and gain here; None if most are packed, or none is a
            JPEG.
        sample: Number of records measured.
        sample_bytes: Their bytes.
        cpus: CPUs that this process may use.
        machine_cpus: CPUs of the machine.
        memory: Bytes of memory that are free or can be freed; None if the system does not report
            it.
        size: Height and width of the loader's output, in pixels.
        cold: Whether the file was dropped from memory before it was read.
        cached: Share of the file that was in memory before it was read; None if the system does not
            report it.
        skipped: Number of sampled images that cannot be decoded.
        rows: The measurements.
    """

    file: str
    records: int
    nbytes: int
    field: str
    kind: str
    cpus: int
    machine_cpus: int
    memory: int | None
    size: int
    cold: bool
    cached: float | None = None
    mean_bytes: float = 0.0
    mean_width: float | None = None
    mean_height: float | None = None
    formats: dict[str, float] = attribute(default_factory=dict)
    crop_index: bool = False
    packed: bool = False
    packed_gain: PackedGain | None = None
    sample: int = 0
    sample_bytes: int = 0
    skipped: int = 0
    rows: list[Row] = attribute(default_factory=list)

    def row(self, name: str, threads: int | None = None) -> Row | None:
        """Return the measurement of a name, by default with the most threads."""
        found = [row for row in self.rows if row.name == name and threads in (None, row.threads)]
        return max(found, key=lambda row: row.threads, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report, ready for JSON."""
        gain = None if self.packed_gain is None else self.packed_gain.to_dict()
        return {**vars(self), "packed_gain": gain, "rows": [row.to_dict() for row in self.rows]}


def bench(
    path: str | os.PathLike[str],
    *,
    seconds: float = 30.0,
    threads: int | None = None,
    size: int = 224,
    field: str | None = None,
    cold: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure reading, decoding and loading of random records of a file. Changes nothing.

    The first reading measures the disk as far as the file is not in memory. All later measurements
    use records in memory, so they measure CPUs and memory.

    Args:
        path: The .frec file; incomplete files are accepted.
        seconds: Time for all measurements together, at most an hour. Importing torch takes additional
            time, and a slow disk may exceed it.
        threads: Maximum number of threads; fewer are tried too. By default the CPUs that this process
            may use.
        size: Height and width of the loader's output, in pixels.
        field: The field to read; by default an image field, else a field of bytes.
        cold: Drop the file from the system's page cache first, so that the first reading comes from
            the disk. Requires no special rights; pages that other processes have mapped stay. Other
            readers of the file then wait for the disk too.
        progress: Called before each measurement with the number done, and the total.

    Raises:
        FastRecordError: the file has nothing to measure, or none of the sampled images can be
            decoded.
        CorruptFileError: a checksum differs.
        FileNotFoundError: no such file.
        ValueError: an argument is out of range.
    """
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"seconds is above 0 and at most {_LONGEST:g}, not {seconds}")
    integer("size", size, 1, 1 << 16)
    path = Url(os.fspath(path))
    cpus = default_threads()
    most = cpus if threads is None else integer("threads", threads, 1, 4097)
    cached = None if cold else resident_share(path)  # opening the file reads a part of it
    with Reader(path, threads=most) as reader:
        name = _choose(reader, field)
        report = Report(
            file=os.fspath(path),
            records=len(reader),
            nbytes=reader.nbytes,
            field=name,
            kind=reader.schema[name].name,
            cpus=cpus,
            machine_cpus=os.cpu_count() or cpus,
            memory=this_machine().memory_left,
            size=size,
            cold=cold,
            cached=cached,
        )
        sample = _Sample(reader, report)
        ends = sorted({1, most})
        # Threads and weight of each; the loader's numbers matter most.
        steps = [(sample.read, most, 2.0), (sample.views, 1, 0.5), *((sample.copies, n, 1.0) for n in ends)]
        if report.kind == "image":
            steps += [(sample.decode, n, 1.0) for n in ends]
            steps += [(sample.load, n, 2.0) for n in sorted({1, most, *(max(1, most // part) for part in (8, 4, 2))})]
        per_weight = seconds / sum(weight for _, _, weight in steps)
        for done, (measure, n, weight) in enumerate(steps):
            if progress is not None:
                progress(done, len(steps))
            report.rows.append(measure(per_weight * weight, n))
    return report


def _choose(reader: Reader, wanted: str | None) -> str:
    schema = reader.schema
    if wanted is not None:
        if wanted not in schema:
            raise Code.NO_FIELD.error(f"{reader.path}: no field {wanted!r}: it has {', '.join(schema)}")
        if schema[wanted].name not in _KINDS:
            raise Code.FIELD_TYPE.error(
                f"{reader.path}: field {wanted!r} holds {schema[wanted].name}: choose one of bytes"
            )
        return wanted
    names = [name for kind in _KINDS[:2] for name, of in schema.items() if of.name == kind]
    if not names:
        raise Code.FIELD_TYPE.error(f"{reader.path}: no field holds images or bytes: it has {', '.join(schema)}")
    return "image" if "image" in names else names[0]


class _Sample:
    """Random records of a file, and the measurements on them: for so many seconds, by so many threads."""

    def __init__(self, reader: Reader, report: Report) -> None:
        self._reader, self._report = reader, report
        rng = np.random.default_rng(0)
        count = min(len(reader), _SAMPLE_RECORDS)
        # Not `permutation(n)`: a file may have a hundred million records.
        wide = count < len(reader)
        drawn = np.unique(rng.integers(0, len(reader), count)) if wide else np.arange(count)
        lengths = reader.lengths(report.field, drawn)
        present = np.flatnonzero(lengths > 0)
        if not len(present):
            raise Code.NO_VALUE.error(
                f"{reader.path}: no record has a value in field {report.field!r}: nothing to measure"
            )
        chosen = rng.permutation(present)
        limit = min(_SAMPLE_BYTES, (report.memory or 4 * _SAMPLE_BYTES) // 4)
        kept = max(1, int(np.searchsorted(np.cumsum(lengths[chosen]), limit, side="right")))
        self._records: NDArray[np.int64] = drawn[chosen[:kept]]
        self._lengths: NDArray[np.int64] = lengths[chosen[:kept]]

    def _round(self) -> Iterator[slice]:
        """Yield a slice of the records for each batch."""
        return (slice(start, start + _BATCH) for start in range(0, len(self._records), _BATCH))

    def _run(self, name: str, threads: int, budget: float, work: Callable[[slice], object], *, rounds: int) -> Row:
        """Process batches until the time is over: at least one batch."""
        records = size = 0
        start, cpu = time.perf_counter(), time.process_time()
        for batch in (batch for _ in range(rounds) for batch in self._round()):
            work(batch)
            records += len(self._records[batch])
            size += int(self._lengths[batch].sum())
            if time.perf_counter() - start >= budget:
                break
        return Row(name, threads, records, size, time.perf_counter() - start, time.process_time() - cpu)

    def _copy(self, name: str, reader: Reader, budget: float, threads: int, *, rounds: int = _ENDLESS) -> Row:
        buffer = np.empty(max(int(self._lengths[batch].sum()) for batch in self._round()), np.uint8)
        field = self._report.field

        def work(batch: slice) -> None:
            reader.read_batch_into(self._records[batch], field, buffer, verify=True)

        return self._run(name, threads, budget, work, rounds=rounds)

    def read(self, budget: float, threads: int) -> Row:
        """Read each record once from the file's current state; the records read are the sample."""
        report, path = self._report, self._reader.path
        if report.cold:
            drop_from_cache(path)
            report.cached = resident_share(path)
        row = self._copy("read", self._reader, budget, threads, rounds=1)
        self._records, self._lengths = self._records[: row.records], self._lengths[: row.records]
        report.sample, report.sample_bytes = row.records, row.bytes
        _describe(self._reader, report, self._records)
        return row

    def views(self, budget: float, threads: int) -> Row:
        """Get batches as views without touching their bytes."""
        names = [self._report.field]

        def work(batch: slice) -> None:
            self._reader.read_batch(self._records[batch], names)

        return replace(self._run("views", threads, budget, work, rounds=_ENDLESS), bytes=0)

    def copies(self, budget: float, threads: int) -> Row:
        """Copy and check batches that are in memory."""
        with Reader(self._reader.path, threads=threads) as reader:
            return self._copy("copies", reader, budget, threads)

    def decode(self, budget: float, threads: int) -> Row:
        """Decode whole images that are in memory; each thread decodes its own."""
        from fastrecord.dataset.decoding import Decoding

        limit = time.perf_counter() + budget
        stop = threading.Event()
        how: dict[str, Any] = {"decoding": Decoding(sixteen_bit="clip"), "threads": 1}

        def work(first: int) -> tuple[int, int, int]:
            done = size = tried = 0
            for position in itertools.count(first, threads):
                over = time.perf_counter() >= limit and (done or tried >= _TRIES)
                if stop.is_set() or (tried and over):
                    break
                at = position % len(self._records)
                tried += 1
                try:
                    decode_records(self._reader, self._records[at : at + 1], self._report.field, **how)
                except DecodeError:
                    continue
                done += 1
                size += int(self._lengths[at])
            return done, size, tried

        start, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(threads) as executor:
            try:
                try:
                    running = [executor.submit(work, number) for number in range(threads)]
                except RuntimeError as err:
                    raise no_thread(err) from err  # fewer would be another measurement
                results = [each.result() for each in running]
            finally:
                stop.set()  # also on Ctrl-C: leaving the block waits for the threads
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        done, size, tried = (sum(column) for column in zip(*results, strict=True))
        if not done:
            raise Code.NONE_DECODED.error(
                f"{self._reader.path}: none of {tried:,} values of field {self._report.field!r} that were tried can be "
                "decoded; if it holds no images, choose another field"
            )
        return Row("decode", threads, done, size, seconds, cpu)

    def load(self, budget: float, threads: int) -> Row:
        """Run the loader on batches of the sample, from its first batch until the time is over."""
        from fastrecord.dataset.dataset import FastRecordDataset
        from fastrecord.dataset.decoding import Decoding
        from fastrecord.loader.delivery import Delivery
        from fastrecord.loader.loader import FastRecordLoader
        from fastrecord.loader.skip import Skip
        from fastrecord.transforms import RandomHorizontalFlip, RandomResizedCrop

        report = self._report
        decode = Decoding(sixteen_bit="clip")
        dataset = FastRecordDataset(self._reader.path, decode=decode, image_field=report.field, allow_incomplete=True)
        with FastRecordLoader(
            dataset,
            batch_sampler=itertools.cycle([self._records[batch] for batch in self._round()]),
            sample=[RandomResizedCrop(report.size), RandomHorizontalFlip()],
            threads=threads,
            on_error=Skip(limit=None),
            delivery=Delivery(pin_memory=False),
        ) as loader:
            batches = iter(loader)
            next(batches)
            before, start, cpu = loader.stats(), time.perf_counter(), time.process_time()
            images, seconds = 0, 0.0
            while seconds < budget:
                made = next(batches)
                images += len(made[0] if isinstance(made, tuple) else made)
                seconds = time.perf_counter() - start
            stats, cpu = loader.stats() - before, time.process_time() - cpu
            report.skipped = max(report.skipped, len({skipped.record for skipped in loader.skipped}))
        dataset.close()
        shares = {name: getattr(stats, f"{name}_share") for name in ("read", "decode", "resize", "idle")}
        size_of_each = stats.bytes_read / stats.reads if stats.reads else 0.0
        return Row("load", threads, images, round(images * size_of_each), seconds, cpu, shares)


def _describe(reader: Reader, report: Report, records: NDArray[np.int64]) -> None:
    report.mean_bytes = report.sample_bytes / max(1, report.sample)
    if report.kind != "image":
        return
    some = records[:_DESCRIBED].tolist()
    payloads = [reader.get(record, report.field) for record in some]
    sizes = [size for payload in payloads if (size := image_size(payload)) is not None]
    if sizes:
        report.mean_width, report.mean_height = (float(side) for side in np.mean(sizes, axis=0))
    names = [image_format(bytes(payload[:12])) for payload in payloads]
    report.formats = {name: names.count(name) / len(names) for name in sorted(set(names))}
    indexed = side_kinds(reader, report.field, some) == CROP_INDEX
    report.crop_index = bool(2 * indexed.sum() > len(some))
    packed = codecs(reader, report.field, some) == PACKED_JPEG
    report.packed = bool(2 * packed.sum() > len(some))
    if not report.packed:
        jpegs = [payload for payload in payloads if image_format(bytes(payload[:12])) == "JPEG"]
        report.packed_gain = PackedGain.measure(jpegs[:_PACKED])
