"""`Contestant`: one format in its process, with the methods that the experiment calls."""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import mmap
import os
import resource
import shutil
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.contenders import FORMATS, Source, Store
from benches.contenders.source import BATCH
from benches.contenders.store import Copied
from fastrecord._core import resident_bytes

# Warm reads use a sample of the records, so that the pages of all formats fit into memory together.
SAMPLE_BYTES = 280_000_000


class Contestant:
    """A format of two data sets, "images" and "small".

    Reading methods return how many records they have read; with several processes, only the first
    one works, unless `ranks` says otherwise.
    """

    def __init__(
        self, *, form: str, sources: dict[str, tuple[str, int]], place: str, rank: int = 0, ranks: int = 1
    ) -> None:
        """Import the format's library; `ranks` is how many processes there are."""
        del ranks
        module, _, name = FORMATS[form].partition(":")
        self._kind: type[Store] = getattr(importlib.import_module(f"benches.contenders.{module}"), name)
        self._sources = {name: Source(Path(root), records) for name, (root, records) in sources.items()}
        self._place, self._rank = Path(place), rank
        self._store: Store | None = None
        self._data = ""
        self._filled: list[mmap.mmap] = []
        self._orders: dict[str, NDArray[np.int64]] = {}
        self._buffers: dict[str, NDArray[np.uint8]] = {}
        self.version = self._kind.version()

    def unfit(self, data: str, *, random: bool = False) -> str:
        """Return why the format does not hold a data set, or cannot read it in random order; else an empty text."""
        source = self._sources[data]
        if source.records > self._kind.most_records:
            return f"a file for each of {source.records:,} records takes minutes to write"
        return "reads in order only" if random and not self._kind.random else ""

    def clear(self, data: str) -> None:
        """Remove what `pack` has written, and let the disk come to rest."""
        path = self._path(data)
        if path.is_dir():
            shutil.rmtree(path)
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        os.sync()

    def pack(self, data: str, *, sync: bool = True) -> int:
        """Write the data set, and wait until the disk has it; return the bytes on the disk."""
        store = self._made(data)
        store.write()
        if sync:
            descriptor = os.open(store.path.parent, os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), "syncfs")
            os.close(descriptor)
        return sum(file.stat().st_size for file in self._files(data))

    def close(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def drop(self, data: str) -> None:
        """Drop the pages of the data set, which no process may have open, from the page cache."""
        self.release()
        for file in self._files(data):
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        self._out(data)
        time.sleep(0.01)  # read-ahead of the call before may still be in progress

    def fill(self, data: str, *, opened: bool = True) -> None:
        """Make ready for a warm read, until `release`: read what the page cache lacks of the data set, and map it.

        A system that hands memory back takes pages that no process has mapped, some within a minute.

        Args:
            data: The data set.
            opened: Whether the data set is opened too, and a batch read.
        """
        self.release()
        chunk = bytearray(1 << 22)
        for file in self._files(data) if self._rank == 0 else ():
            resident, size = resident_bytes(file)
            if not size:
                continue
            with file.open("rb", buffering=0) as content:
                if resident < size:
                    while content.readinto(chunk):
                        pass
                self._filled.append(mmap.mmap(content.fileno(), 0, prot=mmap.PROT_READ))
            np.frombuffer(self._filled[-1], np.uint8)[:: mmap.PAGESIZE].max()  # touches each page
        self._out(data)
        if opened:
            with closing(self._first(data, BATCH)) as found:
                next(found)

    def release(self) -> None:
        """Give back the memory that reading takes: the others need it for theirs."""
        if self._store is None and not self._buffers and not self._filled:
            return  # collecting takes a while
        self.close()
        self._buffers.clear()
        while self._filled:
            self._filled.pop().close()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system

    def first(self, data: str, count: int) -> int:
        """Open, and read the first records of a random order."""
        if self._rank:
            return 0
        with closing(self._first(data, count)) as found:
            next(found)
        return count

    def _first(self, data: str, count: int) -> Generator[Copied]:
        """The first records of a random order, or the first ones where the format has no other order."""
        store, out = self._opened(data), self._out(data)
        return store.stream([self._order(data)[:count]], out) if store.random else store.scan(out)

    def check(self, data: str) -> int:
        """Compare all records in order, and a random batch, with the source.

        Raises:
            ValueError: they differ.
        """
        store, out = self._opened(data), self._out(data)
        at = 0
        for lengths, labels in store.scan(out):
            rows = np.arange(at, at + len(lengths))
            self._compare(data, rows, out, lengths, labels)
            at += len(rows)
        if at != store.source.records:
            raise ValueError(f"{at} records in order, not {store.source.records}")
        if store.random:
            rows = self._order(data)[:BATCH]
            payloads, labels = store.read(rows)
            joined = np.frombuffer(b"".join(payloads), np.uint8)
            self._compare(data, rows, joined, [len(payload) for payload in payloads], labels)
            for lengths, labels in store.stream([rows], out):
                self._compare(data, rows, out, lengths, labels)
        return at

    def random(self, data: str, seed: int, *, seconds: float, copied: bool = True, ranks: int = 1) -> int:
        """Read random batches of the sample until some seconds are over."""
        if self._rank >= ranks:
            return 0
        store, out = self._opened(data), self._out(data)
        end, done = time.perf_counter() + seconds, 0
        batches = self._batches(data, seed * 2 + self._rank)
        reads: Generator[tuple[Any, Any]] = store.stream(batches, out) if copied else store.hand(batches)
        with closing(reads) as stream:  # it may have read ahead
            for number, (found, _) in enumerate(stream, 1):
                # The lengths of copied payloads, or the payloads themselves: every length is read.
                done += len(found) if copied else len([payload for payload in found if len(payload)])
                if number >= store.least_batches and time.perf_counter() > end:
                    break
        return done

    def sequential(self, data: str, *, seconds: float) -> int:
        """Read the sample's number of records in order, or as many as some seconds allow."""
        if self._rank:
            return 0
        store, out = self._opened(data), self._out(data)
        end, done = time.perf_counter() + seconds, 0
        most = self._sample(data)
        with closing(store.scan(out)) as scan:
            for lengths, _ in scan:
                done += len(lengths)
                if done >= most or time.perf_counter() > end:
                    break
        return done

    def epoch(self, data: str, *, seconds: float) -> int:
        """Read all records in random order, each once, or as many as some seconds allow."""
        if self._rank:
            return 0
        store, out, done = self._opened(data), self._out(data), 0
        end, order = time.perf_counter() + seconds, self._order(data)
        with closing(store.stream((order[at : at + BATCH] for at in range(0, len(order), BATCH)), out)) as stream:
            for lengths, _ in stream:
                done += len(lengths)
                if time.perf_counter() > end:
                    break
        return done

    def limited_epoch(self, data: str, *, seconds: float) -> int:
        """The same after opening with RLIMIT_DATA at half the file's bytes above what the process has."""
        self.close()
        self._out(data)
        allowed = sum(file.stat().st_size for file in self._files(data)) // 2
        has = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (has + allowed, before[1]))
        try:
            return self.epoch(data, seconds=seconds)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    def _compare(self, data: str, rows: NDArray[np.int64], out: NDArray[np.uint8], lengths: Any, labels: Any) -> None:
        source, view, at = self._sources[data], out.data, 0
        if not np.array_equal(np.asarray(labels), source.labels[rows]):
            raise ValueError(f"{self._path(data)}: wrong labels near record {rows[0]}")
        for row, length in zip(rows.tolist(), lengths, strict=True):
            payload = view[at : at + length]
            if zlib.crc32(payload) != source.crcs[row]:
                raise ValueError(f"{self._path(data)}: record {row} differs from the source")
            at += length

    def _path(self, data: str) -> Path:
        return self._place / f"{data}{self._kind.suffix}"

    def _files(self, data: str) -> list[Path]:
        path = self._path(data)
        found = [*path.parent.glob(f"{path.name}*"), *path.rglob("*")]
        return [file for file in found if file.is_file()]

    def _made(self, data: str) -> Store:
        return self._kind(self._path(data), self._sources[data])

    def _opened(self, data: str) -> Store:
        if self._store is None or self._data != data:
            self.close()
            store = self._made(data)
            store.open()
            self._store, self._data = store, data
        return self._store

    def _out(self, data: str) -> NDArray[np.uint8]:
        """A buffer for any batch, in memory."""
        if data not in self._buffers:
            self._buffers[data] = np.ones(self._sources[data].largest * BATCH * 5 // 4, np.uint8)
        return self._buffers[data]

    def _sample(self, data: str) -> int:
        source = self._sources[data]
        return min(source.records, max(BATCH, SAMPLE_BYTES * source.records // source.total))

    def _order(self, data: str) -> NDArray[np.int64]:
        """All records in a random order, the same in all processes."""
        if data not in self._orders:
            self._orders[data] = np.random.default_rng(0).permutation(self._sources[data].records)
        return self._orders[data]

    def _batches(self, data: str, seed: int) -> Iterator[NDArray[np.int64]]:
        """Yield random batches of the sample, without end."""
        sample = self._order(data)[: self._sample(data)]
        whole = max(1, len(sample) // BATCH)
        for number in itertools.count(seed * 7919):
            at = number % whole * BATCH
            yield sample[at : at + BATCH]
